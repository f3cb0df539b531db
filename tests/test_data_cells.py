"""A cell is read by itself: its number and its word do not depend on the type that its column has,
in which kind of file or array it lies, or what the other cells are."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from capemix.data import UnlistedRows, by_site, open_cells
from capemix.data.arrays import cells_of_arrays, cells_of_columns
from capemix.data.cells import (
    LARGEST_WHOLE,
    Cells,
    are_distinct,
    number,
    numbers_of,
    places,
    spelled,
    words_of,
)
from capemix.errors import InputError

ARROW_DATE = pd.ArrowDtype(pa.date32())


def words(column: Any) -> list[str | None]:
    """Each cell's word."""
    found = words_of(column)
    return [None if at < 0 else found.distinct[at] for at in found.positions]


def same_numbers(found: Any, wanted: list[float]) -> bool:
    return bool(np.array_equal(found, np.array(wanted), equal_nan=True))


# -- one cell --------------------------------------------------------------------------------------

ONE_VALUE: dict[str | None, list[object]] = {
    "1": [1, 1.0, "1", " 1 ", "1.0", "1.00", "1.", b"1", np.int8(1), np.float32(1), Decimal("1.0"),
          "01", "+1", "1e0", True, "true", "TRUE", " True", np.True_, b"true"],
    "0": [0, 0.0, -0.0, "-0", "0.000", Decimal("-0"), np.uint64(0), 0j, False, "false", "00"],
    "-12": [-12, "-12.0", "-12", -12.0, Decimal("-12.00")],
    "0.1": [0.1, "0.1", "0.10", " 0.100", Decimal("0.10"), np.float64(0.1), 0.1 + 0j, "1e-1",
            np.float32(0.1), float(np.float32(0.1)), str(float(np.float32(0.1)))],
    "100000": [100000, "1e5", "1E+5", 1e5, Decimal("1E5")],
    "1e-05": [1e-5, "0.00001", "1e-05", Decimal("0.000010")],
    "1.5": [1.5, "1.5", "1.50", np.float16(1.5)],
    "é": ["é", "e\u0301", b"\xc3\xa9"],
    "2020-01-02": [
        datetime.date(2020, 1, 2),
        datetime.datetime(2020, 1, 2),
        "2020-01-02T00:00:00",
        "2020-01-02 00:00:00.000",
        *(np.datetime64("2020-01-02", unit) for unit in ("D", "h", "m", "s", "ms", "ns")),
        pd.Timestamp("2020-01-02"),
    ],
    "2020-01-01": [np.datetime64("2020", "Y"), np.datetime64("2020-01", "M"), "2020-01-01"],
    "2020-01-02 03:04:05.5": [
        datetime.datetime(2020, 1, 2, 3, 4, 5, 500_000),
        np.datetime64("2020-01-02T03:04:05.500"),
        np.datetime64("2020-01-02T03:04:05.500000000"),
        "2020-01-02T03:04:05.500",
    ],
    "2020-01-02 00:00:00+00:00": [
        datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC),
        "2020-01-02 00:00:00.000+00:00",
        "2020-01-02T00:00:00Z",
        "2020-01-02 02:00:00+02:00",
        datetime.datetime(2020, 1, 2, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
        pd.Timestamp("2020-01-01 19:00", tz="America/New_York"),
    ],
    "12:00:00": [datetime.time(12), "12:00:00", "12:00:00.000000"],
    "2 days": ["2 days", "2 days 00:00:00", "2 days 00:00:00.000"],
    "2 days 01:00:00.5": ["2 days 01:00:00.5", "2 days 01:00:00.500000"],
    "9007199254740991": [LARGEST_WHOLE, float(LARGEST_WHOLE), "9007199254740991.0"],
    None: [
        *(None, "", "  ", float("nan"), float("inf"), np.float32("nan"), Decimal("NaN")),
        *("nan", "NaN", "inf", "-Infinity", "NaT", "<NA>", "1e400"),
        *(Decimal("sNaN"), pd.NA, pd.NaT, np.datetime64("NaT"), 1j, complex(math.nan, 0)),
        *([1], (1,), {"a": 1}, {1}, object(), "\ud800", np.datetime64("NaT", "D")),
        *(datetime.timedelta(1), np.timedelta64(1, "D"), pd.Timedelta(1, "D")),
        *(LARGEST_WHOLE + 1, LARGEST_WHOLE + 2, float(LARGEST_WHOLE + 2), 10**5000),
        *(str(LARGEST_WHOLE + 1), "1e+16", "1" * 5000, -(10**16), "-10000000000000000.0"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("word", ONE_VALUE)
def test_a_value_has_one_spelling_whatever_its_type(word: str | None) -> None:
    assert [spelled(cell) for cell in ONE_VALUE[word]] == [word] * len(ONE_VALUE[word])
    if word is not None:
        assert spelled(word) == word


def test_text_that_is_no_plain_number_stays_as_it_is() -> None:
    for word in ("1_000", "0x1", "١", "None", "NA", "?", "1.1.1", "a\nb", "1 day", "12:00"):
        assert spelled(word) == word
    assert spelled(b"\xff") == spelled(b"\xfe") == "\ufffd"  # its own cell, and no other


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1", 1.0), (" 1 ", 1.0), ("\u00a01\t", 1.0), ("+1.5", 1.5), ("1.", 1.0), (".5", 0.5),
        ("-1e-3", -0.001), ("1E5", 1e5), ("01", 1.0), ("1e-400", 0.0), (b"2", 2.0), (True, 1.0),
        ("true", 1.0), ("FALSE", 0.0), (np.False_, 0.0), (Decimal("1.25"), 1.25), (2 + 0j, 2.0),
        (2**53 + 1, 2.0**53), (np.float16(0.5), 0.5), (-0.0, 0.0),
    ],
)  # fmt: skip
def test_what_reads_as_a_number(cell: object, value: float) -> None:
    assert number(cell) == value


@pytest.mark.parametrize(
    "cell",
    [
        *("", " ", "a", "nan", "inf", "-Infinity", "1e400", "1_000", "0x1", "1,5", "١", "1 2"),
        *("1\0", "e5", ".", "+", "1e", "yes", b"\xff", None, math.nan, math.inf, -math.inf, 1j),
        *(10**400,),
        *(pd.NA, pd.NaT, [1], Decimal("NaN"), Decimal("sNaN"), Decimal("1e400"), "9" * 400),
        *(datetime.date(2020, 1, 2), np.datetime64("2020"), datetime.timedelta(1)),
        *(np.timedelta64(1, "D"), object(), "\ud800"),
    ],
)  # fmt: skip
def test_anything_else_is_no_number(cell: object) -> None:
    assert math.isnan(number(cell))


@given(st.one_of(st.text(), st.binary(), st.integers(), st.floats(), st.decimals(), st.dates()))
def test_a_spelling_is_its_own_spelling(cell: object) -> None:
    word = spelled(cell)
    assert word is None or spelled(word) == word


# -- a column --------------------------------------------------------------------------------------

PLAIN = st.one_of(
    st.booleans(),
    st.integers(-LARGEST_WHOLE, LARGEST_WHOLE),
    st.integers(-9, 9),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: abs(value) < 2**53),
)


def holders(cell: Any, others: list[Any]) -> list[Any]:
    """Columns that hold the cell first, beside others, in every type that they go together in."""
    column = [cell, *others]
    made: list[Any] = [np.array(column, dtype=object), np.asarray(column)]
    made += [pd.Series(column, dtype=object).to_numpy(), pd.Series(column).to_numpy()]
    made += [np.array([*map(str, column)]), np.array([*map(str, column), "word"])]
    made.append(pa.array([*map(str, column), "word"]))
    made.append(pa.array([*map(str, column)]).dictionary_encode())
    made.append(pa.array([*(str(each).encode() for each in column), b"\xff"], pa.large_binary()))
    for typed in (column, [*column, None], [float(each) for each in column]):
        try:
            made.append(pa.array(typed))
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # not of one type
            continue
    made.append(pd.array(column, dtype=object))
    return [np.asarray(each) if isinstance(each, pd.api.extensions.ExtensionArray) else each
            for each in made]  # fmt: skip


@given(PLAIN, st.lists(PLAIN, max_size=4))
def test_a_cells_number_does_not_depend_on_the_type_of_its_column(
    cell: Any, others: list[Any]
) -> None:
    for column in holders(cell, others):
        assert numbers_of(column)[0] == number(cell), column


@given(PLAIN, st.lists(PLAIN, max_size=4))
def test_a_cells_place_in_a_list_does_not_depend_on_the_type_of_its_column(
    cell: Any, others: list[Any]
) -> None:
    """As a word or, of a truth value in a column of numbers, as that number's."""
    word = spelled(cell)
    assert word is not None
    for listed in ([word], ["other", word], ["other"]):
        at = places(listed).get(word, -1)
        for column in holders(cell, others):
            assert words_of(column).codes(places(listed))[0] == at, column


@given(st.lists(st.one_of(PLAIN, st.text(), st.none(), st.dates(), st.binary()), max_size=6))
def test_columns_of_objects_are_read_cell_by_cell(cells: list[Any]) -> None:
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    assert words(column) == [spelled(cell) for cell in cells]
    assert same_numbers(numbers_of(column), [number(cell) for cell in cells])


@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])),
                          st.floats().map(repr), st.integers().map(str)), max_size=6))  # fmt: skip
def test_arrows_text_is_read_as_pythons(cells: list[str | None]) -> None:
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(cells, kind)
        for each in (column, column.dictionary_encode(), column.cast(pa.large_binary())):
            assert words(each) == [spelled(cell) for cell in cells]
            assert same_numbers(numbers_of(each), [number(cell) for cell in cells])


def test_every_kind_of_white_space_is_none_of_a_number() -> None:
    spaces = [chr(at) for at in range(0x110000) if chr(at).isspace()]
    column = pa.array([f"{space}1{space}" for space in spaces])
    assert (numbers_of(column) == 1).all()
    assert words(column) == ["1"] * len(spaces)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_date_has_one_word_in_every_unit(unit: str) -> None:
    moments = [datetime.datetime(2020, 1, 2), datetime.datetime(2021, 3, 4, 5, 6, 7), None]
    wanted = ["2020-01-02", "2021-03-04 05:06:07", None]
    assert words(pa.array(moments, pa.timestamp(unit))) == wanted
    assert words(np.array(moments, dtype=f"M8[{unit}]")) == wanted
    assert words(np.array(moments[:1], dtype="M8[D]")) == wanted[:1]
    assert np.isnan(numbers_of(np.array(moments, dtype=f"M8[{unit}]"))).all()
    zoned = pa.array(moments, pa.timestamp(unit, "UTC"))
    assert words(zoned)[:2] == ["2020-01-02 00:00:00+00:00", "2021-03-04 05:06:07+00:00"]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_moments_of_any_frame_have_the_words_of_their_unit(unit: Any) -> None:
    """Of polars numpy makes numbers where its unit is finer than Python's."""
    moments = [datetime.datetime(2021, 3, 4, 5, 6, 7), None]
    frames: list[Any] = [
        pl.DataFrame({"m": pl.Series(moments, dtype=pl.Datetime(unit))}),
        pd.DataFrame({"m": pd.Series(moments, dtype=f"M8[{unit}]")}),
        {"m": pa.chunked_array([pa.array(moments, pa.timestamp(unit))])},
    ]
    for frame in frames:
        cells = cells_of_columns(frame, ["m"], None).columns["m"]
        assert words(cells) == ["2021-03-04 05:06:07", None]
        assert np.isnan(numbers_of(cells)).all()
    lengths = pl.DataFrame({"m": pl.Series([1, None], dtype=pl.Duration(unit))})
    cells = cells_of_columns(lengths, ["m"], None).columns["m"]
    assert words(cells) == [None, None]
    assert np.isnan(numbers_of(cells)).all()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_moment_beyond_the_calendar_of_its_zone_leaves_the_others_of_its_frame(unit: str) -> None:
    """Pandas fails to read a column that has one."""
    last = np.array(["NaT", "2020-01-01"], dtype=f"M8[{unit}]")
    last.view("i8")[0] = np.iinfo(np.int64).max
    moments = pd.DatetimeIndex(last).tz_localize("UTC").tz_convert("Europe/Rome")
    days = pd.Series(pa.array([2**31 - 1, 18262], pa.int32()).view(pa.date32()), dtype=ARROW_DATE)
    frame = pd.DataFrame({"m": moments, "d": days})
    cells = cells_of_columns(frame, ["m", "d"], None).columns
    assert words(cells["m"]) == [None, "2020-01-01 00:00:00+00:00"]
    assert words(cells["d"]) == [None, "2020-01-01"]


def test_a_date_in_no_calendar_says_nothing_of_the_others() -> None:
    days = pa.array([18263, 2**31 - 1, None], pa.int32()).cast(pa.date32())
    assert words(days) == ["2020-01-02", None, None]
    times = pa.array([0, 1], pa.int64()).cast(pa.time64("ns"))
    assert words(times)[0] == words(times.slice(0, 1))[0]


def test_what_is_no_plain_column_has_neither_words_nor_numbers() -> None:
    columns: list[Any] = [
        pa.array([[1], [2]]),
        pa.array([{"a": 1}, None]),
        pa.nulls(2),
        pa.array([datetime.timedelta(1), datetime.timedelta(2)]),
        np.array([(1, 2.0), (3, 4.0)], dtype=[("a", int), ("b", float)]),
        np.array([1, 2], dtype="m8[D]"),
        np.array([[1], [2]], dtype=object)[:, :0].reshape(0),
    ]
    for column in columns:
        assert set(words(column)) <= {None}
        assert np.isnan(numbers_of(column)).all()
        assert len(words(column)) == len(numbers_of(column)) == len(column)


def test_no_record_is_a_column_too() -> None:
    for column in (np.array([]), np.array([], dtype="U1"), pa.array([], pa.string()), pa.nulls(0)):
        assert words(column) == []
        assert len(numbers_of(column)) == 0
        assert words_of(column).codes({"a": 0}).tolist() == []


# -- writers ---------------------------------------------------------------------------------------

NEIGHBOURS: dict[str, tuple[list[Any], list[Any]]] = {
    "whole, beside nothing": ([1, 2], [None]),
    "whole, beside a fraction": ([1, 2], [0.5]),
    "whole, beside text": ([1, 2], ["word"]),
    "fraction, beside text": ([0.5, 2.25], ["word"]),
    "truth, beside nothing": ([True, False], [None]),
    "truth, beside text": ([True, False], ["word"]),
    "day, beside a moment": (
        [pd.Timestamp("2020-01-02")],
        [pd.Timestamp("2020-01-03 01:02:03.5")],
    ),
    "moment in a zone, beside a finer one": (
        [pd.Timestamp("2020-01-02", tz="UTC")],
        [pd.Timestamp("2020-01-03 01:02:03.5", tz="UTC")],
    ),
    "decimal, beside a finer one": ([Decimal("0.1"), Decimal("2")], [Decimal("0.255")]),
    "text, beside nothing": (["a", "01", "1.0"], [None]),
    "text, beside a quote": (["a", "1"], ['say "it", \n']),
}


def by_pandas_csv(cells: list[Any], path: Path) -> Path:
    file = path / "rows.csv"
    frame = pd.DataFrame({"a": pd.Series(cells), "y": range(len(cells))})
    frame.to_csv(file, index=False)
    return file


def by_pandas_parquet(cells: list[Any], path: Path) -> Path:
    file = path / "rows.parquet"
    column = pd.Series(cells)
    if column.dtype == object and len({type(each) for each in cells if each is not None}) > 1:
        column = column.astype("string")
    pd.DataFrame({"a": column, "y": range(len(cells))}).to_parquet(file)
    return file


def by_arrow_csv(cells: list[Any], path: Path) -> Path:
    file = path / "rows.csv"
    kinds = {type(each) for each in cells if each is not None}
    told = cells if len(kinds) == 1 or kinds <= {int, float} else [*map(str, cells)]
    arrow_csv.write_csv(pa.table({"a": pa.array(told), "y": [*range(len(cells))]}), file)
    return file


def by_numpy(cells: list[Any], path: Path) -> Path:
    file = path / "rows.npz"
    told = np.array(["" if each is None else each for each in cells])
    if told.dtype == object:
        told = np.array([*map(str, cells)])
    np.savez(file, X=np.ones((len(cells), 1)), a=told, y=np.arange(len(cells)))
    return file


@pytest.mark.parametrize("case", NEIGHBOURS)
@pytest.mark.parametrize("write", [by_pandas_csv, by_pandas_parquet, by_arrow_csv, by_numpy])
def test_a_writer_that_turns_a_column_because_of_one_record_turns_no_other(
    tmp_path: Path, case: str, write: Callable[[list[Any], Path], Path]
) -> None:
    cells, more = NEIGHBOURS[case]

    def read(column: list[Any]) -> tuple[list[str | None], Any]:
        found = open_cells(write(column, tmp_path), "y", ("a",))
        order = np.argsort(numbers_of(found.columns["y"]))[: len(cells)]  # lines with a quote moved
        kept = found.take(order).columns["a"]
        return words(kept), numbers_of(kept)

    alone, beside = read(cells), read(cells + more)
    assert beside[0] == alone[0] == [spelled(cell) for cell in cells]
    assert same_numbers(beside[1], alone[1].tolist())


# -- a declared list -------------------------------------------------------------------------------


def test_a_word_stands_where_its_value_does() -> None:
    assert places(["a", "01", 3]) == {"a": 0, "1": 1, "3": 2}
    assert places([]) == {}


def test_truth_values_are_one_and_zero() -> None:
    assert places([False, True]) == places([0, 1]) == places(["false", "TRUE"]) == {"0": 0, "1": 1}
    assert places(["yes", "true"]) == {"yes": 0, "1": 1}


@pytest.mark.parametrize(
    "values",
    [
        [1, "1"], ["a", " a "], [True, "TRUE"], ["1.0", 1], ["1.5", "1.50"], ["é", "e\u0301"],
        ["a", ""], [None], [2**53], ["2020-01-02", "2020-01-02T00:00:00"],
        [True, 1], ["0", "false"],
        ["01", 1], ["nan"], ["2020-01-02T00:00:00Z", "2020-01-02 01:00:00+01:00"],
    ],
)  # fmt: skip
def test_a_list_with_a_value_twice_or_without_a_word_is_not_distinct(values: list[Any]) -> None:
    assert not are_distinct(values)


def test_different_values_are_distinct() -> None:
    assert are_distinct([1, 0, "a", "A", "0x1"])
    assert are_distinct([True, False])


# -- tables in memory ------------------------------------------------------------------------------


def test_cells_of_lists_keep_their_own_types() -> None:
    labels = [True, 1, "1.0", np.float32(0.1), None, "word"]
    cells = cells_of_arrays([[1, "2"], [0.5, "x"], *[[0, 0]] * 4], labels)
    wanted = ["1", "1", "1", "0.1", None, "word"]
    assert words(cells.columns["label"]) == wanted
    assert words(np.array(labels, dtype=object)) == wanted
    assert same_numbers(cells.numbers(("x0", "x1"))[:2], [[1, 2], [0.5, np.nan]])
    beside = cells_of_columns({"a": labels}, ["a"], "y", [1] * 6)
    assert words(beside.columns["a"]) == wanted


def test_dates_of_an_array_are_no_numbers_in_any_unit() -> None:
    for unit in ("D", "s", "ns"):
        days = np.array(["2020-01-02"], dtype=f"M8[{unit}]")
        for column in (days, pd.Series(days)):
            cells = cells_of_columns({"a": column}, ["a"], "y", [1])
            assert words(cells.columns["a"]) == ["2020-01-02"]
            assert np.isnan(cells.numbers(["a"])).all()


def test_arrays_in_memory_must_fit() -> None:
    with pytest.raises(InputError, match="rows of one length"):
        cells_of_arrays([[1, 2], [3]], [0, 1])
    with pytest.raises(InputError, match="X must be rows by columns"):
        cells_of_arrays([1, 2], [0, 1])
    with pytest.raises(InputError, match="y must be one label per row"):
        cells_of_arrays([[1], [2]], [[0], [1]])
    with pytest.raises(InputError, match="lacks a column of the schema"):
        cells_of_columns({"a": [1]}, ["b"], "y", [1])
    with pytest.raises(InputError, match="a value for each of the 1 records"):
        cells_of_columns({"a": [1, 2]}, ["a"], "y", [1])


def test_a_record_counts_by_its_own_cells() -> None:
    cells = cells_of_arrays(
        [["1", "2"], ["x", "2"], ["3", "nan"], ["5", "6"], ["7", "8"]], ["u", "u", "u", "off", None]
    )
    rows = UnlistedRows.of(cells, "label").listed(("u", "v"))
    assert rows.features.tolist() == [[1, 2]]
    assert rows.labels.tolist() == [0]
    assert rows.unfit == 4
    narrower = UnlistedRows.of(cells, "label").columns(("x0",)).listed(("u", "off"))
    assert narrower.features[:, 0].tolist() == [1, 3, 5]  # by the columns that are used
    assert rows.read_from_rows == ()


def test_classes_that_come_from_the_rows_are_marked() -> None:
    cells = cells_of_arrays(np.eye(5), ["b", "10", "9", "?", None])
    rows = UnlistedRows.of(cells, "label").as_they_come()
    assert rows.classes == ("10", "9", "b")
    assert rows.unfit == 2
    assert rows.read_from_rows == ("the class list",)
    whole = UnlistedRows.of(cells_of_arrays(np.eye(3), ["10", "9", "-1"]), "label").as_they_come()
    assert whole.classes == (-1, 9, 10)


# -- sites -----------------------------------------------------------------------------------------


def some_cells() -> Cells:
    columns = {
        "a": np.arange(5.0),
        "place": np.array(["north", " east", "1", "nowhere", None], dtype=object),
        "y": np.zeros(5),
    }
    return Cells(5, columns, "y")


def test_a_record_is_at_the_site_that_its_own_cell_names() -> None:
    parts = by_site(some_cells(), "place", ("east", "north", 1, "west"))
    assert [part.numbers(["a"]).ravel().tolist() for part in parts] == [[1], [0], [2], []]
    assert [part.records for part in parts] == [1, 1, 1, 0]
    for names in (("north",), ("nowhere", "north")):
        assert by_site(some_cells(), "place", names)[-1].numbers(["a"]).ravel().tolist() == [0]


def test_sites_are_by_a_column_that_is_there_and_names_that_differ() -> None:
    with pytest.raises(InputError, match="site column names no column"):
        by_site(some_cells(), "town", ("a",))
    with pytest.raises(InputError, match="site names has a value twice"):
        by_site(some_cells(), "place", ("a", " a"))
    with pytest.raises(InputError, match="site names must be from 1"):
        by_site(some_cells(), "place", ())
    with pytest.raises(InputError, match="text or whole numbers"):
        by_site(some_cells(), "place", (1.5,))  # type: ignore[arg-type]


def test_a_site_takes_arrow_columns_and_a_matrix_apart_too(tmp_path: Path) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, X=np.arange(6).reshape(3, 2), y=[0, 1, 0], place=[9, 8, 9])
    first, second = by_site(open_cells(file, also=("place",)), "place", (8, 9))
    assert first.numbers(first.matrix_names).tolist() == [[2, 3]]
    assert words(second.columns["y"]) == ["0", "0"]
    table = pa.table({"a": [1, 2, 3], "place": ["n", "e", "n"], "y": [0, 1, 0]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    east, _ = by_site(open_cells(tmp_path / "rows.parquet", "y"), "place", ("e", "n"))
    assert east.numbers(["a"]).tolist() == [[2]]
