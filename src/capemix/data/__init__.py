"""Rows: public datasets by name, a user's files, and their partition into sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from capemix.data.files import LoadedFile, draft_table, load_file, load_table
from capemix.data.partition import Split, partition, partition_by
from capemix.data.registry import (
    DATASETS,
    DEFAULT_DATASET,
    DatasetInfo,
    dataset_info,
    load_dataset,
)
from capemix.data.rows import LabeledRows
from capemix.data.schema import Table
from capemix.errors import InputError

__all__ = [
    "DATASETS",
    "DEFAULT_DATASET",
    "DatasetInfo",
    "LabeledRows",
    "Loaded",
    "LoadedFile",
    "Split",
    "Table",
    "dataset_info",
    "draft_table",
    "load_dataset",
    "load_file",
    "load_table",
    "open_data",
    "partition",
    "partition_by",
]


@dataclass(frozen=True, eq=False)
class Loaded:
    """What there is to work on; ``test`` and ``info`` come with a known dataset only."""

    train: LabeledRows
    test: LabeledRows | None = None
    info: DatasetInfo | None = None
    sites: npt.NDArray[np.int64] | None = field(default=None, repr=False)


def open_data(
    name_or_path: str | Path,
    label: str | None = None,
    site_column: str | None = None,
    table: Table | None = None,
) -> Loaded:
    """A dataset by its name, or a file by its path; a ``table``'s columns are coded by it."""
    if isinstance(name_or_path, str) and name_or_path in DATASETS:
        schema = None if table is None else table.label.name
        for option, given in (("label", label), ("site column", site_column), ("schema", schema)):
            if given is not None:
                raise InputError(
                    option,
                    f"does not apply to the dataset {name_or_path}",
                    value=given,
                    fix="leave it out, or give a file",
                )
        train, test = load_dataset(name_or_path)
        return Loaded(train, test, DATASETS[name_or_path])
    if not Path(name_or_path).is_file():
        raise InputError(
            "data",
            "is neither a dataset nor a file",
            value=name_or_path,
            fix=f"give the path of a file, or one of {', '.join(DATASETS)}",
        )
    if table is not None and label not in (None, table.label.name):
        raise InputError(
            "label", "is not the schema's", value=label, fix=f"leave it out: {table.label.name}"
        )
    loaded = (
        load_file(name_or_path, label, site_column)
        if table is None
        else load_table(name_or_path, table, site_column)
    )
    return Loaded(loaded.rows, sites=loaded.sites)
