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
import re
import shutil
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import ndtr

from agents import AgentsEngine
from capemix import agent as agent_module
from capemix import documents
from capemix.agent import ask
from capemix.api import Synthesizer, synthesize
from capemix.cli import main
from capemix.cli import site as site_module
from capemix.collector import Engine
from capemix.data import (
    READERS,
    Cells,
    LabeledRows,
    Table,
    UnlistedRows,
    open_cells,
    partition,
    readers,
)
from capemix.data import cells as cells_module
from capemix.data.arrays import cells_of_arrays, cells_of_columns
from capemix.data.cells import spelled, words_of
from capemix.data.rows import pixel_names
from capemix.engines.flower.files import plan_text
from capemix.engines.in_process import InProcessEngine
from capemix.engines.local import LocalEngine, list_threshold, listed_words
from capemix.errors import InputError
from capemix.facts import CLASS_LIST, Facts, map_of
from capemix.guarantee import Status
from capemix.identity import new_identity
from capemix.ledger import Ledger, Limit
from capemix.methods import BUILT_IN
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.image_diffusion import ImageDiffusion
from capemix.methods.measured import FINDS, list_failure
from capemix.methods.mixing import Mixing, Pool
from capemix.methods.tables import Tables
from capemix.plan import Plan, make_plan
from capemix.protocol import wire
from capemix.protocol.policy import Policy
from capemix.queries import Relation, Selection
from capemix.randomness.source import SeededSource, SystemSource
from capemix.release import Release
from capemix.run import run
from capemix.statistics import histograms
from capemix.sums import rows as rows_module
from capemix.sums.query import SumQuery
from capemix.sums.share import prepare_site, share_dtype
from capemix.sums.statistic import SummedRows
from capemix.sums.steps import Normalise, PublicMap
from capemix_research.baselines import RecordMethod, baseline_of
from conftest import Capemix
from one_record import (
    COLUMNS,
    FILES,
    SCHEMA,
    SETTINGS,
    SHAPE,
    USUAL,
    VALUES,
    WRITERS,
    Odd,
    Seen,
    Setting,
    as_numpy_has_it,
    cells_of,
    compare,
    everywhere,
    folder_bytes,
    odd_lines,
    odd_records,
    plain_array,
    records,
    signing,
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
    assert set(SETTINGS) == {*BUILT_IN, *RecordMethod}
    assert all(setting.method is name for name in SETTINGS for setting in SETTINGS[name])


# -- one curator, by the command line --------------------------------------------------------------


class Programs(NamedTuple):
    capemix: Capemix
    research: Capemix


UNLABELLED = {
    "label": None,
    "target": "b",
    "constraints": [{"kind": "inequality", "low": "a", "high": "b"}],
}


def synth(programs: Programs, folder: Path, suffix: str, setting: Setting, odd: Odd | None) -> Any:
    """`capemix synth`, or `capemix-research baseline`, on a file with the odd record."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rows = records() if odd is None else odd.among(records())
    data = folder / f"rows{suffix}"
    if setting.rows == "images":
        write_images(rows, data)
    else:
        WRITERS[suffix](rows, setting.columns, data)
    options = [*setting.options, "--no-ledger", "--json", "--test-seed", SEED, "--epsilon", "32"]
    if setting.rows in ("table", "unlabelled"):
        labelled = {} if setting.rows == "table" else UNLABELLED
        options += ["--schema", str(write_schema(folder, file=FILES.get(suffix), **labelled))]
    if setting.rows != "unlabelled":
        options += ["--label", "y"]
    out = folder / "out"

    def run() -> list[Any]:
        program, *method = (
            (programs.research, "baseline", "--method")
            if setting.recordwise
            else (programs.capemix, "synth", "--method")
        )
        place = ("--data", data) if setting.recordwise else (data, "--key", signing(folder))
        ran = program(*method, str(setting.method), *place, "--out", out, *options)
        return [ran.code, ran.out, ran.err, folder_bytes(out) if out.exists() else None]

    return run


class Curator:
    """Releases of a file, the one without the odd record made once for each setting."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        self._programs, self._folder = programs, folder

    def run(self, suffix: str, setting: Setting, odd: Odd | None, first: Seen | None) -> Seen:
        with watched(first) as seen:
            seen.said += synth(self._programs, self._folder / "run", suffix, setting, odd)()
        return seen

    def without(self, suffix: str, setting: Setting) -> Seen:
        """Where the number of records is public, an ordinary one stands in the odd one's place."""
        key = suffix, str(setting)
        if key not in _WITHOUT:
            instead = ORDINARY if setting.recordwise else None
            _WITHOUT[key] = self.run(suffix, setting, instead, None)
            assert _WITHOUT[key].said[0] == 0, _WITHOUT[key].said[2]
        return _WITHOUT[key]

    def check(self, suffix: str, setting: Setting, odd: Odd) -> None:
        without = self.without(suffix, setting)
        compare(without, self.run(suffix, setting, odd, without))


_WITHOUT: dict[tuple[str, str], Seen] = {}


@pytest.fixture
def curator(
    capemix: Capemix, research: Capemix, tmp_path_factory: pytest.TempPathFactory
) -> Curator:
    # One place for all runs: its name shows in what they say.
    return Curator(Programs(capemix, research), tmp_path_factory.getbasetemp())


LISTED = SETTINGS["mixing"][0]
DECLARED = SETTINGS["class-gaussian"][3]


FEWER = {".csv.gz": 4, ".tsv": 8, ".txt": 4}
"""These have the reader of .csv."""


@pytest.mark.parametrize("suffix", [suffix for suffix in WRITERS if suffix not in FILES])
def test_any_record_in_any_file_changes_only_its_own_part(curator: Curator, suffix: str) -> None:
    for odd in odd_records()[:: FEWER.get(suffix, 1)]:
        curator.check(suffix, LISTED, odd)


@pytest.mark.parametrize("suffix", [suffix for suffix in WRITERS if suffix != ".npz"])
def test_any_record_by_a_schema_changes_only_its_own_part(curator: Curator, suffix: str) -> None:
    """A number that may be missing, too."""
    holes = [
        Odd(f"{name} as b", {**USUAL, "b": VALUES[name]}, place=at % 3 / 2)
        for at, name in enumerate(("text", "missing", "nothing", "NaN", "a date", "1e400"))
    ]
    for odd in [*odd_records(), *holes][:: FEWER.get(suffix, 1)]:
        curator.check(suffix, DECLARED, odd)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_any_line_of_a_text_file_changes_only_its_own_part(curator: Curator, suffix: str) -> None:
    for odd in odd_lines()[:: 4 if suffix == ".csv.gz" else 1]:
        curator.check(suffix, LISTED, odd)


def test_any_line_changes_only_its_own_part_where_every_line_is_a_record(curator: Curator) -> None:
    """Whatever its quotes are: nothing is refused, and no line is taken for a part of another."""
    stray = [Odd("a stray quote", USUAL, line.replace(b",", b";")) for line in STRAY]
    for odd in [*odd_lines()[::6], *stray]:
        curator.check(".txt", DECLARED, odd)


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


# -- one curator, from Python ----------------------------------------------------------------------

STRAY = [b'"1,2,1', b'1"2,2,1', b'1,2,1"', b'1,2,"', b'"a \\" b",2,1']
"""Quotes that no CSV writer leaves."""

STRAY_WITH_RECORDS = [b'"a \\",\n3,3,1\n\\",c",1', b'5" x,"\n3,3,1\n",1']

FEATURES = ["a", "b"]


def column(rows: list[Any], name: str) -> list[Any]:
    return [cells_of(row, name) for row in rows]


def as_frame(rows: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({name: column(rows, name) for name in COLUMNS})


SHAPES: dict[str, Callable[[list[Any]], tuple[Any, ...]]] = {
    "lists": lambda rows: (
        [[cells_of(row, name) for name in FEATURES] for row in rows],
        column(rows, "y"),
    ),
    "arrays": lambda rows: (
        as_numpy_has_it([[cells_of(row, name) for name in FEATURES] for row in rows]),
        as_numpy_has_it(column(rows, "y")),
    ),
    "a data frame": lambda rows: (as_frame(rows)[FEATURES], as_frame(rows)["y"]),
}
TABLES: dict[str, Callable[[list[Any]], tuple[Any, Any]]] = {
    "columns": lambda rows: ({name: column(rows, name) for name in COLUMNS}, column(rows, "y")),
    "a data frame": lambda rows: (as_frame(rows), as_frame(rows)["y"]),
}


def fitted(
    folder: Path,
    shape: Callable[[list[Any]], Any],
    odd: Odd | None,
    first: Seen | None,
    **asked: Any,
) -> Seen:
    rows: list[Any] = records() if odd is None else odd.among(records())
    with watched(first) as seen, warnings.catch_warnings():
        warnings.simplefilter("error")
        if asked.get("method") in set(RecordMethod):
            release = one_by_one(*shape(rows), **asked)
        else:
            release = Synthesizer(32.0, test_seed=7, **asked).fit(*shape(rows)).release_
        shutil.rmtree(folder, ignore_errors=True)
        seen.said += [folder_bytes(release.save(folder)), list(release.facts.listed)]
    return seen


def one_by_one(X: Any, y: Any, *, method: str, classes: Any, **asked: Any) -> Release:
    cells = cells_of_arrays(X, y)
    rows = UnlistedRows.of(cells, cells.label).listed(tuple(classes))
    return baseline_of(method, rows, epsilon=32.0, source=SeededSource(7), **asked)


MIXING = {"method": "mixing", "mixture": 4, "samples": 20}
CODED = documents.from_json(Table, SCHEMA, name="schema")
FITTED: dict[str, tuple[dict[str, Callable[[list[Any]], Any]], dict[str, Any]]] = {
    "mixing, listed": (SHAPES, MIXING | {"classes": [0, 1]}),
    "mixing, with a range": (SHAPES, MIXING | {"classes": [0, 1], "public_range": (-4, 4)}),
    "mixing, not listed": (SHAPES, MIXING),
    "mixing of all classes": (
        SHAPES,
        MIXING | {"classes": [0, 1], "pool": "all", "label_noise": True},
    ),
    "class-gaussian, listed": (SHAPES, {"method": "class-gaussian", "classes": [0, 1]}),
    "class-gaussian, not listed": (SHAPES, {"method": "class-gaussian"}),
    "class-gaussian, by a schema": (TABLES, {"method": "class-gaussian", "schema": CODED}),
    "tables, not listed": (SHAPES, {"method": "tables"}),
    "tables, by a schema": (TABLES, {"method": "tables", "schema": CODED}),
    "tables, no label": (
        {"a data frame": lambda rows: (as_frame(rows),)},
        {"method": "tables", "schema": replace(CODED, label=None)},
    ),
    "one by one": (SHAPES, {"method": "local-perturbation", "classes": [0, 1]}),
    "one by one, projected": (
        SHAPES,
        {"method": "random-projection", "classes": [0, 1], "projection": 1},
    ),
}


def test_every_method_of_rows_in_memory_is_held_to_the_property() -> None:
    """Those of images are for images, which arrays of rows by columns are not."""
    found = {asked["method"] for _, asked in FITTED.values()}
    assert found == {*BUILT_IN, *RecordMethod} - {"image-clusters", "image-diffusion"}


@pytest.mark.parametrize("way", FITTED)
def test_any_record_in_memory_changes_only_its_own_part(tmp_path: Path, way: str) -> None:
    shapes, asked = FITTED[way]
    odds = odd_records() if way == "mixing, with a range" else everywhere() * 2
    for turn, shape in enumerate(shapes.values()):
        instead = ORDINARY if way.startswith("one by one") else None
        without = fitted(tmp_path / "out", shape, instead, None, **asked)
        for odd in odds[turn::3]:
            compare(without, fitted(tmp_path / "out", shape, odd, without, **asked))


# -- every sum of a program, through engines -------------------------------------------------------


def rows_with(odd: Odd | None, kind: str, count: int = 40) -> UnlistedRows | LabeledRows:
    """Records in memory with the odd one: their labels as they come, or coded by a schema."""
    rows: list[Any] = records(count) if odd is None else odd.among(records(count))
    if kind in ("table", "unlabelled"):
        frame = as_frame(rows)
        schema = CODED if kind == "table" else replace(CODED, label=None, target="b")
        return schema.rows(cells_of_columns(frame, schema.names, schema.label_name))
    names: tuple[str, ...] = ("a", "b")
    cells = [[cells_of(row, name) for name in names] for row in rows]
    if kind == "images":
        rng, names = np.random.default_rng(3), pixel_names(SHAPE)
        plain = iter(rng.integers(0, 255, (count, 64)).tolist())
        cells = [
            [row.record["a"], *[7] * 63] if isinstance(row, Odd) else next(plain) for row in rows
        ]
    read = cells_of_arrays(cells, column(rows, "y"))
    found, shape = UnlistedRows.of(read, read.label), SHAPE if kind == "images" else None
    return replace(found, feature_names=names, label_name="y", image_shape=shape)


class Program(NamedTuple):
    """A method, with what is declared for it."""

    method: Mixing | ClassGaussian | Tables | ImageClusters | ImageDiffusion
    normalise: Normalise | None = None
    sizes: tuple[int, ...] | None = None
    rows: str = "numbers"
    listed: bool = True


DRAWN = Mixing(samples=20, mixture=4)
OF_NUMBERS, OF_PIXELS = PublicMap.of_range(-4, 4), PublicMap.of_range(0, 255)

PROGRAMS: dict[str, Program] = {
    "mixing, declared": Program(DRAWN, OF_NUMBERS, (20, 20)),
    "mixing, sizes measured": Program(DRAWN, OF_NUMBERS),
    "mixing, all measured": Program(DRAWN),
    "mixing, not listed": Program(DRAWN, listed=False),
    "mixing, drawn anew": Program(replace(DRAWN, redraw=30)),
    "mixing, all classes": Program(replace(DRAWN, pool=Pool.ALL, label_noise=True)),
    "class-gaussian, declared": Program(ClassGaussian(samples=30), OF_NUMBERS, (20, 20)),
    "class-gaussian, sizes asked for": Program(ClassGaussian(), OF_NUMBERS),
    "class-gaussian, all measured": Program(ClassGaussian()),
    "class-gaussian, not listed": Program(ClassGaussian(), listed=False),
    "class-gaussian, by a schema": Program(ClassGaussian(), rows="table"),
    "tables, by Gaussians": Program(Tables(samples=30), OF_NUMBERS, (20, 20)),
    "tables, by pairs": Program(Tables(samples=30), OF_NUMBERS, (20_000, 20_000)),
    "tables, all measured": Program(Tables()),
    "tables, not listed": Program(Tables(), listed=False),
    "tables, by a schema": Program(Tables(), rows="table"),
    "tables, pairs by a schema": Program(Tables(samples=30), sizes=(9000, 9000), rows="table"),
    "tables, pairs without a label": Program(
        Tables(samples=30), sizes=(18_000,), rows="unlabelled"
    ),
    "image-clusters": Program(ImageClusters(samples=30, deskew=True), OF_PIXELS, rows="images"),
    "image-clusters, soft labels": Program(
        ImageClusters(samples=30, soft_labels=True), OF_PIXELS, rows="images"
    ),
    "image-diffusion": Program(
        ImageDiffusion(samples=30, rounds=2, channels=4, noises=1, warm_steps=1),
        OF_PIXELS,
        rows="images",
    ),
}

ENGINES: dict[str, Callable[[Any], Engine]] = {
    "one curator": lambda rows: LocalEngine(rows, SeededSource(7)),
    "three sites": lambda rows: LocalEngine(rows, SeededSource(7)),
    "every message": lambda rows: InProcessEngine(rows, SeededSource(7)),
}


def test_every_program_and_every_opening_sum_is_held_to_the_property() -> None:
    assert {program.method.kind for program in PROGRAMS.values()} == set(BUILT_IN)
    opened = {
        line.name for name in PROGRAMS for line in planned(PROGRAMS[name], "one curator").opening
    }
    assert opened == set(FINDS)


@cache
def planned(program: Program, engine: str) -> Plan:
    rows = rows_with(None, program.rows)
    if program.listed and isinstance(rows, UnlistedRows):
        rows = rows.listed((0, 1))
    who: dict[str, Any] = {"scheme": "cape", "sites": SITES, "colluding": 1}
    return make_plan(
        Facts.of(rows, class_sizes=program.sizes, normalise=program.normalise),
        program.method,
        **({} if engine == "one curator" else who),
    ).calibrate(32.0)


def carried_out(program: Program, engine: str, odd: Odd | None, first: Seen | None) -> Seen:
    """The whole release, by rows in which the odd record is at the first site."""
    rows = rows_with(odd, program.rows)
    if program.listed and isinstance(rows, UnlistedRows):
        rows = rows.listed((0, 1))
    given: Any = rows
    if engine != "one curator":
        given = [rows, *[plain_rows_of(program)] * 2]
    with watched(first) as seen:
        release = run(planned(program, engine), ENGINES[engine](given))
        asked = [name for name in release.plan.names if name != CLASS_LIST]  # type: ignore[attr-defined]
        assert len(seen.prepared) == len(asked) * (1 if engine == "one curator" else SITES)
        soft = release.soft_labels
        seen.said += [
            release.features.tobytes(),
            release.labels.tobytes(),
            None if soft is None else soft.tobytes(),
            release.manifest({}).text(),
        ]
    return seen


@cache
def plain_rows_of(program: Program) -> LabeledRows:
    rows = rows_with(None, program.rows, 20)
    return rows.listed((0, 1)) if isinstance(rows, UnlistedRows) else rows


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_record_changes_only_its_own_part_of_each_sum_of_a_program(
    name: str, engine: str
) -> None:
    program = PROGRAMS[name]
    if not program.listed and engine != "one curator":
        with pytest.raises(InputError, match="classes must be declared"):
            planned(program, engine)
        return
    without = carried_out(program, engine, None, None)
    turn = (*PROGRAMS,).index(name) + (*ENGINES,).index(engine)
    step = 12 if program.rows == "images" else 3
    for odd in everywhere()[turn % 3 :: step]:
        compare(without, carried_out(program, engine, odd, without))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_measured_fact_that_looks_at_several_records_is_found(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values over the largest there is: one record moves everybody's."""
    program = PROGRAMS["class-gaussian, all measured"]
    right = histograms.normalise_rows
    far = Odd("far", {**USUAL, "a": 100.0})

    def wrong(features: Any, how: Any) -> Any:
        return right(features, how) / max(float(np.abs(features).max(initial=1e-9)), 1e-9)

    without = carried_out(program, engine, None, None)
    compare(without, carried_out(program, engine, far, without))
    monkeypatch.setattr(histograms, "normalise_rows", wrong)
    without = carried_out(program, engine, None, None)
    with pytest.raises(AssertionError, match="a sum has changed by too much"):
        compare(without, carried_out(program, engine, far, without))


def test_a_measured_fact_with_less_than_its_bound_of_noise_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a record adds to a histogram of sizes, without the bound that its noise is for."""
    program = PROGRAMS["class-gaussian, all measured"]
    without = carried_out(program, "one curator", None, None)
    monkeypatch.setattr(
        histograms, "bounded_rows", lambda rows, _bound, lattice: np.full(rows.shape, lattice)
    )
    with pytest.raises(AssertionError):
        compare(without, carried_out(program, "one curator", ORDINARY, without))


# -- a site's agent --------------------------------------------------------------------------------

SITES = 3
NUMBER = (1).to_bytes(16, "big")


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The members' keys, their roster and a policy, as files."""
    folder = tmp_path_factory.mktemp("members")
    names = ["coordinator", *(f"site{site}" for site in range(SITES))]
    for name in names:
        new_identity(name, folder)
    found = [json.loads((folder / f"{name}.json").read_text()) for name in names]
    (folder / "roster.json").write_text(json.dumps({"coordinator": found[0], "sites": found[1:]}))
    policy = {
        "max_epsilon": 9.0,
        "total_epsilon": 20.0,
        "least_sites": SITES,
        "methods": list(BUILT_IN),
    }
    (folder / "policy.json").write_text(json.dumps(policy))
    return folder


KINDS = {
    "mixing": PROGRAMS["mixing, declared"],
    "mixing, measured": PROGRAMS["mixing, all measured"],
    "class-gaussian": PROGRAMS["class-gaussian, sizes asked for"],
    "class-gaussian, measured": PROGRAMS["class-gaussian, all measured"],
    "class-gaussian by a schema": PROGRAMS["class-gaussian, by a schema"],
    "tables": PROGRAMS["tables, by pairs"],
    "tables by a schema": PROGRAMS["tables, by a schema"],
    "image-clusters": PROGRAMS["image-clusters, soft labels"],
    "image-diffusion": PROGRAMS["image-diffusion"],
}


@cache
def proposed(kind: str) -> Plan:
    """For three sites, within their policy."""
    program = KINDS[kind]
    facts = Facts.of(plain_rows_of(program), class_sizes=program.sizes, normalise=program.normalise)
    who: dict[str, Any] = {"scheme": "cape", "sites": SITES, "colluding": 1}
    return make_plan(facts, program.method, **who).calibrate(8.0)


def test_every_federated_method_is_held_to_the_property() -> None:
    assert {proposed(kind).method.kind for kind in KINDS} == set(BUILT_IN)


@contextlib.contextmanager
def serving(members: Path, folder: Path, data: Path, plan: Path | None) -> Iterator[Path]:
    """`capemix site serve` for the first site, in a thread."""
    place = folder / "socket"
    words = [
        "site", "serve", "--number", 0, "--identity", members / "site0.key",
        "--roster", members / "roster.json", "--policy", members / "policy.json",
        "--data", data, "--label", "y", "--lineage", "rows", "--new-lineage",
        "--ledger", folder / "ledger.db", "--socket", place, "--test-seed", 7,
        *(() if plan is None else ("--plan", plan)),
    ]  # fmt: skip
    started: queue.Queue[Any] = queue.Queue()
    listen = agent_module.serve

    def noted(*args: Any) -> Any:
        server = listen(*args)
        started.put(server)
        return server

    def run() -> None:
        try:
            main()
        except SystemExit as stopped:
            started.put(stopped)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_module, "serve", noted)
        patch.setattr(site_module.signal, "signal", lambda *_: None)  # for a main thread
        patch.setattr(sys, "argv", ["capemix", *map(str, words)])
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        server = started.get(timeout=60)
        assert not isinstance(server, SystemExit), "the agent did not start"
        yield place
        threading.Thread(target=server.shutdown, daemon=True).start()  # it takes half a second


class Relay:
    """Carries a coordinator's messages to the served agent, and to two others that are plain; and
    keeps what the served one said, and its uploads."""

    def __init__(self, engine: AgentsEngine, place: Path) -> None:
        self._engine, self._place = engine, place
        self.said: list[Any] = []
        self.uploads: list[bytearray] = []
        """What the served site uploaded, a sum each, masked."""
        engine.carry = self.carry

    def carry(self, site: int, raw: bytes) -> bytes:
        if site:
            return self._engine.agents[site].answer(raw)
        reply = ask(self._place, raw)
        if wire.parse(raw).round == "chunk":
            self.uploads[-1] += reply
            return reply
        message = wire.parse(reply)
        if message.round == "upload":  # its digests are of what the record may change
            self.uploads.append(bytearray())
            self.said.append({k: v for k, v in message.body.items() if k != "chunks"})
        else:
            self.said.append(reply)
        return reply


def federated(
    members: Path, base: Path, kind: str, suffix: str, odd: Odd | None, first: Seen | None
) -> tuple[Seen, list[npt.NDArray[Any]]]:
    """A release of three sites, of which the first is served from a file with the odd record."""
    plan, program = proposed(kind), KINDS[kind]
    folder = Path(tempfile.mkdtemp(dir=base))
    rows = records() if odd is None else odd.among(records())
    data, plan_file = folder / f"rows{suffix}", None
    if program.rows == "images":
        write_images(rows, data)
    else:
        WRITERS[suffix](rows, COLUMNS if program.rows == "table" else ("a", "b", "y"), data)
    if program.rows == "table":
        plan_file = folder / "plan.json"
        plan_file.write_text(plan_text(plan))
    policy = documents.read(Policy, members / "policy.json", name="policy")
    with watched(first) as seen, serving(members, folder, data, plan_file) as place:
        engine = AgentsEngine(
            folder / "others", policy, [plain_rows_of(program)] * SITES, seed=7, members=members
        )
        relay = Relay(engine, place)
        release = run(plan, engine)
        assert engine.included == tuple(range(SITES)), engine.lost
        seen.said += [release.features.tobytes(), documents.as_json(release.plan)]
    seen.said += relay.said
    made = release.plan
    assert isinstance(made, Plan)
    words = [share_dtype(query) for query in made.queries()]
    return seen, [
        np.frombuffer(bytes(each), dtype=word)
        for each, word in zip(relay.uploads, words, strict=True)
    ]


OF_AGENTS: dict[str, dict[str, list[Odd]]] = {
    "mixing": {
        ".csv": [*everywhere()[::2], *odd_lines()[::8]],
        ".parquet": [*everywhere()[1::2], *odd_records()[::9]],
    },
    "mixing, measured": {".parquet": everywhere()[::5]},
    "class-gaussian": {".csv": everywhere()[::6]},
    "class-gaussian, measured": {".csv": everywhere()[2::5]},
    "class-gaussian by a schema": {".parquet": everywhere()[1::6]},
    "tables": {".csv": everywhere()[3::6]},
    "tables by a schema": {".parquet": everywhere()[5::6]},
    "image-clusters": {".npz": everywhere()[:1]},
    "image-diffusion": {".npz": everywhere()[1:2]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_record_of_a_served_site_changes_only_its_own_part(
    members: Path, tmp_path: Path, kind: str
) -> None:
    for suffix, odds in OF_AGENTS[kind].items():
        without, uploads = federated(members, tmp_path, kind, suffix, None, None)
        for odd in odds:
            seen, uploaded = federated(members, tmp_path, kind, suffix, odd, without)
            compare(without, seen)
            compare_uploads(without, uploads, seen, uploaded)


def compare_uploads(
    without: Seen, before: list[npt.NDArray[Any]], seen: Seen, after: list[npt.NDArray[Any]]
) -> None:
    """Where every record takes part, an upload differs by what its site prepared, in the ring: the
    noise and the masks are the same."""
    assert [each.shape for each in before] == [each.shape for each in after]
    for at, (old, new) in enumerate(zip(before, after, strict=True)):
        (_, had), (_, has) = without.prepared[SITES * at], seen.prepared[SITES * at]
        if isinstance(had, SummedRows) and isinstance(has, SummedRows):
            moved = (has.sums - had.sums).reshape(-1).astype(old.dtype)
            assert (new - old == moved).all(), "an upload has changed by something else"


# -- lists that are paid for -----------------------------------------------------------------------


@cache
def list_sum() -> tuple[SumQuery, float]:
    """The sum that finds a list, and the part of delta that may fail."""
    facts = Facts(("a", "b"), "y", None, normalise=OF_NUMBERS)
    plan = make_plan(facts, ClassGaussian()).calibrate(10.0)
    return plan.query(CLASS_LIST), list_failure(plan.opening, plan.delta)


def chance_to_pass(unit: int, deviation: float, threshold: int) -> float:
    """That a count of one record, with rounded Gaussian noise, reaches the threshold: exactly."""
    return float(ndtr(-(threshold - unit - 0.5) / deviation))


def test_a_label_that_one_record_has_shows_with_no_more_than_its_part_of_delta() -> None:
    query, failure = list_sum()
    unit, deviation = query.lattice_norm_bound, query.site_deviation
    assert unit is not None
    threshold = list_threshold(unit, deviation, failure)
    assert 0.9 * failure / 2 < chance_to_pass(unit, deviation, threshold) <= failure / 2
    # A threshold that forgets the record's own count lets three times as much through.
    assert chance_to_pass(unit, deviation, threshold - unit) > 3 * failure / 2


def test_a_rare_label_stays_unknown_and_common_ones_are_found() -> None:
    query, failure = list_sum()
    column = np.array(["often"] * 400 + ["common"] * 300 + ["once"])
    for seed in range(200):
        found = listed_words(words_of(column), query, failure, SeededSource(seed))
        assert set(found) == {"often", "common"}
        assert abs(found["often"] - 400) < 6 * query.site_deviation / (
            query.lattice_norm_bound or 1
        )


def test_labels_that_are_all_different_give_no_list() -> None:
    X, y = np.zeros((890, 2)), np.arange(890) / 7
    with pytest.raises(InputError, match="class list could not be found"):
        Synthesizer(1.0, test_seed=0).fit(X, y)


# -- what is read from rows says so ----------------------------------------------------------------


def drafted(capemix: Capemix, folder: Path, odd: Odd | None) -> dict[str, Any]:
    """A release by a schema that was drafted from the rows: what its manifest promises."""
    folder.mkdir()
    rows = records() if odd is None else odd.among(records())
    WRITERS[".csv"](rows, COLUMNS, folder / "rows.csv")
    schema = folder / "schema.json"
    ran = capemix("schema", "draft", folder / "rows.csv", "--label", "y", "--out", schema)
    assert ran.code == 0, ran.err
    ran = capemix(
        "synth", folder / "rows.csv", "--schema", schema, "--method", "class-gaussian",
        "--epsilon", "4", "--no-ledger", "--json", "--out", folder / "out",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads((folder / "out" / "manifest.json").read_text())
    return found["guarantee"]


def check_drafts(capemix: Capemix, folder: Path) -> None:
    """A record may widen a draft: then nothing is promised of it, with or without that record."""
    for at, odd in enumerate(
        (None, Odd("far", {**USUAL, "a": 1e6}), Odd("new", {**USUAL, "y": 2}))
    ):
        found = drafted(capemix, folder / str(at), odd)
        assert found["status"] == Status.FROM_ROWS
        assert any("was read from the rows" in each for each in found["assumptions"])


def test_a_release_by_a_draft_promises_nothing(capemix: Capemix, tmp_path: Path) -> None:
    check_drafts(capemix, tmp_path)


def check_as_they_come() -> None:
    X, y = np.zeros((40, 2)), np.arange(40) % 2
    rows = UnlistedRows.of(cells_of_arrays(X, y), "label").as_they_come()
    facts = Facts.of(rows, normalise=PublicMap.of_range(0, 1))
    plan = make_plan(facts, Mixing(mixture=4, samples=20, clip=1.0)).calibrate(4.0)
    release = synthesize(plan, rows, source=SystemSource())
    assert release.guarantee.status is Status.FROM_ROWS


def test_a_release_of_rows_as_they_come_promises_nothing() -> None:
    check_as_they_come()


# -- wrong laws: each old rule, put back, is found -------------------------------------------------


def typed_by_their_column(self: UnlistedRows, classes: Any, _read: Any = ()) -> LabeledRows:
    """Labels are numbers if all of them are, and text otherwise."""
    words = self.words.distinct
    whole = all(word.isdigit() for word in words)
    values = {word: int(word) if whole else word for word in words}
    places = {word: classes.index(value) for word, value in values.items() if value in classes}
    labels = self.words.codes(places)
    kept = (labels >= 0) & self.fits()
    return LabeledRows(self.features[kept], labels[kept], classes, self.feature_names, "y")


def refused_for_one(self: UnlistedRows, classes: Any, read: Any = ()) -> LabeledRows:
    """A file with a row that does not fit is refused."""
    rows = LISTED_RIGHTLY(self, classes, read)
    if rows.unfit:
        raise InputError("rows", "hold a value that is no number", fix="drop that row")
    return rows


LISTED_RIGHTLY = UnlistedRows.listed
TEXT = Odd("text as y", {**USUAL, "y": "unknown"})
NOT_A_NUMBER = Odd("NaN as a", {**USUAL, "a": math.nan})


@pytest.mark.parametrize(
    ("wrong", "odd"),
    [(typed_by_their_column, TEXT), (refused_for_one, TEXT), (refused_for_one, NOT_A_NUMBER)],
)
def test_labels_by_their_column_and_refusals_for_one_row_are_found(
    curator: Curator, monkeypatch: pytest.MonkeyPatch, wrong: Any, odd: Odd
) -> None:
    curator.check(".csv", LISTED, odd)
    monkeypatch.setattr(UnlistedRows, "listed", wrong)
    with pytest.raises(AssertionError):
        curator.check(".csv", LISTED, odd)


def test_labels_by_their_column_are_found_at_an_agent(
    members: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnlistedRows, "listed", typed_by_their_column)
    without, _ = federated(members, tmp_path, "mixing", ".csv", None, None)
    seen, _ = federated(members, tmp_path, "mixing", ".csv", TEXT, without)
    with pytest.raises(AssertionError, match="another record's row has changed"):
        compare(without, seen)


def test_a_column_that_one_text_makes_text_is_found(
    curator: Curator, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = cells_module.numbers_of

    def wrong(column: Any) -> Any:
        found = right(column)
        return np.full_like(found, np.nan) if np.isnan(found).any() else found

    odd = Odd("text as a", {**USUAL, "a": "unknown"})
    curator.check(".parquet", LISTED, odd)
    monkeypatch.setattr(cells_module, "numbers_of", wrong)
    with pytest.raises(AssertionError):
        curator.check(".parquet", LISTED, odd)


@pytest.mark.parametrize("line", [*STRAY, *STRAY_WITH_RECORDS])
def test_quotes_after_which_nobody_can_tell_where_a_record_ends_are_refused(
    capemix: Capemix, tmp_path: Path, line: bytes
) -> None:
    """In front of the owner, and without a cell: a writer that escapes quotes by a backslash would
    make many records of one."""
    data = tmp_path / "rows.csv"
    WRITERS[".csv"](Odd("a quote", USUAL, line).among(records()), ("a", "b", "y"), data)
    ran = capemix(
        "synth", data, "--label", "y", "--classes", "0,1", "--epsilon", "8",
        "--no-ledger", "--out", tmp_path / "out",
    )  # fmt: skip
    assert ran.code == 2
    assert "has a quote that is left open, or that stands inside a cell, or a backslash" in ran.err
    assert "(got" not in ran.err
    assert not (tmp_path / "out").exists()


def test_a_cell_that_is_read_as_further_records_is_found(
    curator: Curator, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Odd("a record inside", {**USUAL, "y": "\n0.5,0.5,1\n0.5,0.5,1\n"})
    curator.check(".csv", LISTED, odd)
    lines = re.compile(rb"[^\n]*(?=\n)")
    monkeypatch.setattr(readers, "record_of", lambda _between: lines)
    with pytest.raises(AssertionError):
        curator.check(".csv", LISTED, odd)


class NoneFixed:
    """Stands in for the kinds of selection: none of them is fixed."""

    FIXED = None


def fixed_size(sites: Sequence[LabeledRows], **counted: Any) -> Status:
    facts = Facts.of(sites[0], class_sizes=(4, 4), normalise=OF_NUMBERS)
    method = Mixing(samples=4, mixture=2, selection=Selection.FIXED, clip=1.0)
    plan = make_plan(facts, method, scheme="conventional", sites=len(sites)).calibrate(8.0)
    return synthesize(plan, sites, **counted).guarantee.status


def test_sites_that_are_dealt_here_promise_nothing_of_fixed_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record that no longer fits would deal all others anew, and a fixed number is drawn from
    each site's rows."""
    whole = plain_rows_of(PROGRAMS["mixing, declared"])
    dealt = partition(whole, 2, "iid", seed=0)
    assert fixed_size(dealt) is Status.FROM_ROWS
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.lineage("rows").set_limit(Limit(99.0, 1e-5, Relation.REPLACE_ONE))
    with pytest.raises(InputError, match="which site has which record was read from the rows"):
        fixed_size(dealt, ledger=ledger, lineage="rows")
    assert fixed_size([whole, whole]) is Status.GUARANTEE  # as they lie at their sites
    monkeypatch.setattr("capemix.engines.local.Selection", NoneFixed)
    assert fixed_size(dealt) is Status.GUARANTEE  # the wrong law


def test_no_budget_pays_for_what_was_read_from_rows(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.lineage("rows").set_limit(Limit(8.0, 1e-5, Relation.ADD_REMOVE))
    program = PROGRAMS["class-gaussian, by a schema"]
    rows = replace(plain_rows_of(program), read_from_rows=("the class list",))
    plan = make_plan(Facts.of(rows, normalise=map_of(CODED)), ClassGaussian()).calibrate(4.0)
    with pytest.raises(InputError, match="cannot pay: the class list was read from the rows"):
        synthesize(plan, rows, source=SystemSource(), ledger=ledger, lineage="rows")
    assert ledger.lineage("rows").account().total.charges == 0


def test_sites_counted_in_the_rows_are_found(
    curator: Curator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(cells: Cells, column: str, _names: Any) -> list[Cells]:
        words = cells.words(column)
        return [
            cells.take(np.flatnonzero(words.positions == at)) for at in range(len(words.distinct))
        ]

    by_place = next(setting for setting in EVERY if "place" in setting.options)
    odd = Odd("another place", {**USUAL, "place": "west"})
    curator.check(".csv", by_place, odd)
    monkeypatch.setattr("capemix.data.by_site", wrong)
    with pytest.raises(AssertionError):
        curator.check(".csv", by_place, odd)


def test_a_draft_that_passes_for_declared_is_found(
    capemix: Capemix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Table, "read_from_rows", ())
    with pytest.raises(AssertionError):
        check_drafts(capemix, tmp_path)


def test_a_class_list_read_from_rows_that_passes_for_declared_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("capemix.engines.local.read_from_rows_of", lambda *_: ())
    with pytest.raises(AssertionError):
        check_as_they_come()


def test_a_list_without_a_threshold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capemix.engines.local.list_threshold", lambda *_: 0)
    with pytest.raises(AssertionError):
        test_a_rare_label_stays_unknown_and_common_ones_are_found()


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making rows ready fails if one of them is far away: some error that nobody foresaw."""
    right = rows_module.normalise_rows

    def failing(features: Any, how: Any) -> Any:
        if (np.abs(features) > 1e300).any():
            raise ArithmeticError("unforeseen")
        return right(features, how)

    monkeypatch.setattr(rows_module, "normalise_rows", failing)


FAR = Odd("1e308 as b", {**USUAL, "b": 1e308})


@pytest.mark.usefixtures("fragile")
def test_an_unforeseen_error_costs_the_record_and_not_its_site(
    curator: Curator, members: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = SETTINGS["mixing"][2]
    curator.check(".csv", declared, FAR)
    without, _ = federated(members, tmp_path, "mixing", ".csv", None, None)
    compare(without, federated(members, tmp_path, "mixing", ".csv", FAR, without)[0])

    def all_or_none(query: SumQuery, features: Any, labels: Any, _persons: Any) -> Any:
        try:
            return prepare_site(query, features, labels)
        except ArithmeticError:
            return prepare_site(query, features[:0], labels[:0])

    monkeypatch.setattr(agent_module, "prepare_records", all_or_none)
    seen, _ = federated(members, tmp_path, "mixing", ".csv", FAR, without)
    with pytest.raises(AssertionError, match="another record's row has changed"):
        compare(without, seen)

    def all_at_once(query: SumQuery, features: Any, labels: Any, _persons: Any) -> Any:
        return prepare_site(query, features, labels)

    monkeypatch.setattr("capemix.engines.local.prepare_records", all_at_once)
    with pytest.raises((AssertionError, ArithmeticError)):
        curator.check(".csv", declared, FAR)


# -- writers that turn a whole column because of one record ----------------------------------------


def moved(columns: list[Any], odd: Any) -> tuple[list[int], list[int]]:
    """The class counts of records with these labels, and with one more."""

    def counts(labels: list[Any]) -> list[int]:
        rows = UnlistedRows.of(cells_of_arrays([[0.0]] * len(labels), labels), "label")
        return rows.listed(tuple(spelled(each) for each in columns)).class_counts().tolist()  # type: ignore[arg-type]

    return counts(columns * 50), counts([odd, *columns * 50])


@pytest.mark.parametrize("odd", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize(
    "labels",
    [
        [0, 1], [True, False], [0.5, 2.0], ["a", "b"], [np.float32(0.1), np.float32(0.7)],
        [datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC)],
    ],
    ids=["integers", "truths", "floats", "text", "32-bit floats", "moments"],
)  # fmt: skip
def test_labels_of_any_type_beside_any_other_stay_what_they_are(labels: Any, odd: Any) -> None:
    before, after = moved(labels, odd)
    assert before == [50, 50]
    assert sum(after) - 100 in (0, 1)
    assert all(new - old in (0, 1) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("odd", [2, 0.5, "x", None, math.inf, True], ids=repr)
@pytest.mark.parametrize(
    "labels",
    [[True, False], [0, 1], [math.inf, 1.0], [np.float32(0.1), np.float32(0.7)]],
    ids=["truths", "integers", "infinities", "32-bit floats"],
)
def test_what_numpy_makes_of_labels_leaves_the_words_of_the_others(labels: Any, odd: Any) -> None:
    def counts(cells: list[Any]) -> Counter[str | None]:
        column = plain_array(cells)
        words = words_of(column)
        return Counter(words.distinct[at] if at >= 0 else None for at in words.positions)

    more = counts([*labels * 50, odd]) - counts(labels * 50)
    assert sum(more.values()) == 1


@pytest.mark.parametrize("year", [1, 9999])
def test_a_moment_at_an_end_of_the_calendar_stays_what_it_is(tmp_path: Path, year: int) -> None:
    """A Parquet column has one zone, that of its first value; the others are still moments."""
    end = datetime(1, 1, 1, tzinfo=UTC) if year == 1 else datetime(9999, 12, 31, 23, tzinfo=UTC)
    east, west = (timezone(timedelta(hours=hours)) for hours in (10, -10))
    for zone in (UTC, east, west):
        first = datetime(2020, 1, 1, tzinfo=zone)
        column = pa.array([int(m.timestamp()) for m in (first, end, end)], pa.timestamp("s", "UTC"))
        shown = column.cast(pa.timestamp("s", f"{zone}".removeprefix("UTC") or "UTC"))
        pq.write_table(pa.table({"a": [1, 2, 3], "y": shown}), tmp_path / "rows.parquet")
        words = open_cells(tmp_path / "rows.parquet", "y").words("y")
        assert len(words.distinct) == 2
        assert (words.positions >= 0).all()
        assert words.distinct[1].endswith("+00:00")


def test_a_time_beyond_the_day_is_its_own_cells(tmp_path: Path) -> None:
    times = pa.array([0, 1, 86_400 * 10**6], pa.time64("us"))
    pq.write_table(pa.table({"a": [1, 2, 3], "y": times}), tmp_path / "rows.parquet")
    words = open_cells(tmp_path / "rows.parquet", "y").words("y")
    assert [words.distinct[at] for at in words.positions[:2]] == ["00:00:00", "00:00:00.000001"]
