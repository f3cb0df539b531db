"""What the one-record tests are made of: records of every odd kind, files of every kind, and a
watch that sees all that leaves a run.

Two runs are compared, one with a record more (or with another in its place, where the number of
records is public). The second is given the noisy values that the first one saw. Then what each site
prepares may differ by the record's own part, within its bound, and everything else must be the
same, to the last byte.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capemix.identity import new_identity
from capemix.sums.statistic import Prepared, PreparedRows, SummedRows, WaitingRecords
from capemix_research.baselines import RecordMethod

Record = dict[str, Any]

COLUMNS = ("a", "b", "c", "place", "y")
USUAL: Record = {"a": 0.5, "b": -0.25, "c": "red", "place": "north", "y": 1}
SHAPE = (8, 8)


def records(count: int = 40) -> list[Record]:
    """Plain ones, of two classes."""
    rng = np.random.default_rng(0)
    return [
        {
            "a": round(float(rng.normal()), 3),
            "b": round(float(rng.normal()), 3),
            "c": ("red", "green")[at % 3 == 0],
            "place": ("north", "south", "east")[at % 3],
            "y": at % 2,
        }
        for at in range(count)
    ]


# -- odd records -----------------------------------------------------------------------------------

HUGE = 2**63 + 5
VALUES: dict[str, Any] = {
    "text": "unknown",
    "a long text": "x" * 5000,
    "missing": None,
    "nothing": "",
    "spaces": "   ",
    "a word for missing": "NA",
    "NaN": math.nan,
    "infinity": math.inf,
    "the word inf": "inf",
    "1e308": 1e308,
    "-1e308": -1e308,
    "1e400": "1e400",
    "tiny": 5e-324,
    "beyond 2^63": HUGE,
    "beyond a double": 10**400,
    "beyond 2^53": 2**53 + 1,
    "a fraction": 0.5,
    "a whole float": 1.0,
    "with spaces": " 1 ",
    "with zeros": "1.00",
    "leading zero": "01",
    "hexadecimal": "0x1",
    "underscored": "1_0",
    "comma": "1,5",
    "quoted": '"1"',
    "an open quote": '"',
    "other digits": "\u0661",  # ARABIC-INDIC DIGIT ONE
    "wide digits": "\uff11",  # FULLWIDTH DIGIT ONE
    "no width": "1\u200b",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "right to left": "\u202e1",
    "a line end": "1\n0",
    "a record inside": "\n0.5,0.5,1\n0.5,0.5,red,north,1\n",
    "a carriage return": "1\r",
    "NUL": "1\x00",
    "true": True,
    "the word true": "TRUE",
    "a date": "2020-01-01",
    "a moment in another zone": datetime(2020, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
    "a length of time": np.timedelta64(1, "D"),
    "a small float": np.float32(0.1),
    "a complex number": 1 + 1j,
    "bytes": b"\xff1",
    "a list": (1, 2),
}
"""Odd values, for a number and for a label alike."""

LINES: dict[str, bytes] = {
    "an empty line": b"",
    "a line of spaces": b"   ",
    "a comma": b",",
    "commas": b",,,,",
    "a shorter line": b"1,2",
    "a longer line": b"1,2,red,north,1,1,1",
    "a very long line": b"1," * 100_000,
    "quotes": b'"1","2","red","north","1"',
    "a quoted comma": b'"1,0",2,red,north,1',
    "no UTF-8": b"\xff\xfe1,2,red,north,\xff",
    "a BOM": b"\xef\xbb\xbf1,2,red,north,1",
    "a NUL": b"1\x00,2,red,north,1",
    "a carriage return": b"1,2\r3,red,north,1",
    "the header again": b"a,b,c,place,y",
    "a comment": b"# 1,2,red,north,1",
    "a backslash": b"1\\,2,red,north,1",
    "another delimiter": b"1;2;red;north;1",
    "a longer record of many lines": b'1,2,red,north,1,"\n0.5,0.5,1\n0.5,0.5,red,north,1\n"',
    "a record of many lines": b'"' + b"0.5,0.5,1\n" * 20_000 + b'",0.5,1',
}
"""Odd lines of a text file."""


@dataclass(frozen=True)
class Odd:
    """One record that is not as the others, and where it stands among them."""

    name: str
    record: Record
    line: bytes | None = None
    """As a text file has it; None: its cells as text."""
    place: float = 0.5
    """0: first, 1: last."""

    def among(self, others: Sequence[Record]) -> list[Record | Odd]:
        at = round(self.place * len(others))
        return [*others[:at], self, *others[at:]]

    def __str__(self) -> str:
        return self.name


def odd_records() -> list[Odd]:
    """An odd value in a number's place and in the label's, at one end or in the middle by turns."""
    found = [
        Odd(f"{name} as {column}", {**USUAL, column: value}, place=(0.0, 0.5, 1.0)[at % 3])
        for at, (name, value) in enumerate(VALUES.items())
        for column in ("a", "y")
    ]
    return [*found, *everywhere()]


def everywhere() -> list[Odd]:
    """The kinds that were found to break something, at every place."""
    return [
        Odd(f"{name} as {column}, at {place}", {**USUAL, column: VALUES[name]}, place=place)
        for name, column in (("text", "y"), ("NaN", "a"), ("beyond 2^63", "y"), ("1e308", "b"))
        for place in (0.0, 0.5, 1.0)
    ]


def odd_lines() -> list[Odd]:
    return [
        Odd(name, USUAL, line, place=place)
        for name, line in LINES.items()
        for place in (0.0, 0.5, 1.0)
    ]


# -- files -----------------------------------------------------------------------------------------


def cells_of(row: Record | Odd, column: str) -> Any:
    return row.record[column] if isinstance(row, Odd) else row[column]


def text_of(row: Record | Odd, columns: Sequence[str], between: str = ",") -> bytes:
    """A line, or as many as its quoted cells have."""
    if isinstance(row, Odd) and row.line is not None:
        return row.line + b"\n"
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=between, lineterminator="\n")
    writer.writerow([cells_of(row, column) for column in columns])
    return text.getvalue().encode()


def write_csv(rows: Sequence[Record | Odd], columns: Sequence[str], path: Path) -> None:
    header = ",".join(columns).encode() + b"\n"
    text = b"".join([header, *(text_of(row, columns) for row in rows)])
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def write_tsv(rows: Sequence[Record | Odd], columns: Sequence[str], path: Path) -> None:
    header = "\t".join(columns).encode() + b"\n"
    path.write_bytes(b"".join([header, *(text_of(row, columns, "\t") for row in rows)]))


def write_txt(rows: Sequence[Record | Odd], columns: Sequence[str], path: Path) -> None:
    """As `FILES` declares it, in UTF-16. What is no UTF-8 becomes other characters there."""

    def with_commas(row: Record) -> Record:
        return {
            name: str(cell).replace(".", ",") if type(cell) is float else cell
            for name, cell in row.items()
        }

    lines = [";".join(columns).encode() + b"\n"]
    for row in rows:
        odd = isinstance(row, Odd)
        found = replace(row, record=with_commas(row.record)) if odd else with_commas(row)
        lines.append(text_of(found, columns, ";"))
    path.write_bytes(b"".join(lines).decode("utf-8", "replace").encode("utf-16"))


FILES: dict[str, dict[str, Any]] = {
    ".txt": {
        "separator": "semicolon",
        "encoding": "utf-16",
        "quotes": "one-line",
        "decimal": "comma",
        "thousands": "point",
    }
}
"""How files are written that a schema must tell of."""


def as_array(values: Sequence[Any]) -> pa.Array:
    """As a writer of tables has it: one type for all, text where there is no other."""
    plain = (bool, int, float, str, type(None))
    if all(isinstance(value, plain) for value in values):
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError, TypeError):
            pass
        try:
            return pa.array([None if value is None else float(value) for value in values])
        except (ValueError, TypeError, OverflowError):
            pass
    return pa.array([None if value is None else str(value) for value in values])


def write_parquet(rows: Sequence[Record | Odd], columns: Sequence[str], path: Path) -> None:
    table = {column: as_array([cells_of(row, column) for row in rows]) for column in columns}
    pq.write_table(pa.table(table), path)


def as_numpy_has_it(values: list[Any]) -> np.ndarray:
    """One type for all, but not lengths of time for whole numbers: see docs/guide/reading.md."""
    try:
        found = np.array(values)
        if found.dtype.kind != "m":
            return found
    except ValueError:  # a list among plain values
        pass
    found = np.empty((len(values), *np.shape(values[0])), dtype=object)
    for at, row in enumerate(values):
        found[at] = row
    return found


def plain_array(values: list[Any]) -> np.ndarray:
    """The same, but text where numpy has objects."""
    found = as_numpy_has_it(values)
    if found.dtype == object:
        flat = ["" if value is None else str(value) for value in found.reshape(-1)]
        found = np.array(flat).reshape(found.shape)
    return found


def write_npz(rows: Sequence[Record | Odd], columns: Sequence[str], path: Path) -> None:
    numbers = [name for name in columns if name in ("a", "b")]
    features = plain_array([[cells_of(row, name) for name in numbers] for row in rows])
    others = {name: plain_array([cells_of(row, name) for row in rows]) for name in ("place", "y")}
    kept = {name: column for name, column in others.items() if name in columns}
    np.savez(path, X=features, **kept)


WRITERS: dict[str, Callable[[Sequence[Record | Odd], Sequence[str], Path], None]] = {
    ".csv": write_csv,
    ".csv.gz": write_csv,
    ".tsv": write_tsv,
    ".txt": write_txt,
    ".parquet": write_parquet,
    ".npz": write_npz,
}


def write_images(rows: Sequence[Record | Odd], path: Path) -> None:
    """Images with a bar whose place is the class; an odd value stands in a corner."""
    rng = np.random.default_rng(1)
    images = []
    for row in rows:
        if isinstance(row, Odd):
            images.append(np.full(SHAPE, 7).tolist())
            images[-1][0][0] = row.record["a"]
        else:
            images.append(rng.integers(0, 80, SHAPE).tolist())
            images[-1][2 + 3 * row["y"]] = [255] * SHAPE[1]
    labels = plain_array([cells_of(row, "y") for row in rows])
    np.savez(path, X=plain_array(images), y=labels)


SCHEMA = {
    "format": "capemix-schema/1",
    "label": {"name": "y", "categories": [0, 1]},
    "columns": [
        {"name": "a", "type": "number", "low": -4.0, "high": 4.0},
        {"name": "b", "type": "number", "low": -4.0, "high": 4.0, "decimals": 3, "missing": True},
        {"name": "c", "type": "category", "categories": ["red", "green"], "missing": True},
    ],
}


# -- methods ---------------------------------------------------------------------------------------

MIXED = ("--mixture", "4", "--samples", "20")
RANGE = ("--public-range", "-4,4")
BITS = ("--public-range", "0,255")
LISTED = ("--classes", "0,1")
SMALL_NETWORK = (
    "--samples", "30", "--rounds", "2", "--channels", "4", "--noises", "1", "--warm-steps", "1",
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """A method with what is declared for it. ``rows``: numbers, table (with a schema), unlabelled
    (with one that names no label) or images."""

    method: str | RecordMethod
    options: tuple[str, ...]
    rows: str = "numbers"

    @property
    def recordwise(self) -> bool:
        """Whether every record is released by itself, so that their number is public."""
        return isinstance(self.method, RecordMethod)

    @property
    def columns(self) -> tuple[str, ...]:
        """Of a file for it; without a schema every column is a feature."""
        if self.rows in ("table", "unlabelled"):
            return COLUMNS
        return ("a", "b", "place", "y") if "place" in self.options else ("a", "b", "y")

    def __str__(self) -> str:
        return " ".join((self.method, self.rows, *self.options))


SITES = ("--scheme", "cape", "--partition", "place", "--site-names", "north,south,east")

SETTINGS: dict[str | RecordMethod, tuple[Setting, ...]] = {
    "mixing": (
        Setting("mixing", (*MIXED, *LISTED)),
        Setting("mixing", MIXED),
        Setting("mixing", (*MIXED, *LISTED, *RANGE, "--class-sizes", "20")),
        Setting("mixing", (*MIXED, *LISTED, *RANGE, "--redraw", "30")),
        Setting("mixing", (*MIXED, *LISTED, *RANGE, *SITES)),
        Setting("mixing", (*MIXED, *LISTED, "--pool", "all", "--label-noise")),
        Setting("mixing", (*MIXED, "--pool", "all", "--label-noise")),
    ),
    "class-gaussian": (
        Setting("class-gaussian", LISTED),
        Setting("class-gaussian", ()),
        Setting("class-gaussian", (*LISTED, *RANGE)),
        Setting("class-gaussian", (), "table"),
        Setting("class-gaussian", SITES, "table"),
    ),
    "tables": (
        Setting("tables", LISTED),
        Setting("tables", (*LISTED, *RANGE)),
        Setting("tables", (), "table"),
        Setting("tables", SITES, "table"),
        Setting("tables", (), "unlabelled"),
    ),
    "image-diffusion": (Setting("image-diffusion", (*LISTED, *BITS, *SMALL_NETWORK), "images"),),
    "image-clusters": (
        Setting("image-clusters", (*LISTED, *BITS, "--deskew"), "images"),
        Setting("image-clusters", (*LISTED, *BITS, "--soft-labels"), "images"),
    ),
    RecordMethod.RANDOM_PROJECTION: (
        Setting(RecordMethod.RANDOM_PROJECTION, (*LISTED, *RANGE, "--projection", "1")),
    ),
    RecordMethod.LOCAL_PERTURBATION: (Setting(RecordMethod.LOCAL_PERTURBATION, (*LISTED, *RANGE)),),
}


# -- what is seen ----------------------------------------------------------------------------------


@dataclass
class Seen:
    """All that leaves a run, and what stays: what sites ``prepared``, each record (``rows``) of a
    method that releases every one, and the counts of labels that nobody listed."""

    noisy: list[Any] = field(default_factory=list)
    prepared: list[tuple[int, Prepared]] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    counts: list[dict[str, int]] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    """To be the same: exit code, texts, files, messages."""


@contextlib.contextmanager
def watched(first: Seen | None) -> Iterator[Seen]:
    """Note what leaves; with a ``first`` run, its noisy values take the place of this one's."""
    from capemix import agent
    from capemix.engines import in_process, local
    from capemix.sums import share as share_module
    from capemix.sums.aggregate import Aggregate
    from capemix_research.baselines import recordwise

    seen = Seen()

    def noisy(found: Any) -> Any:
        seen.noisy.append(np.copy(found) if isinstance(found, np.ndarray) else found)
        if first is None:
            return found
        earlier = first.noisy[len(seen.noisy) - 1]
        if isinstance(found, np.ndarray):
            assert (found.shape, found.dtype) == (earlier.shape, earlier.dtype)
            return earlier.copy()
        return earlier

    share, released = share_module.site_share, Aggregate.release_sums
    words, rows, labels = local.listed_words, recordwise._add_noise, recordwise.answered_labels

    def noted_share(query: Any, site: int, prepared: Prepared, *args: Any, **more: Any) -> Any:
        seen.prepared.append((site, each_made(query, prepared)))
        return share(query, site, prepared, *args, **more)

    def noted_words(found: Any, *args: Any) -> Any:
        seen.counts.append(
            {w: n for w, n in zip(found.distinct, found.counts().tolist(), strict=True) if n}
        )
        return noisy(words(found, *args))

    def noted_rows(plan: Any, given: Any, *args: Any) -> Any:
        assert (np.sqrt((given**2).sum(axis=1)) <= plan.clip).all()
        seen.rows += [row.tobytes() for row in given]
        return noisy(rows(plan, given, *args))

    def noted_labels(plan: Any, given: Any, source: Any) -> Any:
        start = len(seen.rows) - len(given)
        for at, label in enumerate(given.tolist()):
            seen.rows[start + at] += bytes([label])
        return noisy(labels(plan, given, source))

    with pytest.MonkeyPatch.context() as patch:
        for room in (local, in_process, agent):
            patch.setattr(room, "site_share", noted_share)
        patch.setattr(
            Aggregate, "release_sums", lambda *args, **more: noisy(released(*args, **more))
        )
        patch.setattr(local, "listed_words", noted_words)
        patch.setattr(recordwise, "_add_noise", noted_rows)
        patch.setattr(recordwise, "answered_labels", noted_labels)
        yield seen


def signing(folder: Path) -> Path:
    """The key that all runs are signed with, beside their folder."""
    key = folder.with_name("curator.key")
    return key if key.exists() else new_identity("curator", key.parent)[0]


def compare(without: Seen, with_it: Seen, most: int = 1) -> None:
    """That a record, or a person with ``most`` of them that count, changed its own bounded part and
    nothing else."""
    assert without.said == with_it.said, "something that anyone can see has changed"
    assert len(without.prepared) == len(with_it.prepared), "another number of sums"
    sites = len({site for site, _ in without.prepared})
    for at in range(0, len(without.prepared), max(1, sites)):
        pairs = zip(without.prepared[at : at + sites], with_it.prepared[at:], strict=False)
        changed = [own_part(before, after) for (_, before), (_, after) in pairs]
        assert sum(changed) <= 1, "a record is at more than one site"
    assert len(without.rows) == len(with_it.rows), "another number of rows"
    other = Counter(with_it.rows) - Counter(without.rows)
    assert sum(other.values()) <= 1, "more than one row has changed"
    for before, after in zip(without.counts, with_it.counts, strict=True):
        more = {word: after.get(word, 0) - before.get(word, 0) for word in {*before, *after}}
        moved = [step for step in more.values() if step]
        assert sum(map(abs, moved)) <= most, "more than one label has changed"
        assert all(step > 0 for step in moved), "another record's label has changed"


def each_made(query: Any, prepared: Prepared) -> Prepared:
    """What each record adds where only those that are drawn are made ready, row by row."""
    if not isinstance(prepared, WaitingRecords):
        return prepared
    features, labels = prepared.features, prepared.labels
    rows = np.zeros((len(labels), query.width), dtype=np.int64)
    for at, row in enumerate(rows):
        query.summed.add_to(row[None], features[[at]], labels[[at]], prepared.lattice_norm_bound)
    kept = rows[rows.any(axis=1)].astype(np.int16)
    return PreparedRows((kept,), prepared.l2_norm_bound, prepared.lattice_norm_bound)


def own_part(before: Prepared, after: Prepared) -> bool:
    """Whether a site's prepared rows changed, by one record's part at most."""
    assert type(before) is type(after)
    assert before.lattice_norm_bound == after.lattice_norm_bound is not None
    bound = before.lattice_norm_bound
    if isinstance(before, SummedRows):
        assert isinstance(after, SummedRows)
        moved = after.sums - before.sums
        assert int((moved.astype(object) ** 2).sum()) <= bound**2, "a sum has changed by too much"
        return bool(moved.any())
    assert isinstance(before, PreparedRows)
    assert isinstance(after, PreparedRows)
    assert len(before.by_group) == len(after.by_group)
    added = 0
    for old, new in zip(before.by_group, after.by_group, strict=True):
        assert (old.dtype, old.shape[1]) == (new.dtype, new.shape[1])
        had, has = (Counter(row.tobytes() for row in rows) for rows in (old, new))
        assert not had - has, "another record's row has changed"
        for row in (has - had).elements():
            norm = (np.frombuffer(row, dtype=new.dtype).astype(object) ** 2).sum()
            assert int(norm) <= bound**2, "a row is too long"
            added += 1
    assert added <= 1, "more than one row has changed"
    return added > 0


def folder_bytes(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def write_schema(folder: Path, **more: Any) -> Path:
    path = folder / "schema.json"
    path.write_text(json.dumps(SCHEMA | more))
    return path
