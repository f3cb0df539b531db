"""A user's file becomes records: each line, or row, by itself. What is refused is the file as a
whole, in one sentence that says what to mend."""

from __future__ import annotations

import datetime
import gzip
import io
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from capemix.data import (
    LabeledRows,
    Table,
    UnlistedRows,
    faults_of,
    naming_lines,
    open_cells,
    open_data,
    readers,
)
from capemix.data import parquet as parquet_reader
from capemix.data.schema import Category, Number
from capemix.errors import InputError
from capemix.kernels import machine

TABLE = "age,income,sick\n30,1.5,yes\n40,2.5,no\n50,3.5,no\n"


def csv(tmp_path: Path, text: str | bytes, name: str = "rows.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def npz(tmp_path: Path, **arrays: Any) -> Path:
    path = tmp_path / "rows.npz"
    np.savez(path, **arrays)
    return path


def pq(tmp_path: Path, **columns: Any) -> Path:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


def loaded(path: Path, label: str | None = None) -> LabeledRows:
    """With the labels that there are as classes."""
    return open_data(path, label).train


def records(path: Path, label: str = "y") -> list[tuple[str | None, ...]]:
    """Every record's words, sorted: their order says nothing."""
    cells = open_cells(path, label)
    columns = [cells.words(name) for name in cells.names]
    found = [
        tuple(None if (at := w.positions[row]) < 0 else w.distinct[at] for w in columns)
        for row in range(cells.records)
    ]
    return sorted([*found, *[(None,) * len(columns)] * cells.without_value], key=repr)


def refusal(path: Path, label: str | None = "y") -> str:
    with pytest.raises(InputError) as caught:
        UnlistedRows.of(cells := open_cells(path, label), cells.label)
    assert caught.value.field
    assert caught.value.fix
    return str(caught.value)


# What is read


def test_a_csv_file_becomes_rows(tmp_path: Path) -> None:
    rows = loaded(csv(tmp_path, TABLE), "sick")
    assert rows.features.tolist() == [[30, 1.5], [40, 2.5], [50, 3.5]]
    assert rows.features.flags.c_contiguous
    assert not rows.features.flags.writeable
    assert rows.classes == ("no", "yes")
    assert rows.labels.tolist() == [1, 0, 0]
    assert rows.feature_names == ("age", "income")
    assert rows.label_name == "sick"
    assert rows.unfit == 0


def test_a_compressed_csv_file_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ROWS.CSV.GZ"
    path.write_bytes(gzip.compress(TABLE.encode()))
    plain = loaded(csv(tmp_path, TABLE), "sick")
    packed = loaded(path, "sick")
    assert packed.features.tolist() == plain.features.tolist()
    assert packed.classes == plain.classes


@pytest.mark.parametrize(
    ("tokens", "classes"),
    [
        (["10", "9", "-1"], (-1, 9, 10)),
        (["1.0", "2", "1"], (1, 2)),
        (["01", "1", "2"], (1, 2)),
        (["b", "a", "a"], ("a", "b")),
        (["0.5", "1.5", "0.50"], ("0.5", "1.5")),
        (["True", "false", "TRUE"], (0, 1)),
        (['"a,b"', "c", '"say ""it"""'], ("a,b", "c", 'say "it"')),
        (["é", "日本", "é"], ("é", "日本")),
        (["same", "same", "same"], ("same",)),
    ],
)
def test_labels_as_they_come_are_their_words(
    tmp_path: Path, tokens: list[str], classes: tuple[str | int, ...]
) -> None:
    text = "y,a\n" + "".join(f"{token},1\n" for token in tokens)
    rows = loaded(csv(tmp_path, text), "y")
    assert rows.classes == classes
    assert rows.unfit == 0
    assert rows.read_from_rows == ("the class list",)


def test_declared_classes_are_the_rows_and_no_others(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,y\n1,None\n2, mild\n3,severe\n4,\n5,1.0\n")
    rows = open_data(path, "y", classes=("None", "mild", 1, "never seen")).train
    assert rows.classes == ("None", "mild", 1, "never seen")  # a missing word may be declared
    assert rows.labels.tolist() == [0, 1, 2]
    assert rows.features[:, 0].tolist() == [1, 2, 5]
    assert rows.unfit == 2
    assert rows.read_from_rows == ()


@pytest.mark.parametrize(
    "classes", [(), ("a", " a"), (1, "1.0"), ("",), (True,), tuple(range(1001))]
)
def test_a_list_that_is_none_is_refused(tmp_path: Path, classes: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="classes"):
        open_data(csv(tmp_path, TABLE), "sick", classes=classes)


def test_truth_values_are_numbers(tmp_path: Path) -> None:
    rows = loaded(csv(tmp_path, "a,y\ntrue,0\nFalse,1\n"), "y")
    assert rows.features[:, 0].tolist() == [1, 0]


def test_a_column_may_turn_fractional_after_many_whole_rows(tmp_path: Path) -> None:
    filler = "0" * 1000
    body = "".join(f"{at},{at % 2}\n" for at in range(20_000))
    text = f"a{filler},y\n{body}0.5,1\n"
    assert loaded(csv(tmp_path, text), "y").features[-1, 0] == 0.5


@pytest.mark.parametrize("bad", ["", "NA", "nan", "inf", "-inf", " ? ", "1e999", "word"])
def test_a_record_without_a_number_counts_for_nothing(tmp_path: Path, bad: str) -> None:
    rows = loaded(csv(tmp_path, f"a,b,y\n1,{bad},u\n2,5,v\n{bad},4.5,v\n"), "y")
    assert rows.features.tolist() == [[2, 5]]
    assert rows.unfit == 2


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_so_does_one_of_a_typed_file(tmp_path: Path, bad: Any) -> None:
    table = loaded(pq(tmp_path, a=[1.5, bad, 2.5], y=[1, 2, 1]), "y")
    array = np.array([[1.5], [np.nan if bad is None else bad], [2.5]])
    arrays = loaded(npz(tmp_path, X=array, y=np.array([1, 2, 1])))
    for rows in (table, arrays):
        assert rows.features[:, 0].tolist() == [1.5, 2.5]
        assert rows.unfit == 1


@pytest.mark.parametrize("bad", ["", " ", "NA", "?"])
def test_a_record_without_a_label_counts_for_nothing(tmp_path: Path, bad: str) -> None:
    rows = loaded(csv(tmp_path, f"a,y\n1,{bad}\n2,1\n3,0\n"), "y")
    assert rows.classes == (0, 1)
    assert rows.unfit == 1


def test_so_does_one_of_a_typed_file_without_a_label(tmp_path: Path) -> None:
    assert loaded(pq(tmp_path, a=[1, 2, 3], y=["u", None, None]), "y").unfit == 2
    assert loaded(npz(tmp_path, X=np.eye(2), y=np.array([1, np.nan]))).unfit == 1


@pytest.mark.parametrize("text", ["a,y", "a,y\n", "a,y\n\n\n", "a,y\n1\n1,2,3\n"])
def test_a_header_without_records_is_a_table_of_none(tmp_path: Path, text: str) -> None:
    rows = open_data(csv(tmp_path, text), "y", classes=("u",)).train
    assert len(rows) == 0
    assert rows.width == 1


def test_one_record_is_a_table_too(tmp_path: Path) -> None:
    for path in (csv(tmp_path, "a,y\n1,2\n"), pq(tmp_path, a=[1], y=[2])):
        assert open_data(path, "y", classes=(2, 3)).train.features.tolist() == [[1]]
    rows = open_data(npz(tmp_path, X=np.ones((1, 2)), y=np.ones(1)), classes=(1,)).train
    assert rows.features.tolist() == [[1, 1]]
    for none in (
        npz(tmp_path, X=np.ones((0, 2)), y=np.ones(0)),
        pq(tmp_path, a=pa.array([], pa.int64()), b=pa.nulls(0), y=pa.array([], pa.int8())),
    ):
        assert open_data(none, "y", classes=("u",)).train.features.shape == (0, 2)


def test_no_number_of_distinct_labels_is_refused(tmp_path: Path) -> None:
    text = "a,y\n" + "".join(f"1,id{at}\n" for at in range(2000))
    rows = open_data(csv(tmp_path, text), "y", classes=("id7", "id8")).train
    assert len(rows) == 2
    assert rows.unfit == 1998
    assert len(loaded(csv(tmp_path, text), "y").classes) == 2000  # for its owner's eyes


# The lines of a text file


def test_spaces_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    rows = loaded(csv(tmp_path, "\ufeffa, y\r\n 1, u\r\n2 , v\r\n"), "y")
    assert rows.features[:, 0].tolist() == [1, 2]
    assert rows.classes == ("u", "v")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_both_kinds_of_line_end_end_a_line(tmp_path: Path, end: str) -> None:
    text = end.join(["a,y", "1,u", '2,"v"', "3,w"])
    wanted = [("1", "u"), ("2", "v"), ("3", "w")]
    for last in ("", end):
        assert records(csv(tmp_path, end + text + last)) == wanted


LINES = {
    "a cell too many": b"1,u,",
    "a cell too few": b"1",
    "a blank": b" ",
    "nothing": b"",
    "quotes and a cell too few": b'"1"',
    "a line too long": b"1," + b"u" * (readers.MAX_LINE + 1),
    "a quoted line too long": b'"1",' + b"u" * (readers.MAX_LINE + 1),
}


@pytest.mark.parametrize("case", LINES)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_line_that_is_no_record_has_no_value_and_takes_no_other_with_it(
    tmp_path: Path, case: str, at: int
) -> None:
    lines = [b"3,w", b'4,"x,y"']
    wanted = records(csv(tmp_path, b"\n".join([b"a,y", *lines])))
    assert wanted == [("3", "w"), ("4", "x,y")]
    lines.insert(at, LINES[case])
    found = records(csv(tmp_path, b"\n".join([b"a,y", *lines, b""])))
    assert found == sorted([*wanted, (None, None)], key=repr)


def test_a_quoted_cell_may_have_line_ends_and_whole_records_in_it(tmp_path: Path) -> None:
    text = 'a,y\n1,"u\nv"\n2,"\n3,w\n4,w\n"\r\n"5\n","x ""y"""'
    found = records(csv(tmp_path, text))
    wanted = [("1", "u\nv"), ("2", "3,w\n4,w"), ("5", 'x "y"')]
    assert found == sorted(wanted, key=repr)


@pytest.mark.parametrize("line", ['"1,u', '1,"u', '1,"u"v', '1,u"v"', '1, "u"', '1,"u\\"v"'])
def test_quotes_that_no_csv_writer_leaves_are_refused_and_their_line_is_for_the_owner(
    tmp_path: Path, line: str
) -> None:
    """Then nobody can tell where a record ends, and one could pass for many."""
    path = csv(tmp_path, f"a,y\n3,w\n{line}\n4,x\n")
    said = refusal(path)
    assert "has a quote that is left open, or that stands inside a cell, or a backslash" in said
    assert "(got" not in said
    table = Table((Number("a", 0, 9),), Category("y", ("w",)))
    with pytest.raises(InputError, match=r"\(got line 3\)"), naming_lines():
        faults_of(path, table)


CELLS: dict[str, tuple[bytes, tuple[str | None, ...]]] = {
    "no UTF-8": (b"1,\xff\xfe", ("1", "\ufffd\ufffd")),
    "half of a character": (b"1,\xe6\x97", ("1", "\ufffd")),
    "quoted, no UTF-8": (b'1,"\xff,"', ("1", "\ufffd,")),
    "a NUL": (b"1,u\0v", ("1", "u\0v")),
    "a quoted NUL": (b'1,"u\0v"', ("1", "u\0v")),
    "a mark of byte order": (b"\xef\xbb\xbf1,u", ("\ufeff1", "u")),
    "other ends of lines": ("1,u\x0bv\u2028w\x85x".encode(), ("1", "u\x0bv\u2028w\x85x")),
    "a long cell": (b"1," + b"u" * 200_000, ("1", "u" * 200_000)),
    "a long quoted cell": (b'"1",' + b"u" * 200_000, ("1", "u" * 200_000)),
    "a carriage return": (b"1,u\rv", ("1", "u\rv")),
    "empty cells": (b",", (None, None)),
    "a backslash": (b"1\\,u", ("1\\", "u")),
}


@pytest.mark.parametrize("case", CELLS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_odd_cell_is_its_own_and_reads_the_same_on_any_line(
    tmp_path: Path, case: str, at: int
) -> None:
    line, found = CELLS[case]
    lines = [b"3,w", b'4,"x,y"']
    lines.insert(at, line)
    wanted = sorted([("3", "w"), ("4", "x,y"), found], key=repr)
    assert records(csv(tmp_path, b"\n".join([b"a,y", *lines]))) == wanted


def is_one_line(line: bytes) -> bool:
    return not set(line) & set(b'\r\n"\\')


@given(st.lists(st.binary(max_size=12).filter(is_one_line), max_size=6))
def test_the_records_of_a_file_are_those_of_its_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = records(csv(folder, b"\n".join([b"a,y", *lines, b""])))
    each = [record for line in lines for record in records(csv(folder, b"a,y\n" + line + b"\n"))]
    assert len(whole) == len(lines)
    assert whole == sorted(each, key=repr)


def test_where_a_file_is_cut_into_pieces_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "a,y",
        *(f'{at},"u{at}"' if at % 3 else f"\ufeff{at},é{at}" for at in range(50)),
        '"1"',
    ]
    wanted = records(csv(tmp_path, "\n".join(lines)))
    assert len(wanted) == 51
    for piece in (1, 7, 64, 500):
        monkeypatch.setattr(readers, "_PIECE", piece)
        assert records(csv(tmp_path, "\n".join(lines))) == wanted


# Typed files


def test_a_parquet_file_becomes_rows(tmp_path: Path) -> None:
    path = pq(
        tmp_path,
        a=pa.array([1, 2], pa.int32()),
        b=pa.array([True, False]),
        c=pa.array([Decimal("1.25"), Decimal("2.50")]),
        y=pa.array(["u", "v"]).dictionary_encode(),
        __index_level_0__=pa.array([7, 8]),
    )
    rows = loaded(path, "y")
    assert rows.features.tolist() == [[1, 1, 1.25], [2, 0, 2.5]]
    assert rows.feature_names == ("a", "b", "c")
    assert rows.classes == ("u", "v")


COLUMNS: dict[str, tuple[pa.Array, list[float | None], list[str | None]]] = {
    "bytes": (pa.array([b"1", b"\xff", None]), [1, None, None], ["1", "\ufffd", None]),
    "text": (pa.array(["1.50", "u", None]), [1.5, None, None], ["1.5", "u", None]),
    "large text": (pa.array(["1", "", "2"], pa.large_string()), [1, None, 2], ["1", None, "2"]),
    "views of text": (pa.array(["1", "u"]).cast(pa.string_view()), [1, None], ["1", "u"]),
    "bytes of one length": (pa.array([b"12", b"ab"], pa.binary(2)), [12, None], ["12", "ab"]),
    "dictionary": (pa.array(["1", "u"]).dictionary_encode(), [1, None], ["1", "u"]),
    "dictionary of numbers": (pa.array([3, None]).dictionary_encode(), [3, None], ["3", None]),
    "decimal": (pa.array([Decimal("0.10"), None]), [0.1, None], ["0.1", None]),
    "wide decimal": (pa.array([Decimal(10) ** 60]).cast(pa.decimal256(70)), [1e60], [None]),
    "whole": (pa.array([1, None, -2], pa.int8()), [1, None, -2], ["1", None, "-2"]),
    "larger than a double": (pa.array([2**64 - 1], pa.uint64()), [2.0**64], [None]),
    "half": (pa.array([np.float16(0.5), None], pa.float16()), [0.5, None], ["0.5", None]),
    "single": (pa.array([0.5, float("nan")], pa.float32()), [0.5, None], ["0.5", None]),
    "truth": (pa.array([True, None]), [1, None], ["1", None]),
    "dates": (pa.array([datetime.date(2020, 1, 2), None]), [None, None], ["2020-01-02", None]),
    "moments": (pa.array([datetime.datetime(2020, 1, 2, 3)]), [None], ["2020-01-02 03:00:00"]),
    "nulls": (pa.nulls(2), [None, None], [None, None]),
    "lists": (pa.array([[1], None]), [None, None], [None, None]),
    "structs": (pa.array([{"a": 1}, {"a": None}]), [None, None], [None, None]),
    "lists of texts": (pa.array([["a"], []]), [None, None], [None, None]),
}  # fmt: skip


@pytest.mark.parametrize("case", COLUMNS)
def test_every_type_of_a_parquet_column_is_read_cell_by_cell(tmp_path: Path, case: str) -> None:
    column, numbers, words = COLUMNS[case]
    cells = open_cells(pq(tmp_path, a=column, y=[*range(len(column))]), "y")
    found = cells.numbers(["a"])[:, 0]
    assert [None if np.isnan(each) else each for each in found] == numbers
    spelt = cells.words("a")
    assert [None if at < 0 else spelt.distinct[at] for at in spelt.positions] == words


def test_columns_that_are_no_numbers_leave_no_rows_and_say_nothing(tmp_path: Path) -> None:
    path = pq(tmp_path, town=["Rome", "Oslo"], deep=[[1], [2]], y=["u", "v"])
    rows = loaded(path, "y")
    assert len(rows) == 0
    assert rows.unfit == 2
    by_schema = Table((Category("town", ("Oslo",), missing=True),), Category("y", ("u", "v")))
    assert open_data(path, table=by_schema).train.features.tolist() == [[0, 1], [1, 0]]


def test_nested_labels_are_missing(tmp_path: Path) -> None:
    assert open_data(pq(tmp_path, a=[1, 2], y=[[1], [2]]), "y", classes=(1,)).train.unfit == 2


def test_a_parquet_file_in_many_chunks_is_one_table(tmp_path: Path) -> None:
    table = pa.table({"a": [*range(10)], "y": pa.array(["u", "v"] * 5)})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=3)
    rows = loaded(tmp_path / "rows.parquet", "y")
    assert rows.features[:, 0].tolist() == [*range(10)]
    assert rows.labels.tolist() == [0, 1] * 5


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([3, 1, 3], (1, 3)),
        ([3.0, 1.0, 3.0], (1, 3)),
        ([0.5, 1.0, 0.5], ("0.5", "1")),
        (["3", "1", "3"], (1, 3)),
        ([True, False, True], (0, 1)),
    ],
)
def test_typed_labels_are_the_same_words_as_text(
    tmp_path: Path, labels: list[Any], classes: tuple[str | int, ...]
) -> None:
    table = pq(tmp_path, a=[1, 2, 3], y=labels)
    arrays = npz(tmp_path, X=np.eye(3), y=np.array(labels))
    text = csv(tmp_path, "a,y\n" + "".join(f"1,{label}\n" for label in labels))
    for rows in (loaded(table, "y"), loaded(arrays), loaded(text, "y")):
        assert rows.classes == classes
        assert [rows.classes[code] for code in rows.labels] == [
            rows.classes[rows.labels[0]], rows.classes[rows.labels[1]], rows.classes[rows.labels[0]]
        ]  # fmt: skip


def test_dates_are_classes_too(tmp_path: Path) -> None:
    path = pq(tmp_path, a=[1, 2], y=[datetime.date(2020, 1, 2), datetime.date(2019, 1, 2)])
    assert loaded(path, "y").classes == ("2019-01-02", "2020-01-02")


@pytest.mark.parametrize(
    ("x_name", "y_name"),
    [("X", "y"), ("features", "labels"), ("data", "target"), ("x_train", "y_train")],
)
def test_known_pairs_of_arrays_are_found(tmp_path: Path, x_name: str, y_name: str) -> None:
    path = npz(tmp_path, **{x_name: np.eye(3, dtype=np.float32), y_name: np.array([4, 5, 4])})
    rows = loaded(path)
    assert rows.features.dtype == np.float64
    assert rows.features.tolist() == np.eye(3).tolist()
    assert rows.labels.tolist() == [0, 1, 0]
    assert rows.feature_names == ("x0", "x1", "x2")
    assert rows.label_name == y_name


DTYPES = ["?", "i1", "u2", "i8", "u8", "f2", "f4", "f8", "g", "c8", "U4", "S4", ">i4", ">f8", ">U4"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_any_type_are_the_same_numbers_and_words(tmp_path: Path, dtype: str) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(dtype)
    rows = open_data(npz(tmp_path, X=array, y=array[:, 0]), classes=(0, 1)).train
    assert rows.features.tolist() == [[0, 1], [1, 0]]
    assert rows.labels.tolist() == [0, 1]


@pytest.mark.parametrize("dtype", ["M8[D]", "m8[s]", [("a", "i4"), ("b", "f8")], "V4"])
def test_arrays_of_no_numbers_leave_no_rows(tmp_path: Path, dtype: Any) -> None:
    odd = np.zeros((2, 1), dtype=dtype)
    rows = open_data(npz(tmp_path, X=odd, y=np.array([0, 1])), classes=(0, 1)).train
    assert len(rows) == 0
    assert rows.unfit == 2
    labels = open_data(npz(tmp_path, X=np.eye(2), y=odd), classes=(0, 1)).train
    assert labels.unfit == 2


@pytest.mark.parametrize("point", [0x110000, 0x1000000, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("order", "<>")
def test_text_with_no_characters_spoils_its_own_cell(
    tmp_path: Path, point: int, order: str
) -> None:
    bent = np.array(["1", "2", "3"], dtype=f"{order}U1")
    bent.view(f"{order}u4")[1] = point
    rows = open_data(npz(tmp_path, X=np.eye(3), y=bent), classes=(1, 3)).train
    assert rows.labels.tolist() == [0, 1]
    assert rows.unfit == 1
    rows = open_data(npz(tmp_path, X=bent[:, None], y=np.ones(3)), classes=(1,)).train
    assert rows.features.tolist() == [[1], [3]]


def test_bytes_stay_bytes_where_all_of_an_array_is_read(tmp_path: Path) -> None:
    array = np.array([[1, 255], [0, 7]], dtype=np.uint8)
    rows = open_data(npz(tmp_path, X=array, y=np.array(["u", "off"])), classes=("u",)).train
    assert rows.features.dtype == np.uint8
    assert rows.features.tolist() == [[1, 255]]


def test_the_label_option_names_the_array_of_the_classes(tmp_path: Path) -> None:
    path = npz(tmp_path, X=np.eye(2), y=np.array([0, 1]), z=np.array(["u", "u"]))
    assert loaded(path, "z").classes == ("u",)
    other = npz(tmp_path, pixels=np.eye(2), z=np.array(["u", "v"]))
    assert loaded(other, "z").width == 2


@pytest.mark.parametrize("shape", [(3, 2, 4), (3, 2, 4, 1)])
def test_images_are_flattened_and_keep_their_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = np.asfortranarray(np.arange(24, dtype=np.uint8).reshape(shape))
    rows = loaded(npz(tmp_path, X=images, y=np.array([[0], [1], [0]])))
    assert rows.image_shape == (2, 4)
    assert rows.features.tolist() == np.arange(24).reshape(3, 8).tolist()
    assert rows.features.dtype == np.uint8
    assert rows.features.flags.c_contiguous


def test_a_column_may_be_no_feature(tmp_path: Path) -> None:
    cells = open_cells(csv(tmp_path, "a,place,y\n1,north,u\n2,east,v\n3,north,u\n"), "y")
    rows = UnlistedRows.of(cells, "y", but=("place",))
    assert rows.feature_names == ("a",)
    assert "1" not in repr(rows).replace("width=1", "")
    with pytest.raises(InputError, match="no feature columns"):
        UnlistedRows.of(cells, "y", but=("place", "a"))


def test_a_file_is_read_by_a_schema_that_it_must_have_the_columns_of(tmp_path: Path) -> None:
    table = Table((Number("age", 0, 90, type="integer"),), Category("sick", ("no", "yes")))
    rows = open_data(csv(tmp_path, TABLE), table=table).train
    assert rows.features.tolist() == [[30], [40], [50]]
    assert open_data(csv(tmp_path, TABLE), "sick", table=table).train.labels.tolist() == [1, 0, 0]
    with pytest.raises(InputError, match="label is not the schema's"):
        open_data(csv(tmp_path, TABLE), "age", table=table)
    wider = Table((*table.columns, Number("height", 0, 1)), table.label)
    with pytest.raises(InputError, match="schema names no column"):
        open_data(csv(tmp_path, TABLE), table=wider)


# What is refused


def test_a_missing_file_and_an_unknown_suffix_are_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.csv")
    assert ".parquet" in refusal(csv(tmp_path, TABLE, "rows.xlsx"))
    (tmp_path / "folder.csv").mkdir()
    assert "does not exist" in refusal(tmp_path / "folder.csv")
    with pytest.raises(InputError, match="neither a dataset nor a file"):
        open_data(tmp_path / "none.csv", "y")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.npz", "a.parquet"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    assert "is empty" in refusal(csv(tmp_path, "", name))


@pytest.mark.parametrize("text", ["\n", "\ufeff", " \r\n\r\n"])
def test_a_file_of_nothing_but_blanks_is_refused(tmp_path: Path, text: str) -> None:
    assert "is empty" in refusal(csv(tmp_path, text))


def test_a_compressed_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b""))
    assert "is empty" in refusal(path)


def test_a_table_needs_the_label_option(tmp_path: Path) -> None:
    assert "label is not given" in refusal(csv(tmp_path, TABLE), None)
    assert "label is not given" in refusal(pq(tmp_path, a=[1], y=[1]), None)


def test_an_absent_label_column_lists_at_most_eight_columns(tmp_path: Path) -> None:
    assert "'age', 'income', 'sick'" in refusal(csv(tmp_path, TABLE), "ill")
    names = [f"column{at}" for at in range(20)]
    text = ",".join(names) + "\n" + ",".join("1" * 20) + "\n"
    said = refusal(csv(tmp_path, text), "ill")
    assert "'column7' and 12 more" in said
    assert "column8" not in said


def test_a_file_without_a_header_does_not_get_its_cells_quoted(tmp_path: Path) -> None:
    said = refusal(csv(tmp_path, "30,secret,5.5\n40,hidden,6.5\n"), "sick")
    assert "first line" in said
    assert "secret" not in said
    assert "5.5" not in said


def test_a_header_that_is_no_line_of_names_is_refused(tmp_path: Path) -> None:
    assert "is not a readable CSV file" in refusal(csv(tmp_path, '"a,y\n1,2\n'))


def test_columns_of_one_name_and_without_a_name_are_refused(tmp_path: Path) -> None:
    assert "same name: 'a'" in refusal(csv(tmp_path, "a,a,y\n1,2,3\n1,2,4\n"))
    assert "same name: 'y'" in refusal(csv(tmp_path, "a,y, y\n1,2,3\n1,2,4\n"))
    assert "without a name, number 1" in refusal(csv(tmp_path, ",a,y\n0,2,3\n1,2,4\n"))
    table = pa.table([[1, 2], [3, 4], [5, 6]], names=["a", "a", "y"])
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert "same name: 'a'" in refusal(tmp_path / "rows.parquet")


def test_a_table_without_features_is_refused(tmp_path: Path) -> None:
    assert "no feature columns" in refusal(csv(tmp_path, "y\n1\n2\n"))


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}, None], dtype=object)
    assert "Python objects" in refusal(npz(tmp_path, X=objects, y=np.array([0, 1])))
    assert "Python objects" in refusal(npz(tmp_path, X=np.eye(2), y=objects))


def test_a_single_array_under_the_npz_suffix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    with path.open("wb") as stream:
        np.save(stream, np.eye(3))
    assert "is not a readable npz file" in refusal(path)


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    two = np.array([0, 1])
    assert "one value for each of the 3 rows" in refusal(npz(tmp_path, X=np.eye(3), y=two))
    assert "one value for each of the 2 rows" in refusal(npz(tmp_path, X=np.eye(2), y=np.eye(2)))
    assert "rows by columns, or grey images" in refusal(npz(tmp_path, X=np.ones(2), y=two))
    colours = npz(tmp_path, X=np.ones((2, 4, 4, 3)), y=two)
    assert "rows by columns, or grey images" in refusal(colours)
    assert "rows by columns" in refusal(npz(tmp_path, X=np.ones((2, 0)), y=two))
    assert "name of a feature" in refusal(npz(tmp_path, X=np.eye(2), x0=two), "x0")


def test_a_file_that_unpacks_to_more_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory", lambda: 1000)
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(gzip.compress(b"a,y\n" + b"1,2\n" * 1000))
    wide = pq(tmp_path, a=["u" * 900] * 100, y=[1] * 100)
    for path in (packed, wide, npz(tmp_path, X=np.ones((500, 2)), y=np.ones(500))):
        assert "more memory than this machine has" in refusal(path)


LONG: dict[str, Callable[[], pa.Array]] = {
    "lists": lambda: pa.LargeListArray.from_arrays(
        np.arange(0, 2 * 10**6 + 1, 2000), pa.array(np.zeros(2 * 10**6))
    ),
    "bytes of one length": lambda: pa.array([b"x" * 10_000] * 1000, pa.binary(10_000)),
}


@pytest.mark.parametrize("kind", LONG)
def test_cells_of_any_length_in_a_few_bytes_are_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "long.parquet"
    table = pa.table({"a": LONG[kind](), "b": np.arange(1000) % 2, "y": np.arange(1000) % 2})
    parquet.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(machine, "memory", lambda: 10**5)
    before = pa.total_allocated_bytes()
    cells = readers.open_cells(path, "y")
    assert pa.total_allocated_bytes() < before + 10**5
    assert set(cells.names) == {"a", "b", "y"}
    assert cells.words("a").positions.max() == -1


def test_groups_of_rows_are_unpacked_as_long_as_there_is_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unpacks to a megabyte, and says that it is small."""
    path = tmp_path / "groups.parquet"
    table = pa.table({"a": ["u" * 10**6, "v" * 10**6], "y": ["p", "q"]})
    with parquet.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(20):
            writer.write_table(table)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(parquet_reader, "_declared", lambda _metadata: 0)
    monkeypatch.setattr(machine, "memory", lambda: 5 * 10**6)
    read: list[int] = []
    whole = parquet.ParquetFile.read_row_group

    def watched(self: parquet.ParquetFile, at: int, **how: object) -> pa.Table:
        read.append(at)
        return whole(self, at, **how)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", watched)
    assert "more memory than this machine has" in refusal(path)
    assert read == [0, 1, 2]


def test_a_member_of_an_npz_file_that_is_no_array_is_refused(tmp_path: Path) -> None:
    path, plain = tmp_path / "rows.npz", io.BytesIO()
    np.save(plain, np.ones(2))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X", b"text")
        archive.writestr("y.npy", plain.getvalue())
    assert "is not a readable npz file" in refusal(path)


def test_arrays_of_unknown_names_are_refused(tmp_path: Path) -> None:
    assert "no pair of arrays" in refusal(npz(tmp_path, a=np.eye(2), b=np.ones(2)), None)
    assert "'a', 'b'" in refusal(npz(tmp_path, a=np.eye(2), b=np.ones(2)), "y")
    unclear = npz(tmp_path, a=np.eye(2), b=np.eye(2), y=np.ones(2))
    assert "which array has the features" in refusal(unclear)


def whole_files() -> dict[str, bytes]:
    """One good file of each packed kind."""
    parquet_sink, npz_sink = pa.BufferOutputStream(), pa.BufferOutputStream()
    parquet.write_table(pa.table({"a": list(range(50)), "y": [0, 1] * 25}), parquet_sink)
    np.savez_compressed(pa.PythonFile(npz_sink), X=np.eye(50), y=np.array([0, 1] * 25))
    body = "a,y\n" + "".join(f"{at * 7919},{at % 2}\n" for at in range(50))
    return {
        "rows.parquet": parquet_sink.getvalue().to_pybytes(),
        "rows.npz": npz_sink.getvalue().to_pybytes(),
        "rows.csv.gz": gzip.compress(body.encode(), mtime=0),
    }


WHOLE = whole_files()


@pytest.mark.parametrize("name", list(WHOLE))
@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, name: str, share: float) -> None:
    path = tmp_path / name
    path.write_bytes(WHOLE[name][: int(len(WHOLE[name]) * share)])
    assert "is not a readable" in refusal(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(list(WHOLE)), at=st.integers(0, 1 << 20), flip=st.integers(1, 255))
def test_a_flipped_byte_gives_rows_or_a_refusal_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, name: str, at: int, flip: int
) -> None:
    content = bytearray(WHOLE[name])
    content[at % len(content)] ^= flip
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    try:
        rows = loaded(path, "y")
    except InputError:
        return
    assert np.isfinite(rows.features).all()


@settings(max_examples=60)
@given(data=st.binary(min_size=1, max_size=80))
def test_arbitrary_text_gives_rows_or_a_refusal_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "arbitrary.csv"
    path.write_bytes(b"a,y\n" + data)
    try:
        rows = loaded(path, "y")
    except InputError:
        return
    assert np.isfinite(rows.features).all()


# The rows themselves


def test_rows_refuse_what_does_not_fit() -> None:
    good: dict[str, Any] = {
        "features": np.eye(2),
        "labels": np.array([0, 1]),
        "classes": ("u", "v"),
        "feature_names": ("a", "b"),
    }
    assert len(LabeledRows(**good)) == 2
    for change in (
        {"features": np.ones(2)},
        {"features": np.eye(2, dtype=np.float32)},
        {"features": np.array([[1, np.inf], [0, 1]])},
        {"labels": np.array([0, 2])},
        {"labels": np.array([0, -1])},
        {"labels": np.array([0])},
        {"labels": np.array([0.0, 1.0])},
        {"feature_names": ("a",)},
        {"image_shape": (2, 2)},
    ):
        with pytest.raises(InputError):
            LabeledRows(**(good | change))


def test_rows_near_the_largest_float_are_finite() -> None:
    huge = np.full((2, 2), 1.7e308)
    rows = LabeledRows(huge, np.array([0, 0]), ("u",), ("a", "b"))
    assert rows.features[0, 0] == 1.7e308


def test_take_keeps_the_order_and_the_public_facts() -> None:
    rows = LabeledRows(np.eye(3), np.array([0, 1, 2]), ("u", "v", "w"), ("a", "b", "c"))
    chosen = rows.take([2, 0])
    assert chosen.labels.tolist() == [2, 0]
    assert chosen.class_counts().tolist() == [1, 0, 1]
    assert rows.take(np.array([False, True, False])).labels.tolist() == [1]
    assert len(rows.take([])) == 0
    assert not chosen.features.flags.writeable


def test_records_that_are_no_rows_stay_behind() -> None:
    rows = LabeledRows(np.eye(2), np.array([0, 0]), ("u",), ("a", "b"), unfit=3)
    assert rows.unfit == 3
    assert rows.take([0]).unfit == 0
    assert "3" not in repr(rows)
