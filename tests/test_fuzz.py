"""Every parser of outside bytes, given valid input that was bent: it takes it, or refuses it with
an error of ours. No other error, no hang, and no file where none belongs.

`CAPEMIX_FUZZ_TIMES=10` makes it ten times as long, with other examples each time.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capemix import documents
from capemix.agent import lacking
from capemix.cli.options import parse_sizes
from capemix.data import LabeledRows, Table, UnlistedRows, by_site, draft_table, open_cells
from capemix.data.idx import parse_idx, read_gzip_idx
from capemix.data.schema import Category, Number
from capemix.engines.flower.envelope import Refused, pack, unpack
from capemix.engines.flower.files import (
    Outcome,
    plan_text,
    read_plan_file,
)
from capemix.engines.flower.settings import Settings
from capemix.engines.local import LocalEngine
from capemix.errors import InputError
from capemix.facts import CLASS_SIZES, RANGES, Facts, map_of
from capemix.identity import load_identity, new_identity
from capemix.kernels import machine
from capemix.ledger import Account
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.class_gaussian.estimate import SPREADS
from capemix.methods.mixing import Mixing
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import Plan, make_plan
from capemix.protocol import wire
from capemix.protocol.answering import ROUNDS
from capemix.protocol.consents import Consents
from capemix.protocol.hello import introduce, new_challenge, site_of
from capemix.protocol.policy import Policy
from capemix.protocol.roster import Roster
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import COORDINATOR, Message
from capemix.randomness.source import SeededSource
from capemix.release import read_release
from capemix.run import run as carry_out
from capemix.statistics.histograms import ClassCounts, ValueSizes
from capemix.statistics.moments import Spreads
from capemix.statistics.projection import Projection
from capemix.sums.share import prepare_site
from capemix.sums.steps import ColumnMap, PublicMap
from capemix.verify import verify
from fuzzing import ODD, bent_bytes, bent_json, bent_text, fuzz, no_hang, taken_or_refused
from world import (
    ASKED,
    World,
    _forked,
    a_document,
    a_roster,
    counting_plan,
    identity,
    reseal,
    signed_request,
    step_of,
)

PLAN = replace(plan_mixtures(**{**ASKED, "noise": 0.5, "width": 4}), epsilon=1.0)


def as_json(value: Any) -> Any:
    """As it is after a journey in a message."""
    return json.loads(json.dumps(documents.as_json(value)))


def plan_of(found: Any) -> Plan:
    return documents.from_json(Plan, found, name="the plan")


@cache
def place() -> Path:
    """A folder with one thing in it, for a file to be read from; what else appears is a fault."""
    return Path(tempfile.mkdtemp(prefix="capemix-fuzz-")).resolve()


def written(name: str, data: bytes | str) -> Path:
    path = place() / name
    path.write_bytes(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)
    return path


def no_more_than(path: Path, action: Callable[..., Any], *args: Any) -> Any:
    """Takes or refuses, and leaves the folder as it was."""
    before = sorted(path.parent.rglob("*"))
    found = taken_or_refused(action, *args)
    assert sorted(path.parent.rglob("*")) == before
    return found


# -- releases --------------------------------------------------------------------------------------


@cache
def a_release() -> tuple[Path, dict[str, Any], bytes]:
    rows = LabeledRows(
        np.arange(24, dtype=np.float64).reshape(6, 4),
        np.array([0, 1] * 3, dtype=np.int64),
        ("a", "b"),
        ("p", "q", "r", "s"),
        image_shape=(2, 2),
    )
    asked: dict[str, Any] = {"width": 4, "class_sizes": (3, 3), "samples": 4, "mixture": 1}
    plan = plan_mixtures(**asked, noise=1.0, classes=("a", "b"))
    plan = replace(plan, facts=Facts.of(rows, class_sizes=(3, 3), normalise=PublicMap()))
    folder = Path(tempfile.mkdtemp(prefix="capemix-fuzz-")).resolve() / "release"
    release = carry_out(plan, LocalEngine([rows], SeededSource(1)))
    replace(release, soft_labels=np.full((4, 2), 0.5)).save(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    return folder, manifest, (folder / "synthetic.parquet").read_bytes()


def test_the_valid_release_is_read() -> None:
    assert len(read_release(a_release()[0]).rows) == 4


@fuzz(60)
@given(st.data())
def test_bent_manifests(data: st.DataObject) -> None:
    folder, manifest, table = a_release()
    (folder / "synthetic.parquet").write_bytes(table)
    text = data.draw(bent_text(manifest))
    (folder / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    no_more_than(folder, read_release, folder)


@fuzz(40)
@given(st.data())
def test_bent_tables_under_a_true_digest(data: st.DataObject) -> None:
    folder, manifest, table = a_release()
    bent = data.draw(bent_bytes(table))
    digest = hashlib.sha256(bent).hexdigest()
    changed = {**manifest, "sha256": {**manifest["sha256"], "synthetic.parquet": digest}}
    (folder / "synthetic.parquet").write_bytes(bent)
    (folder / "manifest.json").write_text(json.dumps(changed))
    no_more_than(folder, read_release, folder)


@fuzz(30)
@given(st.data())
def test_bent_manifests_and_tables_are_looked_at_whatever_they_are(data: st.DataObject) -> None:
    folder, manifest, table = a_release()
    bent = data.draw(bent_text(manifest)) if data.draw(st.booleans()) else json.dumps(manifest)
    (folder / "manifest.json").write_bytes(bent.encode("utf-8", "surrogateescape"))
    (folder / "synthetic.parquet").write_bytes(data.draw(bent_bytes(table)))
    (folder / "signature.json").write_bytes(data.draw(bent_bytes(b'{"signature": "00"}')))
    try:
        no_more_than(folder, verify, folder)
    finally:
        (folder / "signature.json").unlink()


@cache
def some_consents() -> tuple[Any, Plan]:
    world = World(counting_plan(4, 1, 1), Path(tempfile.mkdtemp(prefix="capemix-fuzz-")))
    world.drive()
    consents = Consents(world.roster, (world.run.consents(),))
    assert not list(consents.faults(world.plan, seeded=True))
    return documents.as_json(consents), world.plan


@fuzz(50)
@given(st.data())
def test_bent_consents(data: st.DataObject) -> None:
    found, plan = some_consents()
    bent = data.draw(bent_json(found))
    read = taken_or_refused(partial(documents.from_json, name="consents"), Consents, bent)
    if read is not None and bent != found:
        faults = taken_or_refused(lambda: list(read.faults(plan, seeded=True)))
        assert faults is None or faults


# -- plans, policies, rosters, keys ----------------------------------------------------------------


ANY_METHOD: Final = Policy(methods=("mixing", "class-gaussian", "image-clusters"))


def judged(found: Any, policy: Policy = ANY_METHOD) -> ReleaseStep | None:
    """What a site makes of a proposal, up to its consent."""
    step: ReleaseStep | None = taken_or_refused(ReleaseStep.from_json, found)
    if step is None or taken_or_refused(step.misfit) is not None:
        return None
    said = taken_or_refused(policy.declines, step, Account(policy.limit))
    assert said is None or isinstance(said, str)
    return step


@fuzz(150)
@given(bent_json(as_json(PLAN)))
def test_bent_plans(found: dict[str, Any]) -> None:
    plan = taken_or_refused(plan_of, found)
    if plan is not None:  # a site looks at it next, and its policy
        judged(step_of(PLAN).as_json() | {"plan": found})


SUMS_PLAN: Final = make_plan(
    Facts(tuple("abcd"), "y", (0, 1), normalise=PublicMap.of_range(0, 1)),
    ClassGaussian(),
    scheme="cape",
    sites=4,
).calibrate(0.9)
STEP: Final = ReleaseStep(bytes(16), SUMS_PLAN, CLASS_SIZES, ClassCounts(4, 2))


def test_the_valid_step_is_agreed_to() -> None:
    step = judged(json.loads(json.dumps(STEP.as_json())))
    assert step is not None
    assert ANY_METHOD.declines(step, Account(ANY_METHOD.limit)) is None


@fuzz(100)
@given(bent_json(json.loads(json.dumps(STEP.as_json()))))
def test_bent_steps(found: dict[str, Any]) -> None:
    step = judged(found)
    if step is not None:
        taken_or_refused(step.follows, STEP)
        taken_or_refused(STEP.follows, step)


OPEN_PLAN: Final = make_plan(
    Facts(tuple("abcd"), "y", (0, 1)), Mixing(samples=20, mixture=4), scheme="cape", sites=4
).calibrate(0.9)
OPEN_STEP: Final = ReleaseStep(bytes(16), OPEN_PLAN, CLASS_SIZES, ClassCounts(4, 2))
MEASURED: Final = replace(
    OPEN_PLAN,
    measured=replace(
        OPEN_PLAN.facts,
        class_sizes=(90, 70),
        normalise=ColumnMap((0.5,) * 4, (0.5,) * 4, (0.0,) * 4, (1.0,) * 4),
        clip_norm=1.5,
    ),
).settled()


@fuzz(60)
@given(bent_json(json.loads(json.dumps(OPEN_STEP.as_json()))))
def test_bent_steps_that_measure_facts(found: dict[str, Any]) -> None:
    step = judged(found)
    if step is not None:
        later = ReleaseStep(bytes(16), MEASURED, RANGES, ValueSizes(4))
        taken_or_refused(later.follows, step)


@fuzz(100)
@given(bent_json(json.loads(json.dumps(step_of(MEASURED, bytes(16)).as_json()))))
def test_bent_facts_that_were_measured(found: dict[str, Any]) -> None:
    """Whatever they are, the noise keeps the epsilon that was agreed to, or it is declined."""
    step = judged(found)
    if step is not None:
        taken_or_refused(step.follows, OPEN_STEP)
        if ANY_METHOD.declines(step, Account(ANY_METHOD.limit)) is None:
            guarantee = step.plan.guarantee()
            assert guarantee.epsilon is not None
            assert guarantee.epsilon <= (step.plan.epsilon or 0.0) * (1 + 1e-9)


@fuzz(30)
@given(bent_text(json.loads(plan_text(SUMS_PLAN))))
def test_bent_plan_files_of_several_sums(text: str) -> None:
    path = written("plan.json", text)
    no_more_than(path, read_plan_file, path)


TABLE: Final = Table(
    (Number("age", 0, 90, type="integer"), Category("smokes", (False, True), missing=True)),
    Category("ill", ("no", "yes")),
)
TABLE_PLAN: Final = make_plan(
    Facts.of(TABLE.no_rows()), ClassGaussian(), scheme="cape", sites=4
).calibrate(0.9)
TABLE_STEP: Final = ReleaseStep(bytes(16), TABLE_PLAN, CLASS_SIZES, ClassCounts(TABLE.width, 2))


def schema_of(found: Any) -> Table:
    return documents.from_json(Table, found, name="schema")


@fuzz(60)
@given(bent_json(documents.as_json(TABLE)))
def test_bent_schemas_of_tables(found: dict[str, Any]) -> None:
    table = taken_or_refused(schema_of, found)
    if table is not None:
        assert not len(table.no_rows())
        taken_or_refused(map_of, table)


@fuzz(60)
@given(bent_json(json.loads(json.dumps(TABLE_STEP.as_json()))))
def test_bent_steps_with_a_schema(found: dict[str, Any]) -> None:
    step = judged(found)
    if step is not None:
        taken_or_refused(lacking, TABLE.no_rows(), step.plan.facts)


@fuzz(30)
@given(bent_text(json.loads(plan_text(TABLE_PLAN))))
def test_bent_plan_files_with_a_schema(text: str) -> None:
    path = written("plan.json", text)
    no_more_than(path, read_plan_file, path)


ADDED: Final = replace(
    STEP,
    plan=replace(SUMS_PLAN, chosen={"rank": 2, "octave": 7}),
    name=SPREADS,
    statistic=Spreads(
        Projection(
            PublicMap.of_range(0, 1),
            4,
            2,
            centre=np.ones((2, 4)),
            basis=np.ones((4, 2)),
            scale=np.ones(2),
        ),
        1.0,
    ),
)


def test_the_valid_sum_of_what_a_record_adds_is_one() -> None:
    assert ADDED.misfit() is None


@fuzz(150)
@given(bent_json(json.loads(json.dumps(ADDED.as_json()))["statistic"]))
def test_bent_statistics(found: dict[str, Any]) -> None:
    step = judged(ADDED.as_json() | {"statistic": found})
    if step is not None:
        rows, labels = np.ones((3, 4)), np.array([0, 1, 1])
        taken_or_refused(prepare_site, step.query, rows, labels)


@fuzz(50)
@given(bent_text(json.loads(plan_text(PLAN))))
def test_bent_plan_files(text: str) -> None:
    path = written("plan.json", text)
    no_more_than(path, read_plan_file, path)


@fuzz(60)
@given(bent_json(as_json(PLAN.facts)))
def test_bent_facts(facts: dict[str, Any]) -> None:
    found = step_of(PLAN).as_json()
    judged(found | {"plan": found["plan"] | {"facts": facts}}, Policy(columns=("a", "b")))


POLICY: dict[str, Any] = {
    "max_epsilon": 1.0,
    "max_delta": 1e-5,
    "total_epsilon": 3.0,
    "least_sites": 4,
    "least_colluding": 1,
    "columns": ["a", "b"],
    "classes": [0],
    "real_arithmetic": False,
}


@fuzz(100)
@given(bent_text(POLICY))
def test_bent_policies(text: str) -> None:
    policy = taken_or_refused(a_document, Policy, text)
    if policy is not None:
        said = taken_or_refused(policy.declines, step_of(PLAN), Account(policy.limit))
        assert said is None or isinstance(said, str)


@fuzz(100)
@given(bent_text(documents.as_json(a_roster(2))))
def test_bent_rosters(text: str) -> None:
    roster = taken_or_refused(a_document, Roster, text)
    if roster is not None:
        assert len(roster.digest()) == 32


@cache
def a_key_file() -> bytes:
    private, _ = new_identity("someone", place() / "keys")
    return private.read_bytes()


@fuzz(60)
@given(st.data())
def test_bent_key_files(data: st.DataObject) -> None:
    path = written("bent.key", data.draw(bent_bytes(a_key_file())))
    no_more_than(path, load_identity, path)


# -- the protocol ----------------------------------------------------------------------------------


@cache
def worlds() -> dict[str, World]:
    """A run as it stands at the beginning of each round, with the replies to it in `said`. Site 2
    complains about site 1, so that every round takes place."""
    found = {}
    world = World(counting_plan(4, 1, 1), place() / "spool")
    while world.run.round is not None:
        found[world.run.round] = world.fork()
        for site, raw in list(world.run.requests()):
            answer = world.ask(site, raw)
            assert answer is not None
            if (site, world.run.round) == (2, "check"):
                answer = reseal(answer, lambda b: b.update(complaints=[1]), world.plan, "site 2")
            world.bring(site, answer)
        world.run.close()
    return found


@cache
def asked_in(round_: str) -> bytes:
    return dict(worlds()[round_].run.requests())[1]


@cache
def answered_in(round_: str) -> bytes:
    world = worlds()[round_].fork()
    answer = world.ask(1, asked_in(round_))
    assert answer is not None
    return answer


@fuzz(60)
@given(st.sampled_from(ROUNDS), st.data())
def test_bent_bytes_of_messages(round_: str, data: st.DataObject) -> None:
    taken_or_refused(wire.parse, data.draw(bent_bytes(asked_in(round_))))


@pytest.mark.parametrize("round_", ROUNDS)
@fuzz(25)
@given(data=st.data())
def test_a_lying_coordinators_requests(round_: str, data: st.DataObject) -> None:
    """Signed by the coordinator itself, so that every field is looked at."""
    world = worlds()[round_]
    body = data.draw(bent_json(wire.parse(asked_in(round_)).body))
    try:
        raw = signed_request(world, round_, body)
    except ValueError:  # not a message: a number that JSON does not have
        return
    site = _forked(world.sites[1])
    taken_or_refused(site.answer, raw)


@pytest.mark.parametrize("round_", ROUNDS)
@fuzz(25)
@given(data=st.data())
def test_a_lying_sites_replies(round_: str, data: st.DataObject) -> None:
    """The coordinator never stumbles over a site: it loses it, or takes what it says."""
    world = worlds()[round_]
    body = data.draw(bent_json(wire.parse(answered_in(round_)).body))
    try:
        raw = wire.seal(world.run._context, identity("site 1"), Message(round_, 1, body))
    except ValueError:
        return
    run = _forked(world.run)
    with no_hang():
        run.receive(1, raw)
        assert 1 in run.lost or 1 in run._answers
        for site, index in run.wanted():
            run.receive_chunk(site, index, data.draw(st.binary(max_size=40)))
    assert all(isinstance(why, str) and len(why) < 2000 for why in run.lost.values())


@fuzz(40)
@given(bent_json({"index": 0}))
def test_bent_requests_for_chunks(body: dict[str, Any]) -> None:
    world = worlds()["agree"]
    try:
        raw = signed_request(world, "chunk", body)
    except ValueError:
        return
    taken_or_refused(_forked(world.sites[1]).chunk, raw)


@fuzz(60)
@given(st.data())
def test_bent_introductions(data: st.DataObject) -> None:
    roster, challenge = a_roster(4), new_challenge()
    reply = introduce(challenge, roster, 1, identity("site 1"))
    bent = data.draw(bent_text(json.loads(reply)))
    with no_hang():
        found = site_of(challenge, bent.encode("utf-8", "surrogateescape"), roster)
    assert found == 1 or isinstance(found, str)


def test_nesting_without_end_is_refused() -> None:
    for text in ("[" * 10**6, '{"a":' * 10**6, "[" * 10**6 + "]" * 10**6):
        for parser in (
            lambda t: a_document(Roster, t),
            lambda t: a_document(Policy, t),
            lambda t: wire.parse(t.encode() + b"\n"),
        ):
            with pytest.raises((InputError, wire.ProtocolError)):
                parser(text)


# -- Flower ----------------------------------------------------------------------------------------


@fuzz(60)
@given(st.data())
def test_bent_envelopes(data: st.DataObject) -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    valid = pack(b"some bytes")
    array = valid.array_records["message"]["bytes"]
    bent = Array(
        dtype=data.draw(st.sampled_from([array.dtype, "float64", "object", "", "O8", "V4"])),
        shape=data.draw(st.sampled_from([array.shape, (), (-1,), (2**40,), (2, 5)])),
        stype=data.draw(st.sampled_from([array.stype, "", "pickle"])),
        data=data.draw(bent_bytes(array.data)),
    )
    name = data.draw(st.sampled_from(["bytes", "other"]))
    record: dict[str, Any] = {"message": ArrayRecord({name: bent})}
    if data.draw(st.booleans()):
        odd = data.draw(st.sampled_from([1, 0.5, "x" * 10_000, b"\xff", True, [1, 2]]))
        key = data.draw(st.sampled_from(["reason", "other"]))
        record["refused"] = ConfigRecord({key: odd})
    with no_hang():
        try:
            found: bytes | str = unpack(RecordDict(record))
        except Refused as refused:
            found = str(refused)
    assert isinstance(found, bytes) or 0 < len(found) <= 500


@fuzz(60)
@given(st.data())
def test_bent_run_configs(data: st.DataObject) -> None:
    valid: dict[str, Any] = {
        "plan": "/p",
        "roster": "/r",
        "identity": "/i",
        "out": "/o",
        "wait-seconds": 5.0,
        "round-seconds": 5.0,
        "chunk-bytes": 1 << 20,
    }
    taken_or_refused(Settings.from_config, data.draw(bent_json(valid)))


@fuzz(80)
@given(st.data())
def test_bent_outcomes(data: st.DataObject) -> None:
    done = {"number": 1, "of": 6, "round": "plan", "answered": 4, "lost": [0], "seconds": 0.5}
    now = {"number": 1, "of": 6, "round": "plan", "sites_in": 1, "sites_waited_for": 1}
    now |= {"sites_lost": 0, "uploaded_bytes": 1, "expected_bytes": 2, "seconds_left": None}
    valid = {"rounds": [done | {"bytes_out": 1, "bytes_in": 1}], "progress": now}
    documents.from_json(Outcome, valid, name="outcome")
    out = place() / "out"
    written("out.outcome.json", data.draw(bent_text(valid)))
    with no_hang():
        found = Outcome.read(out)
        if found is not None:  # then it can be shown
            for one in found.rounds:
                assert str(one)
            if found.progress is not None:
                assert str(found.progress)
            assert all(isinstance(site, int) for site in found.included)


# -- rows ------------------------------------------------------------------------------------------

CSV = b"a,b,y\n1,2.5,cat\n3,4.5,dog\n5,NA,cat\n-6,1e3,dog\n"


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


@cache
def valid_files() -> dict[str, bytes]:
    table = pa.table({"a": [1.0, 2.0, 3.0], "b": [1, 2, 3], "y": ["cat", "dog", "cat"]})
    parquet = io.BytesIO()
    pq.write_table(table, parquet)
    csv = CSV.replace(b"NA", b"7")
    return {
        "rows.csv": csv,
        "rows.csv.gz": gzip.compress(csv, mtime=0),
        "rows.npz": npz(X=np.ones((3, 2)), y=np.array(["cat", "dog", "cat"])),
        "rows.parquet": parquet.getvalue(),
    }


def read(path: Path, label: str | None = None, column: str | None = None) -> LabeledRows:
    """In every way that a file is read: its rows, with their labels as they come."""
    cells = open_cells(path, label, () if column is None else (column,))
    for name in cells.names:
        words, numbers = cells.words(name), cells.numbers([name])
        assert len(words.positions) == len(numbers) == cells.records
        assert not np.isinf(numbers).any()
    if column is not None:
        parts = by_site(cells, column, ("cat", "dog", 1))
        assert sum(part.records for part in parts) <= cells.records
    coded = Table((Category(cells.label, ("x",), missing=True),), Category("n", ("cat",)))
    labels = replace(cells, columns={cells.label: cells.columns[cells.label]}, matrix=None)
    columns = {**labels.columns, "n": labels.columns[cells.label]}
    coded.rows(replace(labels, columns=columns, matrix_names=(), label="n"))
    rows = UnlistedRows.of(cells, cells.label)
    found = rows.as_they_come()
    assert len(found) + found.unfit == cells.records + cells.without_value
    assert len(rows.listed(("cat", "dog"))) <= cells.records
    return found


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.npz", "rows.parquet"])
@fuzz(40)
@given(data=st.data())
def test_bent_files_of_rows(name: str, data: st.DataObject) -> None:
    path = written(name, data.draw(bent_bytes(valid_files()[name])))
    no_more_than(path, read, path, "y", data.draw(st.sampled_from([None, "a"])))
    no_more_than(path, draft_table, path, "y")


@fuzz(40)
@given(st.data())
def test_bent_csv_inside_a_good_gzip(data: st.DataObject) -> None:
    bent = data.draw(bent_bytes(CSV, most=8))
    no_more_than(written("rows.csv.gz", gzip.compress(bent, 1)), read, path_of("csv.gz"), "y")


def path_of(suffix: str) -> Path:
    return place() / f"rows.{suffix}"


DTYPES = (
    "u1",
    "i8",
    "f4",
    "f8",
    "g",
    "U3",
    "S2",
    "?",
    "c16",
    "M8[s]",
    "m8[D]",
    "V4",
    "f2",
    "i4,f8",
)


@fuzz(80)
@given(st.data())
def test_arrays_of_any_dtype_and_shape(data: st.DataObject) -> None:
    def array() -> np.ndarray:
        dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
        shape = data.draw(st.sampled_from([(3, 2), (3,), (), (0, 2), (3, 0), (3, 2, 2), (3, 1)]))
        count = int(np.prod(shape)) * dtype.itemsize
        raw = data.draw(st.binary(min_size=count, max_size=count))
        return np.frombuffer(raw, dtype).reshape(shape) if count else np.zeros(shape, dtype)

    path = written("rows.npz", npz(X=array(), y=array(), z=array()))
    no_more_than(path, read, path, None, data.draw(st.sampled_from([None, "z"])))


HEADERS = (
    {"descr": "<f8", "fortran_order": False, "shape": (2**60, 2)},
    {"descr": "<f8", "fortran_order": False, "shape": (2**35,)},
    {"descr": "<f8", "fortran_order": False, "shape": (-3, 2)},
    {"descr": "|O", "fortran_order": False, "shape": (3,)},
    {"descr": [("a", "<f8")], "fortran_order": True, "shape": (3,)},
    {"descr": "<f8", "shape": (3,)},
    {"descr": "<U999999999", "fortran_order": False, "shape": (3,)},
)
NAMES = ("X.npy", "../X.npy", "/tmp/capemix-fuzz-X.npy", "X", "a/../../X.npy", "X.npy/", "")


def npy(header: Any, body: bytes = bytes(48)) -> bytes:
    text = repr(header).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


@fuzz(60)
@given(
    st.sampled_from(NAMES),
    st.sampled_from(HEADERS),
    st.sampled_from([b"", bytes(48), b"\x80\x04cos\nsystem\n(S'true'\ntR."]),
)
def test_archives_with_odd_names_and_headers(name: str, header: Any, body: bytes) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", npy({"descr": "<i8", "fortran_order": False, "shape": (3,)}))
        if name:
            archive.writestr(name, npy(header, body))
    path = written("rows.npz", out.getvalue())
    no_more_than(path, read, path)
    no_more_than(path, read, path, "y")
    assert not Path("/tmp/capemix-fuzz-X.npy").exists()
    assert not (place().parent / "X.npy").exists()


COLUMNS = (
    pa.array([1, None, 3]),
    pa.array([float("nan"), 1.0, 2.0]),
    pa.array([[1], [2], []]),
    pa.array([{"a": 1}] * 3),
    pa.array(["x", "y", None]),
    pa.array([b"\xff", b"", b"x"]),
    pa.array([True, False, True]),
    pa.array([None] * 3),
    pa.array([2**63 - 1, -(2**63), 0]),
    pa.array([2**64 - 1, 0, 1], pa.uint64()),
    pa.array([10**15, -(10**15), 0], pa.timestamp("s")),
    pa.array([2**31 - 1, -(2**31), 0], pa.date32()),
    pa.array([1, 2, 3], pa.duration("ns")),
    pa.array([1, 2, 3], pa.time64("ns")),
    pa.array([1, 2, 3]).cast(pa.decimal128(38, 2)),
    pa.array(["x", "y", "x"]).dictionary_encode(),
    pa.array([1.0, 2.0, 70000.0], pa.float32()).cast(pa.float16(), safe=False),
)


@fuzz(80)
@given(
    st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3),
    st.sampled_from(["a", "b", "", "__index_level_0__", "\0", "y"]),
)
def test_columns_of_any_type(columns: list[pa.Array], second: str) -> None:
    names = ["y", second, "c"][: len(columns)]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, names), out)
    path = written("rows.parquet", out.getvalue())
    no_more_than(path, read, path, "y", None)
    no_more_than(path, read, path, "y", second or None)
    no_more_than(path, draft_table, path, "y")


IDX = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2, 3, 3) + bytes(18)


@fuzz(80)
@given(bent_bytes(IDX), st.sampled_from([1, 3]))
def test_bent_idx(data: bytes, dims: int) -> None:
    taken_or_refused(lambda: parse_idx(data, dims=dims))
    for packed in (gzip.compress(data, 1), gzip.compress(IDX, 1)[: len(data)] + data[-5:]):
        path = written("rows.idx.gz", packed)
        no_more_than(path, lambda path=path: read_gzip_idx(path, dims=dims))


# -- bombs -----------------------------------------------------------------------------------------


def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose memory a bomb of a few kilobytes fills."""
    monkeypatch.setattr(machine, "memory", lambda: 1 << 20)


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_machine(monkeypatch)
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"a,y\n" + b"1,2\n" * 10**6, 9))
    assert path.stat().st_size < 20_000
    with pytest.raises(InputError, match="memory"):
        read(path, "y")


def test_an_npz_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_machine(monkeypatch)
    path = tmp_path / "rows.npz"
    path.write_bytes(npz(X=np.zeros((10**6, 2)), y=np.zeros(10**6)))
    assert path.stat().st_size < 40_000
    with pytest.raises(InputError, match="memory"):
        read(path)


def test_a_parquet_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_machine(monkeypatch)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": np.zeros(10**6), "y": np.zeros(10**6)}), path)
    assert path.stat().st_size < 40_000
    monkeypatch.delattr(pq.ParquetFile, "read_row_group")
    with pytest.raises(InputError, match="memory"):
        read(path, "y")


def test_a_text_of_a_parquet_dictionary_is_counted_for_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_machine(monkeypatch)
    path = tmp_path / "rows.parquet"
    text = pa.array(["x" * 1000] * 10_000)
    pq.write_table(pa.table({"a": np.zeros(10_000), "y": text}), path)
    assert path.stat().st_size < 40_000
    with pytest.raises(InputError, match="memory"):
        read(path, "y")


def test_files_that_fit_are_read_on_a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    small_machine(monkeypatch)
    for name, data in valid_files().items():
        assert len(read(written(name, data), "y")) >= 3


# -- the command line ------------------------------------------------------------------------------


@fuzz(80)
@given(st.one_of(st.text(max_size=30), bent_bytes(b"100,20,3").map(lambda b: b.decode("latin1"))))
def test_bent_class_sizes(text: str) -> None:
    found = taken_or_refused(parse_sizes, text, 3)
    assert found is None or (len(found) == 3 and min(found) > 0)


@fuzz(25)
@given(st.data())
def test_bent_numbers_of_a_plan(data: st.DataObject) -> None:
    found = as_json(PLAN)
    for part in ("facts", "method", "federation"):
        bent = data.draw(bent_json(found[part]))
        taken_or_refused(plan_of, found | {part: bent})


def test_odd_values_are_odd() -> None:
    """The strategy reaches what it should: a check of the checker."""
    seen: set[str] = set()

    @fuzz(100)
    @given(ODD)
    def look(value: Any) -> None:
        seen.add(type(value).__name__)

    look()
    assert {"int", "float", "str", "list", "dict", "NoneType", "bool"} <= seen
    assert COORDINATOR == -1


# -- what fuzzing found ----------------------------------------------------------------------------


def test_text_without_an_encoding_inside_a_message_is_refused() -> None:
    body = wire.parse(asked_in("keys")).body
    body["accepts"]["2"] = "\ud800"
    site = _forked(worlds()["keys"].sites[1])
    with pytest.raises(wire.ProtocolError, match="is not text"):
        site.answer(signed_request(worlds()["keys"], "keys", body))
    for round_ in ("shares", "upload"):
        for name in wire.parse(answered_in(round_)).body:
            reply = wire.parse(answered_in(round_)).body | {name: "\ud800"}
            run = _forked(worlds()[round_].run)
            run.receive(1, wire.seal(run._context, identity("site 1"), Message(round_, 1, reply)))
            assert 1 in run.lost


@pytest.mark.parametrize(
    "asked",
    [
        {"samples": 10**6},
        {"samples": 10**9},
        {"samples": 10**15},
        {"noise": 1e-300},
        {"noise": 1e-5},
        {"noise": 1e300},
        {"clip": 1e300},
        {"clip": 1e-300},
        {"width": 10**5},
        {"sites": 10**6, "dropouts": 10**5},
        {"sites": 1000, "colluding": 400, "dropouts": 100},
    ],
)
def test_a_monstrous_plan_is_judged_at_once(asked: dict[str, Any]) -> None:
    """A coordinator's plan must not keep a site busy, or break it off."""

    def judged() -> str | None:
        plan = plan_mixtures(**{**ASKED, "noise": 0.5, "width": 4, **asked})
        step = ReleaseStep.from_json(json.loads(json.dumps(step_of(plan).as_json())))
        return step.misfit() or Policy().declines(step, Account(Policy().limit))

    taken_or_refused(judged)


def test_a_schema_of_very_many_columns_is_judged_at_once() -> None:
    """A message has room for three times as many."""
    column = {"type": "number", "low": 0, "high": 1}
    columns = [column | {"name": f"c{n}"} for n in range(100_000)]
    found = documents.as_json(TABLE) | {"columns": columns}
    said = TABLE_STEP.as_json()
    facts = said["plan"]["facts"] | {"table": found, "features": [each["name"] for each in columns]}
    for bent in (facts, facts | {"normalise": None}):
        assert judged(said | {"plan": said["plan"] | {"facts": bent}}) is None
    assert taken_or_refused(schema_of, found) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"real_arithmetic": "false"},
        {"least_sites": "4"},
        {"least_sites": 4.5},
        {"max_epsilon": True},
        {"max_epsilon": 10**400},
        {"columns": "abc"},
        {"columns": [["a"]]},
        {"classes": [None]},
        {"methods": "mixing"},
        {"methods": ["mixing", "dp-mix"]},
        {"methods": [["mixing"]]},
    ],
)
def test_a_policy_of_other_types_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="policy"):
        a_document(Policy, json.dumps({**POLICY, **change}))
