"""Whatever one record is, in whatever file, at whatever place: adding it changes what its site adds
to a sum by that record's own bounded part, and changes nothing else that anyone can see.

Every path starts from bytes on disk, or from arrays and data frames as a user has them, and ends
with what leaves: a folder, an exit code, texts, messages to the relay. Readers and methods are
found by their registries: one that is added must be covered here.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import one_record as harness
from capemix import agent as agent_module
from capemix.agent import Agent, Holdings, ask, load_identity, new_identity
from capemix.api import Synthesizer
from capemix.cli import main
from capemix.cli import site as site_module
from capemix.data import READERS, LabeledRows, Table
from capemix.engines.flower.files import plan_text
from capemix.guarantee import Status
from capemix.ledger import Ledger
from capemix.moments import release_moments
from capemix.plan import make_moments_plan, make_plan
from capemix.plan.images import Images
from capemix.prepare.steps import PublicMap
from capemix.protocol import wire
from capemix.protocol.agreement import public_bytes
from capemix.protocol.chunks import LEAST_CHUNK
from capemix.protocol.coordinator import Run
from capemix.protocol.part import Part
from capemix.protocol.roster import Member, Roster
from capemix.synthesizers.names import SynthesizerName
from conftest import Capemix
from one_record import (
    SETTINGS,
    USUAL,
    WRITERS,
    Odd,
    Seen,
    Setting,
    compare,
    everywhere,
    folder_bytes,
    odd_lines,
    odd_records,
    records,
    watched,
    write_images,
    write_schema,
)

SEED = "7"
ORDINARY = Odd("ordinary", USUAL)
EVERY = [setting for settings in SETTINGS.values() for setting in settings]


def test_every_reader_is_held_to_the_property() -> None:
    assert set(WRITERS) == set(READERS)


def test_every_method_is_held_to_the_property() -> None:
    assert set(SETTINGS) == set(SynthesizerName)
    assert all(setting.synthesizer is name for name in SETTINGS for setting in SETTINGS[name])


# -- one curator, by the command line --------------------------------------------------------------


def synth(capemix: Capemix, folder: Path, suffix: str, setting: Setting, odd: Odd | None) -> Any:
    """`capemix synth` on a file with the odd record, watched."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rows = records() if odd is None else odd.among(records())
    data = folder / f"rows{suffix}"
    if setting.rows == "images":
        write_images(rows, data)
    else:
        WRITERS[suffix](rows, setting.columns, data)
    options = [*setting.options, "--no-ledger", "--json", "--test-seed", SEED, "--epsilon", "32"]
    if setting.rows == "table":
        options += ["--schema", str(write_schema(folder))]
    out = folder / "out"

    def run() -> list[Any]:
        ran = capemix(
            "synth", "--data", data, "--label", "y", "--out", out,
            "--synthesizer", str(setting.synthesizer), *options,
        )  # fmt: skip
        return [ran.code, ran.out, ran.err, folder_bytes(out) if out.exists() else None]

    return run


class Curator:
    """Runs of `capemix synth`, the one without the odd record made once for each setting."""

    def __init__(self, capemix: Capemix, folder: Path) -> None:
        self._capemix, self._folder = capemix, folder

    def run(self, suffix: str, setting: Setting, odd: Odd | None, first: Seen | None) -> Seen:
        with watched(first) as seen:
            seen.said += synth(self._capemix, self._folder / "run", suffix, setting, odd)()
        return seen

    def without(self, suffix: str, setting: Setting) -> Seen:
        """Where the number of records is public, an ordinary one stands in the odd one's place."""
        key = suffix, str(setting)
        if key not in _WITHOUT:
            instead = ORDINARY if setting.synthesizer.recordwise else None
            _WITHOUT[key] = self.run(suffix, setting, instead, None)
            assert _WITHOUT[key].said[0] == 0, _WITHOUT[key].said[2]
        return _WITHOUT[key]

    def check(self, suffix: str, setting: Setting, odd: Odd) -> None:
        without = self.without(suffix, setting)
        compare(without, self.run(suffix, setting, odd, without))


_WITHOUT: dict[tuple[str, str], Seen] = {}


@pytest.fixture
def curator(capemix: Capemix, tmp_path_factory: pytest.TempPathFactory) -> Curator:
    # One place for all runs: its name shows in what they say.
    return Curator(capemix, tmp_path_factory.getbasetemp())


LISTED = SETTINGS[SynthesizerName.MIXING][0]
DECLARED = SETTINGS[SynthesizerName.MOMENTS][3]


@pytest.mark.parametrize("suffix", WRITERS)
def test_any_record_in_any_file_changes_only_its_own_part(curator: Curator, suffix: str) -> None:
    for odd in odd_records():
        curator.check(suffix, LISTED, odd)


@pytest.mark.parametrize("suffix", [suffix for suffix in WRITERS if suffix != ".npz"])
def test_any_record_by_a_schema_changes_only_its_own_part(curator: Curator, suffix: str) -> None:
    for odd in odd_records():
        curator.check(suffix, DECLARED, odd)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_any_line_of_a_text_file_changes_only_its_own_part(curator: Curator, suffix: str) -> None:
    for odd in odd_lines():
        curator.check(suffix, LISTED, odd)


@pytest.mark.parametrize("setting", EVERY, ids=str)
def test_any_record_changes_only_its_own_part_by_any_method(
    curator: Curator, setting: Setting
) -> None:
    suffixes = [".npz"] if setting.rows == "images" else [".csv", ".parquet"]
    for turn, suffix in enumerate(suffixes, EVERY.index(setting)):
        for odd in everywhere()[turn % 3 :: 3]:  # each kind, at one place or another
            curator.check(suffix, setting, odd)
    if setting.rows != "images":
        for odd in odd_lines()[EVERY.index(setting) % 10 :: 10]:
            curator.check(".csv", setting, odd)


def test_a_record_of_no_site_and_of_another_changes_only_its_own_part(curator: Curator) -> None:
    """The sites' names are declared: a new one adds no site."""
    for setting in EVERY:
        if "place" in setting.options:
            for value in ("west", "", 3, None, "South", "south"):
                curator.check(".csv", setting, Odd("a place", {**USUAL, "place": value}))
                curator.check(".parquet", setting, Odd("a place", {**USUAL, "place": value}))
