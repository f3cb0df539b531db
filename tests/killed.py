"""Releases that are killed: a process of its own that forks, kills its children by their ids, and
reports what they left behind. Run as ``python killed.py FOLDER TIMES SEED``; prints JSON."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np

from capemix.api import synthesize
from capemix.data import LabeledRows
from capemix.errors import InputError
from capemix.ledger import Ledger, Limit
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import Plan
from capemix.release import read_release

LINEAGE = "people"
LIMIT = Limit(30.0, 1e-5)


def some_rows() -> LabeledRows:
    rng = np.random.default_rng(0)
    return LabeledRows(
        features=rng.random((300, 8)),
        labels=(np.arange(300) % 2).astype(np.int64),
        classes=("no", "yes"),
        feature_names=tuple("abcdefgh"),
    )


def a_plan() -> Plan:
    return plan_mixtures(
        width=8, class_sizes=(150, 150), samples=40, mixture=8, classes=("no", "yes")
    ).calibrate(0.5)


def release_until_killed(plan: Plan, rows: LabeledRows, ledger: Path, out: Path) -> None:
    """A release after another, from making the ledger on if it is not there."""
    lineage = Ledger.open(ledger).lineage(LINEAGE)
    lineage.set_limit(LIMIT)
    for number in range(1_000_000):
        made = synthesize(plan, rows, ledger=lineage.ledger, lineage=LINEAGE, threads=1)
        made.save(out / f"{os.getpid()}-{number}")


def charges(ledger: Path) -> int:
    """As the ledger shows them after a kill; its chain is whole, too."""
    if not ledger.exists():
        return 0
    opened = Ledger.open(ledger, create=False)
    opened.verify()
    known = opened.accounts().get(LINEAGE)
    return 0 if known is None else known.total.charges


def left_behind(folder: Path) -> tuple[int, int]:
    """How many folders, hidden ones included, read as a release, and how many do not; all go."""
    whole = partial = 0
    for found in folder.iterdir():
        try:
            read_release(found)
            whole += 1
        except InputError:
            partial += 1
            assert found.name.startswith("."), found  # nothing half-made under a release's name
        shutil.rmtree(found)
    return whole, partial


def main(folder: Path, times: int, seed: int) -> None:
    chance = random.Random(seed)
    plan, rows, out = a_plan(), some_rows(), folder / "out"
    out.mkdir()
    synthesize(plan, rows, threads=1).save(folder / "warm")  # what is slow the first time
    read_release(folder / "warm")
    begun = time.monotonic()
    warm = Ledger.open(folder / "warm.db")
    warm.set_limit(LINEAGE, LIMIT)
    synthesize(plan, rows, ledger=warm, lineage=LINEAGE, threads=1).save(folder / "counted")
    longest = 3 * (time.monotonic() - begun)  # enough for a ledger and two releases
    ledger, made = folder / "none.db", 0
    found = {"times": times, "under_counted": 0, "charges": 0, "releases": 0, "partial_folders": 0}
    instants = {"before a charge": 0, "after a charge, before its release": 0, "after both": 0}
    for number in range(times):
        if number % 5 == 0:
            ledger, made = folder / f"{number}.db", 0
        before = charges(ledger)
        child = os.fork()
        if child == 0:
            try:
                release_until_killed(plan, rows, ledger, out)
            except BaseException as error:
                print(error, file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        shown = charges(ledger)
        whole, partial = left_behind(out)
        made += whole
        found["under_counted"] += shown < made
        found["charges"] += shown - before
        found["releases"] += whole
        found["partial_folders"] += partial
        charged = shown - before
        instants[list(instants)[0 if not charged else 1 if whole < charged else 2]] += 1
    print(json.dumps({**found, "killed": instants}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
