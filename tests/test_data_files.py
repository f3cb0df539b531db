"""A user's file becomes labelled rows, or one sentence that says what to mend."""

from __future__ import annotations

import datetime
import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from capemix.data import LabeledRows, load_file, open_data
from capemix.errors import InputError

TABLE = "age,income,sick\n30,1.5,yes\n40,2.5,no\n50,3.5,no\n"


def csv(tmp_path: Path, text: str, name: str = "rows.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def npz(tmp_path: Path, **arrays: Any) -> Path:
    path = tmp_path / "rows.npz"
    np.savez(path, **arrays)
    return path


def pq(tmp_path: Path, **columns: Any) -> Path:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


def refusal(path: Path, label: str | None = "y", site_column: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load_file(path, label, site_column)
    assert caught.value.field
    assert caught.value.fix
    return str(caught.value)


# What is read


def test_a_csv_file_becomes_rows(tmp_path: Path) -> None:
    rows = load_file(csv(tmp_path, TABLE), "sick").rows
    assert rows.features.tolist() == [[30, 1.5], [40, 2.5], [50, 3.5]]
    assert rows.features.flags.c_contiguous
    assert not rows.features.flags.writeable
    assert rows.classes == ("no", "yes")
    assert rows.labels.tolist() == [1, 0, 0]
    assert rows.feature_names == ("age", "income")
    assert rows.feature_dtypes == ("int64", "float64")
    assert rows.label_name == "sick"


def test_a_compressed_csv_file_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ROWS.CSV.GZ"
    path.write_bytes(gzip.compress(TABLE.encode()))
    plain = load_file(csv(tmp_path, TABLE), "sick").rows
    packed = load_file(path, "sick").rows
    assert packed.features.tolist() == plain.features.tolist()
    assert packed.classes == plain.classes


@pytest.mark.parametrize(
    ("tokens", "classes"),
    [
        (["10", "9", "-1"], (-1, 9, 10)),
        (["1.0", "2", "1"], (1, 2)),
        (["01", "1", "2"], ("01", "1", "2")),
        (["b", "a", "a"], ("a", "b")),
        (["None", "mild", "None"], ("None", "mild")),
        (["0.5", "1.5", "0.5"], ("0.5", "1.5")),
        (["True", "False", "True"], ("False", "True")),
        (['"a,b"', '"a\nb"', "c"], ("a\nb", "a,b", "c")),
        (["é", "日本", "é"], ("é", "日本")),
        (["same", "same", "same"], ("same",)),
    ],
)
def test_csv_labels_keep_their_kind(
    tmp_path: Path, tokens: list[str], classes: tuple[str | int, ...]
) -> None:
    text = "y,a\n" + "".join(f"{token},1\n" for token in tokens)
    assert load_file(csv(tmp_path, text), "y").rows.classes == classes


def test_spaces_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    rows = load_file(csv(tmp_path, "\ufeffa, y\r\n 1, u\r\n2 , v\r\n"), "y").rows
    assert rows.features[:, 0].tolist() == [1, 2]
    assert rows.classes == ("u", "v")


def test_truth_values_are_numbers(tmp_path: Path) -> None:
    rows = load_file(csv(tmp_path, "a,y\ntrue,0\nFalse,1\n"), "y").rows
    assert rows.features[:, 0].tolist() == [1, 0]
    assert rows.feature_dtypes == ("bool",)


def test_a_column_may_turn_fractional_after_many_whole_rows(tmp_path: Path) -> None:
    filler = "0" * 1000
    body = "".join(f"{at},{at % 2}\n" for at in range(20_000))
    text = f"a{filler},y\n{body}0.5,1\n"
    assert load_file(csv(tmp_path, text), "y").rows.features[-1, 0] == 0.5


def test_a_parquet_file_becomes_rows(tmp_path: Path) -> None:
    path = pq(
        tmp_path,
        a=pa.array([1, 2], pa.int32()),
        b=pa.array([True, False]),
        c=pa.array([Decimal("1.25"), Decimal("2.50")]),
        y=pa.array(["u", "v"]).dictionary_encode(),
        __index_level_0__=pa.array([7, 8]),
    )
    rows = load_file(path, "y").rows
    assert rows.features.tolist() == [[1, 1, 1.25], [2, 0, 2.5]]
    assert rows.feature_names == ("a", "b", "c")
    assert rows.feature_dtypes == ("int32", "bool", "float64")
    assert rows.classes == ("u", "v")


def test_a_parquet_file_of_bytes_stays_bytes(tmp_path: Path) -> None:
    path = pq(tmp_path, a=pa.array([1, 255], pa.uint8()), y=["u", "v"])
    assert load_file(path, "y").rows.features.dtype == np.uint8


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([3, 1, 3], (1, 3)),
        ([3.0, 1.0, 3.0], (1, 3)),
        ([0.5, 1.0, 0.5], ("0.5", "1.0")),
        (["3", "1", "3"], ("1", "3")),
        ([True, False, True], ("False", "True")),
    ],
)
def test_typed_labels_keep_their_kind(
    tmp_path: Path, labels: list[Any], classes: tuple[str | int, ...]
) -> None:
    table = pq(tmp_path, a=[1, 2, 3], y=labels)
    arrays = npz(tmp_path, X=np.eye(3), y=np.array(labels))
    assert load_file(table, "y").rows.classes == classes
    assert load_file(arrays).rows.classes == classes


def test_dates_are_classes_too(tmp_path: Path) -> None:
    path = pq(tmp_path, a=[1, 2], y=[datetime.date(2020, 1, 2), datetime.date(2019, 1, 2)])
    assert load_file(path, "y").rows.classes == ("2019-01-02", "2020-01-02")


@pytest.mark.parametrize(
    ("x_name", "y_name"),
    [("X", "y"), ("features", "labels"), ("data", "target"), ("x_train", "y_train")],
)
def test_known_pairs_of_arrays_are_found(tmp_path: Path, x_name: str, y_name: str) -> None:
    path = npz(tmp_path, **{x_name: np.eye(3, dtype=np.float32), y_name: np.array([4, 5, 4])})
    rows = load_file(path).rows
    assert rows.features.dtype == np.float64
    assert rows.features.tolist() == np.eye(3).tolist()
    assert rows.labels.tolist() == [0, 1, 0]
    assert rows.feature_names == ("x0", "x1", "x2")
    assert rows.label_name == y_name


def test_the_label_option_names_the_array_of_the_classes(tmp_path: Path) -> None:
    path = npz(tmp_path, X=np.eye(2), y=np.array([0, 1]), z=np.array(["u", "u"]))
    assert load_file(path, "z").rows.classes == ("u",)
    other = npz(tmp_path, pixels=np.eye(2), z=np.array(["u", "v"]))
    assert load_file(other, "z").rows.width == 2


@pytest.mark.parametrize("shape", [(3, 2, 4), (3, 2, 4, 1)])
def test_images_are_flattened_and_keep_their_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = np.asfortranarray(np.arange(24, dtype=np.uint8).reshape(shape))
    rows = load_file(npz(tmp_path, X=images, y=np.array([[0], [1], [0]]))).rows
    assert rows.image_shape == (2, 4)
    assert rows.features.tolist() == np.arange(24).reshape(3, 8).tolist()
    assert rows.features.dtype == np.uint8
    assert rows.features.flags.c_contiguous


def test_the_site_column_is_no_feature(tmp_path: Path) -> None:
    text = "a,place,y\n1,north,u\n2,east,v\n3,north,u\n"
    loaded = load_file(csv(tmp_path, text), "y", site_column="place")
    assert loaded.rows.feature_names == ("a",)
    assert loaded.sites is not None
    assert loaded.sites.tolist() == [1, 0, 1]
    assert "1" not in repr(loaded).replace("width=1", "")


def test_the_site_array_of_an_npz_file_is_read(tmp_path: Path) -> None:
    path = npz(tmp_path, X=np.eye(3), y=np.array([0, 1, 0]), place=np.array([9, 8, 9]))
    loaded = open_data(path, site_column="place")
    assert loaded.sites is not None
    assert loaded.sites.tolist() == [1, 0, 1]
    assert loaded.test is None
    assert loaded.info is None


def test_a_site_column_must_be_there_and_not_be_the_label(tmp_path: Path) -> None:
    assert "site column names no column" in refusal(csv(tmp_path, TABLE), "sick", "place")
    assert "is also the label" in refusal(csv(tmp_path, TABLE), "sick", "sick")
    assert "site column names no array" in refusal(
        npz(tmp_path, X=np.eye(2), y=np.array([0, 1])), None, "place"
    )


# What is refused


def test_a_missing_file_and_an_unknown_suffix_are_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.csv")
    assert ".parquet" in refusal(csv(tmp_path, TABLE, "rows.xlsx"))
    (tmp_path / "folder.csv").mkdir()
    assert "does not exist" in refusal(tmp_path / "folder.csv")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.npz", "a.parquet"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    assert "is empty" in refusal(csv(tmp_path, "", name))


def test_a_compressed_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b""))
    assert "is empty" in refusal(path)


@pytest.mark.parametrize("text", ["a,y", "a,y\n", "a,y\n\n\n"])
def test_a_header_without_rows_is_refused(tmp_path: Path, text: str) -> None:
    assert "no rows below its header" in refusal(csv(tmp_path, text))


def test_a_single_row_is_refused(tmp_path: Path) -> None:
    assert "only one row" in refusal(csv(tmp_path, "a,y\n1,2\n"))
    assert "only one row" in refusal(pq(tmp_path, a=[1], y=[1]))
    assert "only one row" in refusal(npz(tmp_path, X=np.ones((1, 2)), y=np.ones(1)))


def test_arrays_without_rows_are_refused(tmp_path: Path) -> None:
    assert "no rows" in refusal(npz(tmp_path, X=np.ones((0, 2)), y=np.ones(0)))
    assert "no rows" in refusal(pq(tmp_path, a=pa.array([], pa.int64()), y=pa.array([], pa.int8())))


def test_a_table_needs_the_label_option(tmp_path: Path) -> None:
    assert "label is not given" in refusal(csv(tmp_path, TABLE), None)


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


def test_columns_that_are_not_numeric_are_named(tmp_path: Path) -> None:
    said = refusal(csv(tmp_path, "a,town,when,y\n1,Rome,2020-01-01,u\n2,Oslo,2020-01-02,v\n"))
    assert "'town', 'when'" in said
    assert "Rome" not in said
    said = refusal(pq(tmp_path, town=["Rome", "Oslo"], deep=[[1], [2]], y=["u", "v"]))
    assert "'town', 'deep'" in said


@pytest.mark.parametrize("bad", ["", "NA", "nan", "inf", "-inf", " ? "])
def test_missing_and_infinite_cells_are_counted_by_column(tmp_path: Path, bad: str) -> None:
    said = refusal(csv(tmp_path, f"a,b,y\n1,{bad},u\n2,{bad},v\n3,4.5,v\n"))
    assert "column 'b' has 2 missing or infinite" in said


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_missing_and_infinite_values_of_typed_files_are_counted(tmp_path: Path, bad: Any) -> None:
    assert "column 'a' has 1 missing" in refusal(pq(tmp_path, a=[1.5, bad, 2.5], y=[1, 2, 1]))
    array = np.array([[1.0], [np.nan if bad is None else bad]])
    assert "has 1 missing or infinite" in refusal(npz(tmp_path, X=array, y=np.array([0, 1])))


@pytest.mark.parametrize("bad", ["", " ", "NA"])
def test_missing_csv_labels_are_counted(tmp_path: Path, bad: str) -> None:
    said = refusal(csv(tmp_path, f"a,y\n1,{bad}\n2,1\n3,0\n"))
    assert "label column 'y' has 1 missing" in said


def test_missing_typed_labels_are_counted(tmp_path: Path) -> None:
    assert "2 missing" in refusal(pq(tmp_path, a=[1, 2, 3], y=["u", None, None]))
    assert "1 missing" in refusal(npz(tmp_path, X=np.eye(2), y=np.array([1, np.nan])))


def test_a_label_column_like_an_identifier_is_refused(tmp_path: Path) -> None:
    text = "a,y\n" + "".join(f"1,id{at}\n" for at in range(21))
    assert "looks like an identifier" in refusal(csv(tmp_path, text))
    many = npz(tmp_path, X=np.zeros((2002, 1)), y=np.arange(2002) // 2)
    assert "1001 distinct" in refusal(many)


def test_few_rows_may_all_differ_in_class(tmp_path: Path) -> None:
    text = "a,y\n" + "".join(f"1,id{at}\n" for at in range(20))
    assert len(load_file(csv(tmp_path, text), "y").rows.classes) == 20


def test_columns_of_one_name_and_without_a_name_are_refused(tmp_path: Path) -> None:
    assert "same name: 'a'" in refusal(csv(tmp_path, "a,a,y\n1,2,3\n1,2,4\n"))
    assert "same name: 'y'" in refusal(csv(tmp_path, "a,y,y\n1,2,3\n1,2,4\n"))
    assert "without a name, number 1" in refusal(csv(tmp_path, ",a,y\n0,2,3\n1,2,4\n"))
    table = pa.table([[1, 2], [3, 4], [5, 6]], names=["a", "a", "y"])
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert "same name: 'a'" in refusal(tmp_path / "rows.parquet")


def test_a_table_without_features_is_refused(tmp_path: Path) -> None:
    assert "no feature columns" in refusal(csv(tmp_path, "y\n1\n2\n"))


@pytest.mark.parametrize("text", ["a,y\n1,2,3\n4,5\n", "a,y\n1\n2\n", 'a,y\n"1,2\n3,4\n'])
def test_ragged_csv_is_refused_without_quoting_it(tmp_path: Path, text: str) -> None:
    assert "is not a readable CSV file" in refusal(csv(tmp_path, text))


def test_csv_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a,y\n1,\xff\xfe\n2,\xff\xfe\n")
    assert "is not a readable CSV file" in refusal(path)


def test_nested_labels_are_refused(tmp_path: Path) -> None:
    assert "one scalar" in refusal(pq(tmp_path, a=[1, 2], y=[[1], [2]]))


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
    assert "as long as the features, 3" in refusal(npz(tmp_path, X=np.eye(3), y=two))
    assert "one value for each row" in refusal(npz(tmp_path, X=np.eye(2), y=np.eye(2)))
    assert "neither rows" in refusal(npz(tmp_path, X=np.ones(2), y=two))
    assert "neither rows" in refusal(npz(tmp_path, X=np.ones((2, 4, 4, 3)), y=two))
    assert "not numeric" in refusal(npz(tmp_path, X=np.array([["a"], ["b"]]), y=two))
    assert "numbers or strings" in refusal(npz(tmp_path, X=np.eye(2), y=two + 1j))


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
        loaded = load_file(path, "y")
    except InputError:
        return
    assert np.isfinite(loaded.rows.features).all()


@settings(max_examples=60)
@given(data=st.binary(min_size=1, max_size=80))
def test_arbitrary_text_gives_rows_or_a_refusal_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "arbitrary.csv"
    path.write_bytes(b"a,y\n" + data)
    try:
        loaded = load_file(path, "y")
    except InputError:
        return
    assert np.isfinite(loaded.rows.features).all()


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
        {"feature_dtypes": ("int64",)},
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
