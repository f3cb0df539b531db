"""Text files as people have them: whatever separator, encoding, quotes and marks a schema declares,
the cells are those of the plain file; and one line, whatever it holds, is read by itself."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capemix import documents
from capemix.data import (
    Dialect,
    Table,
    draft_table,
    faults_of,
    find_dialect,
    open_cells,
    open_table,
    readers,
)
from capemix.data.dialect import SEPARATORS
from capemix.data.schema import Category, Number
from capemix.errors import InputError
from conftest import Capemix

NAMES = ("größe", "count", "where", "y")
ROWS = (
    ("1234.5", "7", "Köln", "yes"),
    ("-0.25", "1234567", 'the "inn", by; the|sea', "no"),
    ("3", "0", "5 € or so", "yes"),
    ("12.75", "12345", "", "no"),
)
SCHEMA = Table(
    (
        Number("größe", -1e4, 1e4),
        Number("count", 0, 10**7, type="integer"),
        Category("where", ("Köln", 'the "inn", by; the|sea', "5 € or so"), missing=True),
    ),
    Category("y", ("yes", "no")),
)
MARKS = {"none": "", "point": ".", "comma": ",", "space": "\u00a0", "apostrophe": "'"}
CODECS = {"utf-8": "utf-8", "utf-16": "utf-16", "latin-1": "cp1252"}


def number(value: str, dialect: Dialect) -> str:
    """As the dialect writes it."""
    whole, _, fraction = value.partition(".")
    grouped = f"{int(whole):,}".replace(",", MARKS[dialect.thousands])
    sign = "-" if value.startswith("-") and not grouped.startswith("-") else ""
    return sign + grouped + (MARKS[dialect.decimal] + fraction if fraction else "")


def lines_of(rows: Sequence[Sequence[str]], dialect: Dialect) -> list[str]:
    """Records as a CSV writer has them, without ends of lines."""
    found = []
    quoting = csv.QUOTE_NONE if dialect.quotes == "none" else csv.QUOTE_MINIMAL
    for row in rows:
        out = io.StringIO(newline="")
        writer = csv.writer(
            out,
            delimiter=SEPARATORS[dialect.separator].decode(),
            lineterminator="",
            quoting=quoting,
            quotechar=None if dialect.quotes == "none" else '"',
        )
        writer.writerow(row)
        found.append(out.getvalue() + SEPARATORS[dialect.separator].decode() * dialect.trailing)
    return found


def written(dialect: Dialect, rows: Sequence[Sequence[str]] = ROWS) -> list[str]:
    """The lines of a table."""
    numbers = [(number(a, dialect), number(b, dialect), *rest) for a, b, *rest in rows]
    return lines_of([NAMES, *numbers], dialect)


def put(folder: Path, content: bytes, name: str = "rows.csv") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def read(path: Path, dialect: Dialect | None) -> tuple[Counter[tuple[Any, ...]], int]:
    """Every record as the schema's columns read it, in no order; and how many have no value."""
    cells = open_cells(path, "y", dialect=dialect)
    found = [np.asarray(column.read(cells)) for column in (*SCHEMA.columns, SCHEMA.label)]
    words = [cells.words(name) for name in NAMES]
    return Counter(
        tuple(
            [repr(each[at]) for each in found]
            + [None if (p := w.positions[at]) < 0 else w.distinct[p] for w in words]
        )
        for at in range(cells.records)
    ), cells.without_value


PLAIN_ROWS = written(Dialect())

DIALECTS = [
    Dialect(separator, trailing, encoding, quotes, *marks)  # type: ignore[arg-type]
    for at, (separator, encoding, quotes) in enumerate(
        product(SEPARATORS, CODECS, ("many-lines", "one-line"))
    )
    for trailing in (at % 2 == 0,)
    for marks in [
        [("point", "none"), ("comma", "none"), ("comma", "point")],
        [("point", "comma"), ("comma", "space"), ("point", "apostrophe")],
    ][at % 2]
]


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_a_file_of_any_dialect_has_the_cells_of_the_plain_one(
    tmp_path: Path, dialect: Dialect, end: str
) -> None:
    wanted = read(put(tmp_path, "\n".join(PLAIN_ROWS).encode(), "plain.csv"), None)
    assert wanted[0].total() == len(ROWS)
    content = "".join(line + end for line in written(dialect))
    path = put(tmp_path, content.encode(CODECS[dialect.encoding]))
    assert read(path, dialect) == wanted
    found = draft_table(path, "y").table
    assert found.drafted
    assert found.file == replace(dialect, quotes="one-line")  # no cell has several lines
    assert read(path, found.file) == wanted
    assert str(faults_of(path, found)) == ""


def test_marks_of_byte_order_and_a_line_for_spreadsheets_do_no_harm(tmp_path: Path) -> None:
    dialect = Dialect("semicolon", decimal="comma", quotes="one-line")
    lines = "\r\n".join(written(dialect))
    wanted = read(put(tmp_path, lines.encode(), "plain.csv"), dialect)
    for start, codec in product(("", "\r\n", "sep=;\r\n"), ("utf-8-sig", "utf-8")):
        assert read(put(tmp_path, (start + lines).encode(codec)), dialect) == wanted
        assert draft_table(tmp_path / "rows.csv", "y").table.file == dialect
    for codec, mark in product(("utf-16-le", "utf-16-be"), ("", "\ufeff")):
        path = put(tmp_path, (mark + "y;a\r\n1;2,5\r\n0;3,5").encode(codec))
        found = draft_table(path, "y").table.file
        assert found == replace(dialect, encoding="utf-16")
        assert open_cells(path, "y", dialect=found).numbers(["a"]).tolist() == [[2.5], [3.5]]


def test_columns_without_a_name_at_the_end_are_not_read(tmp_path: Path) -> None:
    path = put(tmp_path, b"a;y;;\n1;u;;\n2;v;x;\n3;w\n")
    found = open_cells(path, "y", dialect=Dialect("semicolon"))
    assert found.names == ("a", "y")
    assert (found.records, found.without_value) == (2, 1)
    with pytest.raises(InputError, match="without a name, number 2"):
        open_cells(put(tmp_path, b"a;;y;\n1;2;3;\n"), "y", dialect=Dialect("semicolon"))


# -- one line --------------------------------------------------------------------------------------


def without_line_end(encoding: str) -> st.SearchStrategy[bytes]:
    """Any line: any bytes, and in UTF-16 any units, between two ends of lines."""
    odd = st.binary(max_size=20) | st.lists(
        st.sampled_from([b'"', b";", b",", b"\t", b"\r", b"\\", b"1", b"yes", b"\xff", b"\x81"]),
        max_size=12,
    ).map(b"".join)
    if encoding == "utf-16":
        units = st.lists(st.integers(0, 0xFFFF).filter(lambda unit: unit != 10), max_size=12)
        ascii_units = odd.map(lambda line: [unit for unit in line if unit != 10])
        return (units | ascii_units).map(lambda line: np.array(line, dtype="<u2").tobytes())
    return odd.map(lambda line: line.replace(b"\n", b""))


BY_LINE = [
    Dialect("semicolon", False, "utf-8", "one-line", "comma", "point"),
    Dialect("comma", False, "latin-1", "one-line", "point", "none"),
    Dialect("tab", True, "utf-16", "one-line", "comma", "space"),
    Dialect("pipe", False, "utf-8", "none", "point", "comma"),
    Dialect("tab", False, "utf-16", "none", "comma", "none"),
]


def with_line(dialect: Dialect, at: int, line: bytes | None, *, end: str) -> bytes:
    """The table with another line before one of its records, or at its end."""
    rows = [row for row in ROWS if dialect.quotes != "none" or '"' not in row[2]]
    codec = "utf-16-le" if dialect.encoding == "utf-16" else CODECS[dialect.encoding]
    found = [each.encode(codec) for each in written(dialect, rows)]
    if line is not None:
        found.insert(1 + at % len(found), line)
    return end.encode(codec).join([*found, b""])


@pytest.mark.parametrize("dialect", BY_LINE, ids=str)
@given(data=st.data())
def test_a_line_of_any_bytes_changes_no_other_record_and_raises_nothing(
    tmp_path_factory: pytest.TempPathFactory, dialect: Dialect, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp()
    line = data.draw(without_line_end(dialect.encoding))
    at, end = data.draw(st.integers(0, 4)), data.draw(st.sampled_from(["\n", "\r\n"]))
    before, none = read(put(folder, with_line(dialect, at, None, end=end)), dialect)
    after, odd = read(put(folder, with_line(dialect, at, line, end=end)), dialect)
    assert none == 0
    assert after >= before
    assert after.total() - before.total() + odd == 1


@given(cell=st.text(st.characters(exclude_categories=["Cs"])), at=st.integers(0, 4))
def test_a_cell_of_any_text_is_one_record_where_cells_may_have_lines(
    tmp_path_factory: pytest.TempPathFactory, cell: str, at: int
) -> None:
    """As a CSV writer writes it: with ends of lines, quotes and whole records in it."""
    folder = tmp_path_factory.getbasetemp()
    for dialect in (Dialect("semicolon", encoding="utf-16"), Dialect("tab")):
        codec = CODECS[dialect.encoding]
        rows = [*ROWS[: at % 4], ("1", "2", cell + '\n1;2;"x";yes\n', "no"), *ROWS[at % 4 :]]
        lines = written(dialect, rows)
        before, _ = read(put(folder, "\n".join(written(dialect)).encode(codec)), dialect)
        after, odd = read(put(folder, "\n".join(lines).encode(codec)), dialect)
        assert after >= before
        assert (after.total() - before.total(), odd) == (1, 0)


def test_a_backslash_is_a_character_where_quotes_are_declared_to_be_doubled(tmp_path: Path) -> None:
    """Else one path at the end of a line would have the whole file refused."""
    path = put(tmp_path, b"a,y\n1,C:\\\n2,u\n")
    for quotes in ("many-lines", "one-line", "none"):
        assert open_cells(path, "y", dialect=Dialect(quotes=quotes)).records == 2  # type: ignore[arg-type]
    with pytest.raises(InputError, match="backslash at the end of a line"):
        open_cells(path, "y")


def test_a_header_in_another_dialect_is_told_from_a_mistyped_name(tmp_path: Path) -> None:
    for content in (b"a;y\n1;u\n", "a,y\n1,u\n".encode("utf-16")):
        with pytest.raises(InputError, match="draft a schema with `capemix schema draft`"):
            open_cells(put(tmp_path, content), "y")
    with pytest.raises(InputError, match="choose one of 'a', 'y'"):
        open_cells(put(tmp_path, b"a,y\n1,u\n"), "x")


def test_a_dialect_that_is_found_anew_from_the_rows_is_found_out(tmp_path: Path) -> None:
    """Why it is declared: else one line says how all others are read."""
    before, after = b"a;b;y\n1,5;x;u\n", b"a;b;y\n1,5;x;u\n2.5;3.5;v\n"
    by_rows, dialect = find_dialect(put(tmp_path, before), "y")
    assert by_rows.numbers(["a"])[0] == 1.5
    by_rows, _ = find_dialect(put(tmp_path, after), "y")
    assert np.isnan(by_rows.numbers(["a"])[0])
    declared = open_cells(tmp_path / "rows.csv", "y", dialect=dialect)
    assert declared.numbers(["a"])[0] == 1.5


def test_units_that_are_cut_in_half_shift_what_follows_and_are_refused_for_the_owner(
    tmp_path: Path,
) -> None:
    """What no text can do to a file of UTF-16, and a damaged file can: docs/guide/reading.md."""
    dialect = Dialect("semicolon", encoding="utf-16", quotes="one-line")
    path = put(tmp_path, "a;y\n1;yes\n2;no\n".encode("utf-16-le") + b"\n")
    assert open_cells(path, "y", dialect=dialect).records == 2
    with pytest.raises(InputError, match="odd number of bytes"):
        draft_table(path, "y")
    declared = Table((Number("a", 0, 4),), Category("y", ("yes", "no")), file=dialect)
    with pytest.raises(InputError, match="odd number of bytes"):
        faults_of(path, declared)


# -- cells and numbers -----------------------------------------------------------------------------

CELLS: dict[tuple[str, str], dict[str, float | None]] = {
    ("comma", "point"): {
        "1.234,5": 1234.5,
        "1234,5": 1234.5,
        " -1.234.567 ": -1234567,
        "1.5": None,  # not by these marks, and no other are tried
        "12.34,5": None,
        "1,234.5": None,
        ",5": 0.5,
        "1,5e-3": 0.0015,
        "true": 1,
        "word": None,
        "": None,
    },
    ("comma", "none"): {"1,5": 1.5, "1.5": None, "1.000": None, "7": 7, "1,2,3": None},
    ("point", "comma"): {"1,234.5": 1234.5, "1,5": None, "12,345": 12345, "1234": 1234},
    ("comma", "space"): {"1 234,5": 1234.5, "1\u202f234": 1234, "1 23": None},
    ("point", "apostrophe"): {"1'234.5": 1234.5, "1\u2019000": 1000, "1''000": None},
    ("point", "none"): {"1.5": 1.5, "1,5": None},
}


@pytest.mark.parametrize("marks", CELLS, ids=str)
def test_a_cell_is_a_number_by_the_declared_marks_alone(
    tmp_path: Path, marks: tuple[str, str]
) -> None:
    dialect = Dialect("pipe", False, "utf-8", "none", *marks)  # type: ignore[arg-type]
    lines = "".join(f"{cell}|u\n" for cell in CELLS[marks])
    cells = open_cells(put(tmp_path, f"a|y\n{lines}".encode()), "y", dialect=dialect)
    wanted = [np.nan if value is None else value for value in CELLS[marks].values()]
    np.testing.assert_array_equal(cells.numbers(["a"])[:, 0], wanted)
    listed = cells.words("a")
    for at, value in enumerate(CELLS[marks].values()):
        if value is not None:
            assert float(listed.distinct[listed.positions[at]]) == value


LINES = {
    b'1,"x",u': ("1", "x", "u"),
    b'1,"x ""y""",u': ("1", 'x "y"', "u"),
    b'1,5" pipe,u': ("1", '5" pipe', "u"),
    b'"1","","u"': ("1", None, "u"),
    b'1,"x,u': None,
    b'1,"x"y,u': None,
    b'"1,x,u': None,
    b'1,",",u"': ("1", ",", 'u"'),
    b"1,x\\,u": ("1", "x\\", "u"),
    b"1,x,u\\": ("1", "x", "u\\"),
}


@pytest.mark.parametrize("line", LINES)
def test_quotes_within_one_line(tmp_path: Path, line: bytes) -> None:
    path = put(tmp_path, b"a,b,y\n2,z,v\n" + line + b'\n3,"w",v\n')
    cells = open_cells(path, "y", dialect=Dialect(quotes="one-line"))
    columns = [cells.words(name) for name in cells.names]
    found = {
        tuple(None if (p := w.positions[at]) < 0 else w.distinct[p] for w in columns)
        for at in range(cells.records)
    }
    wanted = LINES[line]
    assert found == {("2", "z", "v"), ("3", "w", "v")} | ({wanted} if wanted else set())
    assert cells.without_value == (wanted is None)


# -- what a draft finds, and says ------------------------------------------------------------------

DRAFTS: dict[str, tuple[bytes, Dialect]] = {
    "cells of several lines": (b'a,y\n1,"u\nv"\n2,w\n', Dialect()),
    "quotes of one line": (b'a,y\n"1","u"\n2,w\n', Dialect(quotes="one-line")),
    "inches": (b'a\ty\n1\t"u\n2\tw\n', Dialect("tab", quotes="none")),
    "rows that end in a separator": (
        b"a;y\n1;u;\n2;w;\n",
        Dialect("semicolon", True, quotes="one-line"),
    ),
    "a header that ends in a separator": (
        b"a;y;\n1;u\n2;w\n",
        Dialect("semicolon", True, quotes="one-line"),
    ),
    "commas in a header": (
        b"a, in cm;b, in kg;y\n1,5;2;u\n2,5;3;w\n",
        Dialect("semicolon", quotes="one-line", decimal="comma"),
    ),
    "thousands that might be decimals": (
        b'a,y\n"1,234",u\n"2,345",w\n',
        Dialect(quotes="one-line", thousands="comma"),
    ),
    "decimals that might be thousands": (
        b"a;y\n1,234;u\n2,345;w\n",
        Dialect("semicolon", quotes="one-line", decimal="comma"),
    ),
    "one bad byte": ("a,y\né,u\nö,u\n".encode() + b"\xff,w\n", Dialect(quotes="one-line")),
    "one good character": (
        b"a,y\n\xe9,u\n\xf6,u\n\xc3\xa9,w\n",
        Dialect("comma", False, "latin-1", "one-line"),
    ),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_a_draft_finds_the_dialect(tmp_path: Path, name: str) -> None:
    content, dialect = DRAFTS[name]
    assert draft_table(put(tmp_path, content), "y").table.file == dialect


BAD = b'a;b;y\n1,5;x;u\n2,5;u\n3;z;u;v\n\n4;"w;u\nno;z;u\n5,5;z;other\n'


def test_the_owner_is_told_the_line_and_the_column(tmp_path: Path) -> None:
    dialect = Dialect("semicolon", quotes="one-line", decimal="comma")
    table = Table(
        (Number("a", 0, 9), Category("b", ("x", "z"), missing=True)),
        Category("y", ("u", "v")),
        file=dialect,
    )
    found = faults_of(put(tmp_path, BAD), table)
    assert found.lines == {
        3: "it has 2 cells, and the header has 3",
        4: "it has 4 cells, and the header has 3",
        5: "it is empty",
        6: "a quote does not close in it",
    }
    assert found.cells == {"a": [7], "y": [8]}
    assert "column a: a cell does not fit on line 7" in str(found)
    many = replace(table, file=replace(dialect, quotes="many-lines"))
    content = b'a;b;y\n1;"x\n\nz";u\nno;"x";u\n1;"x\n";u;v\n1;x;u\nno;x;u\n'
    found = faults_of(put(tmp_path, content), many)
    assert found.cells == {"a": [5, 9]}
    assert found.lines == {6: "it has 4 cells, and the header has 3"}


def test_lines_are_named_by_commands_for_the_owner_and_by_no_other(
    capemix: Capemix, tmp_path: Path
) -> None:
    path = put(tmp_path, b"a;y\n" + b'1,5;u\n2,5;"v"\n' * 20 + b'"3;u\n')
    ran = capemix("schema", "draft", path, "--label", "y", "--out", tmp_path / "s.json")
    assert "line 42 has no value: a quote does not close in it" in ran.out
    drafted = Table.read(tmp_path / "s.json")
    assert open_table(path, drafted).without_value == 1

    several = put(tmp_path, b'a,y\n1,"u\nv"\n2,w\n"3,w\n', "several.csv")
    words = ("--label", "y", "--out", tmp_path / "out")
    ran = capemix("schema", "draft", several, *words)
    assert ran.code == 2
    assert "has a quote that is left open" in ran.err
    assert "(got line 5)" in ran.err
    ran = capemix("synth", several, *words, "--classes", "w", "--epsilon", "9", "--no-ledger")
    assert ran.code == 2
    assert "has a quote that is left open" in ran.err
    assert "got" not in ran.err


def test_a_schema_says_how_its_file_is_written_and_an_old_one_reads_as_ever() -> None:
    old = documents.as_json(SCHEMA)
    assert old.pop("file") is None
    assert documents.from_json(Table, old, name="schema") == SCHEMA
    said = replace(SCHEMA, file=Dialect("tab", encoding="latin-1"), drafted=True)
    assert documents.from_json(Table, documents.as_json(said), name="schema") == said
    assert SCHEMA.digest() == "65efb786417104acc8bbfa3448f7672e4a97341b9835e13ea69f200b19fd26c8"
    assert said.digest() != SCHEMA.digest()
    confirmed = said.confirm()
    assert confirmed.is_confirmed
    assert not replace(confirmed, file=Dialect("tab")).is_confirmed
    with pytest.raises(InputError, match="one mark for decimals and for thousands"):
        Dialect(decimal="comma", thousands="comma")
    with pytest.raises(InputError, match="separator"):
        documents.from_json(Dialect, {"separator": ";"}, name="schema")


def test_a_site_reads_its_own_file_by_its_own_dialect(tmp_path: Path) -> None:
    dialect = Dialect("tab", encoding="utf-16", decimal="comma")
    plain = put(tmp_path, "\n".join(PLAIN_ROWS).encode(), "plain.csv")
    own = put(tmp_path, "\n".join(written(dialect)).encode("utf-16"), "own.txt")
    first = SCHEMA.rows(open_table(plain, SCHEMA))
    other = SCHEMA.rows(open_table(own, SCHEMA, dialect=dialect))
    assert Counter(map(bytes, first.features)) == Counter(map(bytes, other.features))
    assert other.table == SCHEMA


def test_where_a_file_is_cut_into_pieces_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = Dialect("semicolon", encoding="utf-16", quotes="one-line")
    path = put(tmp_path, "\n".join([*written(dialect), "1;2;\U0001f600;yes"]).encode("utf-16"))
    wanted = read(path, dialect)
    for piece in (1, 7, 64):
        monkeypatch.setattr(readers, "_PIECE", piece)
        assert read(path, dialect) == wanted
