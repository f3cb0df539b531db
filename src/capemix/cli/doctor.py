"""`capemix doctor`: what is installed, what is missing, and how to get it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import typer

from capemix.cli import options as opt

State = Literal["good", "not installed", "wrong"]

_EXTRAS: Final = {
    "flwr": ("several organisations, by Flower", "pip install 'capemix[flower]'"),
    "ray": ("federations simulated on one machine", "pip install 'capemix[simulation]'"),
    "torch": ("`capemix evaluate --model cnn`", "pip install 'capemix[torch]'"),
    "matplotlib": ("`capemix evaluate --picture`", "pip install 'capemix[plot]'"),
    "polars": ("frames of polars in Python", "pip install polars"),
}
_LEAST: Final = (3, 11)


@dataclass(frozen=True)
class Checked:
    """One thing that was looked at. ``fix`` says how to get it, or to mend it."""

    about: str
    state: State
    says: str
    fix: str | None = None


def doctor(json: opt.Json = False) -> None:
    """What is installed, what is missing and how to get it. Exits with 1 if something is wrong: an
    extra that nobody installed is not."""
    from capemix.cli.show import print_json
    from capemix.errors import printable

    found = list(_everything())
    wrong = any(each.state == "wrong" for each in found)
    if json:
        print_json({"well": not wrong, "checks": [asdict(each) for each in found]})
    else:
        for each in found:
            fix = "" if each.fix is None else f"; {each.fix}"
            print(printable(f"{each.state + ':':15}{each.about}: {each.says}{fix}"))
    raise typer.Exit(int(wrong))


def _everything() -> Iterator[Checked]:
    here = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info[:2] >= _LEAST
    fix = None if fine else f"install Python {'.'.join(map(str, _LEAST))} or newer"
    yield Checked("capemix", "good", f"{version('capemix')}, in {Path(__file__).parents[1]}")
    yield Checked("python", "good" if fine else "wrong", f"{here}, {sys.executable}", fix)
    yield _kernels()
    yield _randomness()
    yield _machine()
    for name, (what, fix) in _EXTRAS.items():
        there = find_spec(name) is not None
        says = f"{_version(name)}, for {what}" if there else f"only needed for {what}"
        yield Checked(
            name, "good" if there else "not installed", says, None if there else f"type {fix}"
        )
    yield from _state()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "of no known version"


def _kernels() -> Checked:
    """Whether a fast one runs, and does what its plain twin does."""
    if os.environ.get("CAPEMIX_KERNELS") == "plain":
        says = "the plain ones, as CAPEMIX_KERNELS asks: many times slower"
        return Checked("fast kernels", "wrong", says, "unset CAPEMIX_KERNELS")
    try:
        import numpy as np

        from capemix.kernels import fast, plain

        words = np.arange(12, dtype=np.uint64).reshape(6, 2)
        sums = []
        for kernels in (fast, plain):
            out = np.zeros((2, 2), dtype=np.uint64)
            kernels.half_sums(words, out)
            sums.append(out.tolist())
        same = sums[0] == sums[1]
    except Exception as error:  # whatever numba meets on a machine that it does not know
        return Checked(
            "fast kernels", "wrong", f"they do not run: {type(error).__name__}", "reinstall numba"
        )
    says = f"numba {_version('numba')}" if same else "they do not add up as the plain ones do"
    return Checked("fast kernels", "good" if same else "wrong", says)


def _randomness() -> Checked:
    """Whether the operating system gives a source of noise its key."""
    from capemix.randomness.source import SystemSource

    try:
        drawn = SystemSource().stream("doctor").words(4)
    except OSError as error:
        says = f"the operating system gives none: {error.strerror}"
        return Checked("randomness", "wrong", says, "make no release on this machine")
    assert len(set(drawn.tolist())) > 1
    return Checked("randomness", "good", "the operating system's, by AES-256 in counter mode")


def _machine() -> Checked:
    from capemix.kernels.machine import cores, memory

    return Checked("machine", "good", f"{cores()} cores, {memory() / 1e9:.3g} GB of memory")


def _state() -> Iterator[Checked]:
    """Ledger and key: where they are, and who may write or read them."""
    from capemix.errors import InputError
    from capemix.identity import OWN, identity_at
    from capemix.ledger import Ledger, default_path

    place = default_path()
    if not place.exists():
        says = f"none yet; it will be {place}"
        yield Checked("ledger", "good", says, "`capemix ledger set-limit` begins it")
    else:
        try:
            head = Ledger.open(place, create=False).verify()
            names = len(Ledger.open(place, create=False).accounts())
            says = f"{place}, of {names} names, head {head}"
            yield _kept(Checked("ledger", "good", says), place, stat.S_IWGRP | stat.S_IWOTH)
        except InputError as error:
            yield Checked("ledger", "wrong", str(error))
    key = place.with_name(f"{OWN}.key")
    if not key.exists():
        yield Checked("key", "good", "none yet", "the first release makes it, or `capemix key`")
        return
    try:
        said = Checked("key", "good", f"{key}, {identity_at(key).member}")
        yield _kept(said, key, stat.S_IRWXG | stat.S_IRWXO)
    except InputError as error:
        yield Checked("key", "wrong", str(error))


def _kept(good: Checked, place: Path, too_much: int) -> Checked:
    """The same, unless others may do with the file what only its owner should."""
    found = place.stat()
    if found.st_uid == os.getuid() and not found.st_mode & too_much:
        return good
    says = f"others may use {place}: it has the mode {stat.filemode(found.st_mode)}"
    return Checked(good.about, "wrong", says, f"type chmod go-rwx {place}, as its owner")
