"""What a release needs to go on after its coordinator died: a folder beside where it will be.

For each sum it has the journal of its run with the uploads that came, and the sum once it is made.
The coordinator saw all of this anyway. It is gone once the release is there, or has ended.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix import documents
from capemix.engines.flower.files import write_whole
from capemix.errors import InputError
from capemix.plan import Plan
from capemix.protocol.consents import CONSENTS, Consents, SumConsents
from capemix.protocol.roster import Roster
from capemix.protocol.wire import digest

_RELEASE: Final = "release.json"
_MADE: Final = "made.json"
_SUMS: Final = "sums.npy"


@dataclass(frozen=True)
class Begun:
    """Which release it is, for whom."""

    release: str
    plan: str
    roster: str


@dataclass(frozen=True)
class Made:
    """What came of a sum, beside the sum itself."""

    included: tuple[int, ...]
    seeded: bool
    lost: dict[str, str] = field(default_factory=dict)
    blamed: dict[str, str] = field(default_factory=dict)
    consents: SumConsents | None = None


class Unfinished:
    """The release at ``out``: a new one, or the one that was begun there with this plan."""

    def __init__(self, out: Path, plan: Plan, roster: Roster) -> None:
        self.folder = _beside(out)
        bound = digest(documents.as_json(plan)).hex(), roster.digest().hex()
        path = self.folder / _RELEASE
        self.goes_on = self.begun(out)
        """Whether a coordinator began it and died."""
        if not self.goes_on:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            begun = Begun(secrets.token_hex(16), *bound)
            write_whole(path, json.dumps(documents.as_json(begun)) + "\n")
        begun = documents.read(Begun, path, name="unfinished release")
        if (begun.plan, begun.roster) != bound:
            raise InputError(
                "out",
                "has beside it an unfinished release of another plan or roster",
                value=self.folder,
                fix="go on with that one, or give it up with capemix federate run --give-up",
            )
        self.release = bytes.fromhex(begun.release)
        self._roster = roster

    @staticmethod
    def begun(out: Path) -> bool:
        """Whether a release at ``out`` was begun and neither made nor ended."""
        return (_beside(out) / _RELEASE).exists()

    def sum_folder(self, number: int) -> Path:
        """Of the release's sums the one with this number: its journal, and the uploads to it."""
        folder = self.folder / str(number)
        folder.mkdir(exist_ok=True)
        return folder

    def made(self, number: int) -> tuple[npt.NDArray[np.floating[Any]], Made] | None:
        """A sum that was made before."""
        folder = self.sum_folder(number)
        if not (folder / _MADE).exists():
            return None
        return np.load(folder / _SUMS), documents.read(Made, folder / _MADE, name="sum")

    def keep(self, number: int, sums: npt.NDArray[np.floating[Any]], made: Made) -> None:
        """A sum is made: what it was made of can go."""
        folder = self.sum_folder(number)
        with (folder / _SUMS).open("wb") as file:
            np.save(file, sums)
            file.flush()
            os.fsync(file.fileno())
        write_whole(folder / _MADE, json.dumps(documents.as_json(made)) + "\n")
        for path in folder.iterdir():
            if path.name not in (_SUMS, _MADE):
                path.unlink()

    def beside(self) -> dict[str, str]:
        """What belongs to the release, by files' names: what its sites signed of each sum."""
        sums = sorted(self.folder.glob(f"*/{_MADE}"), key=lambda path: int(path.parent.name))
        made = [documents.read(Made, path, name="sum").consents for path in sums]
        found = Consents(self._roster, tuple(each for each in made if each is not None))
        return {CONSENTS: found.text()}

    def remove(self) -> None:
        shutil.rmtree(self.folder)


def _beside(out: Path) -> Path:
    return out.with_name(f".{out.name}.unfinished")
