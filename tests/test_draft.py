"""A schema that is drafted from rows is marked until its owner has confirmed every line of it, and
holds no number that is a record's own."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import AgentsEngine, allowing
from capemix import documents
from capemix.accounting.mint import CONFIRMED_DRAFT
from capemix.data import Table, draft_table, fitted_table, open_data
from capemix.data.draft import MARGIN, _range, outward
from capemix.data.schema import Category, Identifier, Moment, Number
from capemix.errors import InputError
from capemix.facts import CLASS_SIZES
from capemix.guarantee import Status
from capemix.methods.measured import counts_of
from capemix.protocol.policy import Policy
from capemix.randomness.source import SystemSource
from capemix.release import read_release
from conftest import Capemix, Ran
from releasing import plan_of, release_of
from test_tables import PEOPLE, people


def drafted(tmp_path: Path, outcome: list[Any] | None = None, **columns: Any) -> dict[str, Any]:
    """Columns by name, and the reasons for those that are left out."""
    frame = pd.DataFrame(columns)
    frame["outcome"] = ["u", "v"] * (len(frame) // 2) if outcome is None else outcome
    frame.to_csv(tmp_path / "rows.csv", index=False)
    found = draft_table(tmp_path / "rows.csv", "outcome")
    assert found.table.drafted
    assert not found.table.is_confirmed
    return {column.name: column for column in found.table.columns} | found.left_out


# -- ranges ----------------------------------------------------------------------------------------

ENDS = st.one_of(
    st.integers(-(10**6), 10**6).map(float),
    st.floats(-1e300, 1e300),
    st.floats(-1, 1),
    st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1e16, 1.7e9, 2.0**52]),
)


@given(ENDS, ENDS)
def test_a_range_is_wider_than_the_values_and_its_ends_are_none_of_them(
    one: float, other: float
) -> None:
    low, high = sorted((one, other))
    below, above = outward(low, high)
    assert math.isfinite(below)
    assert math.isfinite(above)
    assert above > high
    assert below < low or (below == 0 and low >= 0)
    width = max((high - low) or abs(high) or 1.0, max(-low, high) * 2.0**-40, 1e-300)
    for end, margin in ((below, low - below), (above, above - high)):
        if end != 0:
            assert margin >= 0.9 * MARGIN * width
            assert margin <= 1.2 * width


@given(ENDS, st.floats(0, 1e-15))
def test_values_that_lie_close_together_get_a_range_that_tells_neither(
    one: float, part: float
) -> None:
    low = one
    high = one + abs(one) * part
    below, above = outward(low, high)
    assert above > high
    assert below < low or (below == 0 and low >= 0)


@given(st.lists(st.integers(-(10**15), 10**15), min_size=2, max_size=5))
def test_a_range_of_whole_numbers_is_of_whole_numbers(values: list[int]) -> None:
    below, above = outward(float(min(values)), float(max(values)))
    assert below.is_integer()
    assert above.is_integer()


def test_ends_are_round_and_values_that_are_never_negative_keep_0() -> None:
    assert outward(17, 90) == (10, 100)
    assert outward(3, 90) == (0, 100)
    assert outward(0, 1) == (0, 2)
    assert outward(-3.0, 90.0) == (-10, 100)
    assert outward(0.31, 0.74) == (0.2, 0.8)
    assert outward(5, 5) == (4, 6)
    assert outward(0, 0) == (0, 1)


def test_no_drafted_end_is_a_records_value(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {
        f"c{at}": rng.normal(10.0 ** (at % 9 - 3), 10.0 ** (at // 9 - 3), 40) for at in range(60)
    }
    columns |= {f"w{at}": rng.integers(0, 3**at + 2, 40) for at in range(12)}
    columns |= {
        "years": rng.integers(1950, 2020, 40),
        "cents": rng.integers(0, 900, 40) / 100,
        "truth": [0, 1] * 20,
    }
    found = drafted(tmp_path, **columns)
    for name, values in columns.items():
        column = found[name]
        assert isinstance(column, Number)
        ends = {column.low, column.high} & set(np.asarray(values, dtype=float).tolist())
        zero_and_one = column.whole and set(values) == {0, 1}
        assert ends <= ({0.0, 1.0} if zero_and_one else {0.0}), name
        assert not column.strays(column.coded(np.asarray(values, dtype=float))[:, None]).any()
    assert found["truth"] == Number("truth", 0, 1, type="integer")
    assert found["years"].whole


def test_a_constant_is_drafted_as_what_it_is(tmp_path: Path) -> None:
    found = drafted(tmp_path, one=[7.25] * 4, same=["u"] * 4, day=["2020-02-29"] * 4, a=[1, 2] * 2)
    assert found["one"] == Number("one", 7.25, 7.25, decimals=2)
    assert str(found["one"]) == "always 7.25, with 2 decimals"
    assert found["same"] == Category("same", ("u",))
    assert found["day"] == Moment("day", "2020-02-29", "2020-02-29", type="date")
    assert sum(found[name].width for name in ("one", "same", "day")) == 0


def test_what_is_written_with_a_point_stays_so_and_keeps_its_decimals(tmp_path: Path) -> None:
    found = drafted(
        tmp_path,
        truths=[0.0, 1.0] * 20,
        price=np.arange(40) / 4,
        gaps=[None, *range(39)],  # pandas writes 1.0, 2.0
        real=np.random.default_rng(0).normal(size=40),
        tenths=[0.2, 0.3] * 20,  # 0.3 - 0.2 is a little less than 0.1
    )
    assert found["truths"] == Number("truths", 0.0, 1.0, decimals=0)
    assert found["price"] == Number("price", 0.0, 11.0, decimals=2)
    assert found["gaps"] == Number("gaps", 0.0, 40.0, decimals=0, missing=True)
    assert found["real"].decimals is None
    assert found["tenths"] == Number("tenths", 0.1, 0.4, decimals=1)


@given(
    st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=6, unique=True), st.integers(0, 6)
)
def test_a_range_of_numbers_with_decimals_has_them(values: list[int], decimals: int) -> None:
    found = _range("x", np.array(values) / 10.0**decimals, True, False, True)
    assert found.decimals is not None
    assert found.decimals <= decimals
    zero_and_one = set(values) == {0, 1} and decimals == 0
    assert found.low < min(values) / 10.0**decimals or min(values) >= 0
    assert found.high > max(values) / 10.0**decimals or zero_and_one


def test_dates_and_times_are_drafted_by_their_words(tmp_path: Path) -> None:
    days = pd.date_range("2019-03-05", periods=40)
    found = drafted(
        tmp_path,
        day=days.strftime("%Y-%m-%d"),
        few=[*days[:39].strftime("%Y-%m-%d"), "?"],
        years=pd.date_range("1950-06-01", periods=40, freq="365D").strftime("%Y-%m-%d"),
        moment=days + pd.Timedelta(minutes=61),
        noon=["12:00:00", "12:30", None, "00:00:59"] * 10,
        mixed=["12:00:00", "2020-01-01"] * 20,
    )
    assert found["day"] == Moment("day", "2019-03-03", "2019-04-15", type="date")
    assert found["few"] == Moment("few", "2019-03-03", "2019-04-14", type="date", missing=True)
    assert found["years"] == Moment("years", "1948-01-01", "1991-12-31", type="date")
    assert found["moment"] == Moment(
        "moment", "2019-03-03 00:00:00", "2019-04-15 23:59:59", type="datetime"
    )
    assert found["noon"] == Moment("noon", "00:00:00", "23:59:59", type="time", missing=True)
    assert isinstance(found["mixed"], Category)
    beyond = ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"] * 20  # in UTC
    ends = "0001-01-01 00:00:00", "9999-12-31 23:59:59"
    assert drafted(tmp_path, beyond=beyond)["beyond"] == Moment("beyond", *ends, type="datetime")
    frame = pd.DataFrame({"day": days, "outcome": ["u", "v"] * 20})  # all at midnight
    frame.to_parquet(tmp_path / "rows.parquet")
    assert draft_table(tmp_path / "rows.parquet", "outcome").table.columns[0].type == "datetime"


def test_the_label_keeps_its_place_and_its_type(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "n": ["x"] * 3, "y": [True, False, True], "b": [1, 2, 4]})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    table = draft_table(tmp_path / "rows.csv", "y").table
    assert table.label == Category("y", (False, True))
    assert table.classes == (0, 1)
    assert table.label_place == 2
    assert draft_table(tmp_path / "rows.csv", "b").table.label_place is None


def test_numbers_beyond_any_range_are_left_out(tmp_path: Path) -> None:
    found = drafted(
        tmp_path, a=[1.0, 1e305], b=[-1.7e308, 1.7e308], c=[5e-324, 0.0], d=[1e16, 3e16]
    )
    assert found["a"] == found["b"] == "its numbers are too large for a range around them"
    assert found["c"] == Number("c", 0.0, 1e-300)
    assert found["d"] == Number("d", 0.0, 4e16)


def test_rows_that_are_public_may_have_the_range_that_they_have(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "people.csv", index=False)
    found = fitted_table(tmp_path / "people.csv", "income")
    columns = {column.name: column for column in found.columns}
    assert columns["gain"] == Number("gain", 0, 4000, type="integer")
    assert found.drafted


# -- lists -----------------------------------------------------------------------------------------


def test_text_that_hardly_repeats_is_left_out(tmp_path: Path) -> None:
    rows = 100
    found = drafted(
        tmp_path,
        name=[f"person {at}" for at in range(rows)],
        half=[f"w{at // 2}" for at in range(rows)],
        more=[f"w{at // 2}" if at < 98 else f"x{at}" for at in range(rows)],
        few=[f"w{at % 20}" for at in range(rows)],
        sparse=[f"person {at}" if at < 30 else None for at in range(rows)],
        rare=[f"w{at}" if at < 20 else None for at in range(rows)],
        nothing=[None] * rows,
        age=range(rows),
    )
    assert found["name"] == Identifier("name")  # to be made anew
    assert found["sparse"] == "30 distinct texts look like names or identifiers"
    assert found["more"] == "51 distinct texts look like names or identifiers"
    assert found["nothing"] == "it has no values"
    assert len(found["half"].categories) == 50
    assert found["few"] == Category("few", tuple(sorted(f"w{at}" for at in range(20))))
    assert found["rare"].missing  # few values may all be different
    assert isinstance(found["age"], Number)


def test_very_many_values_are_no_list_however_often_they_repeat(tmp_path: Path) -> None:
    words = [f"w{at % 1001}" for at in range(4004)]
    assert "1001 distinct" in drafted(tmp_path, word=words, a=range(4004))["word"]


def test_kinds_of_columns_are_drafted_by_their_words(tmp_path: Path) -> None:
    found = drafted(
        tmp_path,
        smokes=[True, False] * 3,
        yes=["true", "TRUE", None, "true", "?", "True"],
        code=["01", "1", "2", "2", "01", "NA"],
        mixed=[1, "a", 2.0, "a", 1, "1.0"],
        gaps=[1, None, 3, 4, 5, 6],
    )
    assert found["smokes"] == Category("smokes", (False, True))
    assert found["yes"] == Category("yes", (True,), missing=True)
    assert found["mixed"] == Category("mixed", ("1", "2", "a"))
    assert isinstance(found["code"], Number)  # an owner who means text changes it
    assert found["gaps"] == Number("gaps", 0.0, 7.0, decimals=0, missing=True)


def test_a_label_without_values_or_with_too_many_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="label has no values"):
        drafted(tmp_path, [None, "?"], a=[1, 2])
    with pytest.raises(InputError, match="more than 1000 values"):
        drafted(tmp_path, [f"id{at}" for at in range(1001)], a=[1] * 1001)
    with pytest.raises(InputError, match="label names no column"):
        draft_table(tmp_path / "rows.csv", "income")


def test_a_file_with_nothing_to_draft_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one column"):
        drafted(tmp_path, nothing=[None, None])


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def schema(tmp_path: Path, capemix: Capemix) -> Path:
    people().to_csv(tmp_path / "people.csv", index=False)
    ran = capemix(
        "schema", "draft", tmp_path / "people.csv", "--label", "income", "--out",
        tmp_path / "schema.json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return tmp_path / "schema.json"


def test_a_draft_covers_the_rows_and_says_that_it_read_them(
    schema: Path, tmp_path: Path, capemix: Capemix
) -> None:
    table = Table.read(schema)
    found = {column.name: column for column in table.columns}
    assert found["work"] == Category("work", ("field", "none", "office"), missing=True)
    assert found["smokes"] == Category("smokes", (False, True))
    assert found["gain"] == Number("gain", 0, 5000, type="integer")
    assert found["rooms"] == Number("rooms", 0, 4, type="integer")
    weight = found["weight"]
    assert isinstance(weight, Number)
    assert not weight.log
    assert not weight.whole
    assert table.drafted
    assert not table.is_confirmed
    rows = open_data(tmp_path / "people.csv", table=table).train
    assert rows.unfit == 0
    assert not any(count for name, count in table.strays(rows).items() if name != "work")
    again = capemix(
        "schema", "draft", tmp_path / "people.csv", "--label", "income", "--out", schema
    )
    assert again.code == 2
    assert "--out cannot be written" in again.err
    words = ("schema", "draft", tmp_path / "people.csv", "--label", "income", "--out")
    said = capemix(*words, tmp_path / "second.json").out
    assert "no budget paid for that" in said
    assert "no guarantee" in said


def test_logarithms_are_drafted_by_the_ranges_alone(tmp_path: Path, capemix: Capemix) -> None:
    frame = people()
    frame["weight"] = frame["weight"] * 10 + 2000  # from about 2300 to 3500
    frame["cost"] = np.geomspace(3.0, 5.0, len(frame)) ** 3  # 27 to 125: rounded, 20 to 130
    frame.to_csv(tmp_path / "people.csv", index=False)
    words = ("schema", "draft", tmp_path / "people.csv", "--label", "income", "--out")
    assert capemix(*words, tmp_path / "plain.json").code == 0
    ran = capemix(*words, tmp_path / "logs.json", "--logs")
    assert "By their logarithm: cost." in ran.out
    plain, logs = (Table.read(tmp_path / f"{name}.json") for name in ("plain", "logs"))
    assert logs == plain.with_logs() != plain
    ran = capemix(*words, tmp_path / "again.json", "--logs", "--json")
    assert ran.json["by_logarithm"] == ["cost"]


def test_what_is_left_out_is_named_with_its_reason(tmp_path: Path, capemix: Capemix) -> None:
    frame = people(200)
    frame["name\x1b[2J"] = [f"person {at}" for at in range(50)] + [None] * 150
    frame["patient"] = [f"P{at:04d}" for at in range(200)]
    frame.to_csv(tmp_path / "people.csv", index=False)
    words = ("schema", "draft", tmp_path / "people.csv", "--label", "income", "--out")
    said = capemix(*words, tmp_path / "a.json").out
    assert "left out: name [2J, since 50 distinct texts look like names" in said
    assert "made anew: patient, since nearly every cell is different" in said
    assert "\x1b" not in said
    found = capemix(*words, tmp_path / "b.json", "--json").json
    assert list(found["left_out"]) == ["name\x1b[2J"]
    assert found["made_anew"] == ["patient"]
    assert "person 7" not in said + json.dumps(found)
    assert "P0007" not in (tmp_path / "b.json").read_text()
    assert "private" in found


# -- what a draft is good for ----------------------------------------------------------------------


def released(table: Table, tmp_path: Path) -> Any:
    rows = open_data(tmp_path / "people.csv", table=table).train
    return release_of(
        rows, "class-gaussian", epsilon=8.0, source=SystemSource(), samples=200
    ).guarantee


def test_a_release_by_a_draft_has_no_guarantee_until_it_is_confirmed(
    schema: Path, tmp_path: Path
) -> None:
    table = Table.read(schema)
    found = released(table, tmp_path)
    assert found.status is Status.FROM_ROWS
    said = " ".join(found.assumptions)
    assert "what the schema says of ranges and lists was read from the rows" in said
    confirmed = released(table.confirm(), tmp_path)
    assert confirmed.status is Status.GUARANTEE
    assert CONFIRMED_DRAFT in confirmed.assumptions
    declared = released(replace(table, drafted=False), tmp_path)
    assert declared.status is Status.GUARANTEE
    assert CONFIRMED_DRAFT not in declared.assumptions
    assert not any("read from the rows" in each for each in declared.assumptions)


def test_a_site_takes_no_part_by_a_draft(schema: Path, tmp_path: Path) -> None:
    table = Table.read(schema)
    rows = open_data(tmp_path / "people.csv", table=table).train.take(range(100))
    said = {}
    for state in (table, table.confirm()):
        mine = replace(rows, table=state, read_from_rows=state.read_from_rows)
        plan = plan_of(
            [mine] * 4, "class-gaussian", epsilon=8.0, samples=100, scheme="cape", colluding=1,
            dropouts=1,
        )  # fmt: skip
        name = "confirmed" if state.is_confirmed else "draft"
        engine = AgentsEngine(tmp_path / name, allowing(plan), [mine] * 4)
        said[name] = engine.declined(plan, CLASS_SIZES, counts_of(plan.facts))
    assert said["confirmed"] is None
    assert "facts read from rows: no guarantee" in str(said["draft"])
    assert Policy().real_arithmetic is False


# -- confirming ------------------------------------------------------------------------------------


@pytest.fixture
def confirm(capemix: Capemix, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`capemix schema confirm`, with these answers."""

    def run(file: Path, answers: str) -> Ran:
        monkeypatch.setattr("sys.stdin", io.StringIO(answers))
        return capemix("schema", "confirm", file)

    return run


LINES = 3 + 6  # of people(): the label, its classes, how the file is written, and six columns


def test_every_line_is_shown_and_asked_for(schema: Path, tmp_path: Path, confirm: Any) -> None:
    before = Table.read(schema)
    schema.chmod(0o640)
    ran = confirm(schema, "y\n" * LINES)
    assert ran.code == 0, ran.err
    assert ran.out.count("Is this public knowledge?") == LINES
    for line in (
        "The label is the column 'income'.",
        'Its classes are "high", "low".',
        "The file is text in UTF-8, with a comma between cells; every line is a record,",
        "There is a column 'gain': integer from 0 to 5000.",
        'There is a column \'work\': "field", "none", "office", or missing.',
        "There is a column 'smokes': false, true.",
    ):
        assert line in ran.out
    after = Table.read(schema)
    assert after == before.confirm()
    assert after.digest() == before.digest()
    assert json.loads(schema.read_text())["confirmed"] == after.digest()
    assert schema.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.csv", "schema.json"]
    again = confirm(schema, "")
    assert again.code == 0
    assert "is confirmed, and has not been changed since" in again.out


@pytest.mark.parametrize(
    "answers",
    ["", "n\n", "\n", *("y\n" * at + "n\n" for at in (1, 4, LINES - 1)), "y\n" * (LINES - 1)],
)
def test_a_line_that_is_not_confirmed_leaves_the_file_as_it_is(
    schema: Path, tmp_path: Path, confirm: Any, answers: str
) -> None:
    before = schema.read_bytes()
    ran = confirm(schema, answers)
    assert ran.code == 1
    assert schema.read_bytes() == before
    assert not Table.read(schema).is_confirmed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.csv", "schema.json"]


CHANGES: dict[str, Any] = {
    "a range": lambda found: found["columns"][0].update(high=found["columns"][0]["high"] + 1),
    "a category": lambda found: found["columns"][2]["categories"].append("one person's own"),
    "missing": lambda found: found["columns"][2].update(missing=False),
    "a type": lambda found: found["columns"][0].update(type="number"),
    "a scale": lambda found: found["columns"][1].update(scale="log", low=1.0),
    "a name": lambda found: found["columns"][0].update(name="years"),
    "a column fewer": lambda found: found["columns"].pop(),
    "the order": lambda found: found["columns"].reverse(),
    "the label": lambda found: found["label"].update(name="outcome"),
    "a class": lambda found: found["label"]["categories"].append("none"),
    "the file": lambda found: found["file"].update(decimal="comma"),
    "the digest": lambda found: found.update(confirmed="0" * 64),
    "no digest": lambda found: found.update(confirmed=None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_a_draft_again(schema: Path, confirm: Any, change: str) -> None:
    assert confirm(schema, "y\n" * LINES).code == 0
    found = json.loads(schema.read_text())
    CHANGES[change](found)
    schema.write_text(json.dumps(found))
    table = Table.read(schema)
    assert table.drafted
    assert not table.is_confirmed
    assert table.read_from_rows
    assert confirm(schema, "n\n").code == 1


def test_a_confirmation_holds_whatever_else_a_schema_has_learnt_to_say() -> None:
    """The digest of what `people` declare, as it was when columns had nothing but ranges and
    lists."""
    assert PEOPLE.digest() == "8f6d22048a09e2ee113f5aaa642bf77c3c4c15af2363dd1ea2677ce794ed6901"
    assert replace(PEOPLE, label_place=0).digest() != PEOPLE.digest()


def test_spaces_in_a_file_are_no_change(schema: Path, confirm: Any) -> None:
    assert confirm(schema, "y\n" * LINES).code == 0
    schema.write_text(json.dumps(json.loads(schema.read_text()), indent=4))
    assert Table.read(schema).is_confirmed


def test_only_a_draft_is_confirmed(schema: Path, confirm: Any, tmp_path: Path) -> None:
    found = json.loads(schema.read_text())
    for change, says in (
        ({"drafted": "yes"}, "schema drafted cannot be read: expected `bool`"),
        ({"drafted": False, "confirmed": "0" * 64}, "is confirmed, but says that it is no draft"),
        ({"confirmed": True}, "schema confirmed cannot be read: expected `str | null`"),
    ):
        (tmp_path / "odd.json").write_text(json.dumps(found | change))
        ran = confirm(tmp_path / "odd.json", "y\n" * LINES)
        assert ran.code == 2
        assert says in ran.err
    own = {name: part for name, part in found.items() if name not in ("drafted", "confirmed")}
    (tmp_path / "own.json").write_text(json.dumps(own))
    ran = confirm(tmp_path / "own.json", "y\n" * LINES)
    assert ran.code == 2
    assert "is no draft" in ran.err
    assert confirm(tmp_path / "none.json", "").code == 2


def test_words_of_a_draft_do_not_move_the_terminals_cursor(tmp_path: Path, confirm: Any) -> None:
    odd = Category("w\x1b[2J", ("a\x1b[1A", "b"))
    table = Table((odd,), Category("y\r", ("u",)), drafted=True)
    (tmp_path / "odd.json").write_text(json.dumps(documents.as_json(table)))
    said = confirm(tmp_path / "odd.json", "y\n" * 3).out
    assert "\x1b" not in said
    assert "\r" not in said


def test_a_confirmed_draft_that_gets_logarithms_is_a_draft_again() -> None:
    table = Table((Number("cost", 1.0, 90.0),), Category("y", ("u",)), drafted=True).confirm()
    assert table.is_confirmed
    assert not table.with_logs().is_confirmed


def test_a_draft_and_its_confirmation_come_back_with_the_release(
    schema: Path, tmp_path: Path, capemix: Capemix, confirm: Any
) -> None:
    words = ("synth", tmp_path / "people.csv", "--schema", schema, "--method")
    words += ("class-gaussian", "--epsilon", 8, "--samples", 100, "--no-ledger", "--json", "--out")
    assert capemix(*words, tmp_path / "one").json["status"] == str(Status.FROM_ROWS)
    assert confirm(schema, "y\n" * LINES).code == 0
    assert capemix(*words, tmp_path / "two").json["status"] == "guarantee"
    for name, confirmed in (("one", False), ("two", True)):
        saved = read_release(tmp_path / name)
        assert saved.rows.table is not None
        assert (saved.rows.table.drafted, saved.rows.table.is_confirmed) == (True, confirmed)
        assumed = saved.manifest.guarantee["assumptions"]
        assert (CONFIRMED_DRAFT in assumed) == confirmed
