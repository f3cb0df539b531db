"""Rows: public datasets by name, a user's files, and their partition into sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from capemix.data.cells import Cells, places
from capemix.data.dialect import Dialect
from capemix.data.draft import Draft, draft_table, fitted_table
from capemix.data.faults import Faults, faults_of, naming_lines
from capemix.data.finding import find_dialect
from capemix.data.partition import Split, partition
from capemix.data.persons import with_person
from capemix.data.readers import READERS, open_cells
from capemix.data.registry import (
    DATASETS,
    DEFAULT_DATASET,
    DatasetInfo,
    dataset_info,
    load_dataset,
)
from capemix.data.rows import (
    UNLABELLED,
    LabeledRows,
    UnlistedRows,
    check_classes,
    check_column,
)
from capemix.data.schema import Table
from capemix.errors import InputError

__all__ = [
    "DATASETS",
    "DEFAULT_DATASET",
    "READERS",
    "Cells",
    "DatasetInfo",
    "Dialect",
    "Draft",
    "Faults",
    "LabeledRows",
    "Loaded",
    "Split",
    "Table",
    "UnlistedRows",
    "by_site",
    "check_classes",
    "dataset_info",
    "draft_table",
    "existing_file",
    "faults_of",
    "find_dialect",
    "fitted_table",
    "load_dataset",
    "naming_lines",
    "open_cells",
    "open_data",
    "open_table",
    "partition",
    "unread",
    "with_person",
]


@dataclass(frozen=True, eq=False)
class Loaded:
    """What there is to work on; ``test`` and ``info`` come with a known dataset only."""

    train: LabeledRows
    test: LabeledRows | None = None
    info: DatasetInfo | None = None


def open_data(
    name_or_path: str | Path,
    label: str | None = None,
    *,
    classes: Sequence[str | int] | None = None,
    table: Table | None = None,
    dialect: Dialect | None = None,
    person: str | None = None,
    features: Sequence[str] | None = None,
) -> Loaded:
    """A dataset by its name, or a file by its path, as rows of declared ``classes``, or coded by a
    declared ``table``. A text file is written by a declared ``dialect``, or as the table says.
    Where neither is given, a file's labels are taken as they come: for rows
    that are public, or for their owner's eyes. ``person`` names the column that says whose a row
    is. Of rows of numbers ``features`` are those that are looked at, where the file has them all.
    """
    if isinstance(name_or_path, str) and name_or_path in DATASETS:
        coded = None if table is None else table.label_name or table.names[0]
        said = {"label": label, "classes": classes, "schema": coded, "person": person}
        for option, given in said.items():
            if given is not None:
                raise InputError(
                    option,
                    f"does not apply to the dataset {name_or_path}",
                    value=given,
                    fix="leave it out, or give a file",
                )
        train, test = load_dataset(name_or_path)
        return Loaded(train, test, DATASETS[name_or_path])
    if table is not None:
        return Loaded(table.rows(open_table(name_or_path, table, label, dialect, person)))
    labelled = classes != UNLABELLED or label is not None
    also = () if person is None else (person,)
    cells = open_cells(existing_file(name_or_path), label, also, dialect, labelled=labelled)
    cells = cells if person is None else with_person(cells, person)
    apart = features is not None and set(features) <= set(cells.names)
    but = [name for name in cells.names if name not in (features or ())] if apart else ()
    rows = UnlistedRows.of(cells, cells.label, but)
    if classes is None:
        return Loaded(rows.as_they_come())
    return Loaded(rows.listed(check_classes(classes)))


def open_table(
    path: str | Path,
    table: Table,
    label: str | None = None,
    dialect: Dialect | None = None,
    person: str | None = None,
) -> Cells:
    """The cells of a file that has a declared table's columns, and one of persons if it is named;
    what else it has is not read. A text file is written as the table says, or by a declared
    ``dialect`` of its own."""
    if label not in (None, table.label_name):
        named = table.label_name or "the schema has none"
        raise InputError("label", "is not the schema's", value=label, fix=f"leave it out: {named}")
    written, labelled = dialect or table.file, table.label is not None
    also = () if person is None else (person,)
    cells = open_cells(existing_file(path), table.label_name, also, written, labelled=labelled)
    for name in table.names:
        check_column("schema", name, cells.names)
    return cells if person is None else with_person(cells, person)


def by_site(cells: Cells, column: str, names: Sequence[str | int]) -> list[Cells]:
    """Each site's records, by a column that holds one of the sites' declared names. A record with
    another name is at none of them: it counts for nothing, at the first."""
    check_column("site column", column, cells.names)
    codes = cells.words(column).codes(places(check_classes(names, "site names")))
    first, *others = (cells.take(np.flatnonzero(codes == site)) for site in range(len(names)))
    nowhere = int((codes < 0).sum()) + cells.without_value
    return [replace(first, without_value=nowhere), *others]


def unread(cells: Cells, table: Table | None = None) -> dict[str, int]:
    """How many cells of each column do not fit it (private); those columns with any. Without a
    schema every column but the label is of numbers. A record with such a cell counts for
    nothing."""
    if table is not None:
        return table.unread(cells)
    numeric = [name for name in cells.names if name not in (cells.label, cells.person)]
    counts = {name: int(np.isnan(cells.numbers([name])).sum()) for name in numeric}
    return {name: count for name, count in counts.items() if count}


def existing_file(path: str | Path) -> str | Path:
    """The path, if a file is there; what is no file may be meant for a dataset's name."""
    if not Path(path).is_file():
        raise InputError(
            "data",
            "is neither a dataset nor a file",
            value=path,
            fix=f"give the path of a file, or one of {', '.join(DATASETS)}",
        )
    return path
