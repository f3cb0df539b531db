"""The public tables that methods are compared on, each with what is declared of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.data import LabeledRows, Table, fitted_table, open_data
from capemix.data.registry import DATA_FOLDER
from capemix.data.schema import Category, Number
from capemix.errors import InputError

FILES: Final = {
    "adult": "income",
    "letter": "lettr",
    "credit_g": "class",
    "spam": "type",
    "shuttle": "Class",
}
"""In $CAPEMIX_DATA/tables, each with its label."""

UNUSED: Final = {"adult": ("split",)}
EMBEDDED: Final = ("digits", "breast_cancer", "wine", "diabetes")
"""What scikit-learn brings."""

TABLES: Final = (*FILES, *EMBEDDED)

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

_TARGET: Final = (25.0, 346.0)
"""Of diabetes, as its page says: those above the middle are one class, and the others the other."""


def complete_rows(name: str) -> LabeledRows:
    """The rows of a table without a missing value, coded by a schema that is declared public:
    ranges and lists are those of the whole table, and no column is taken by its logarithm."""
    if name in FILES:
        return _of_file(name)
    if name in EMBEDDED:
        table, columns, labels = embedded(name)
        return table.coded(columns, labels)
    raise InputError("data", "is no table that is known", value=name, fix=f"use {TABLES}")


def file_of(name: str) -> Path:
    """Where one of `FILES` lies."""
    path = Path(os.environ.get(DATA_FOLDER, ""), "tables", f"{name}.csv.gz")
    if not path.is_file():
        raise InputError(
            "data", "is not there", value=path, fix=f"set {DATA_FOLDER} to the folder of tables/"
        )
    return path


def _of_file(name: str) -> LabeledRows:
    import pandas as pd

    frame = pd.read_csv(file_of(name), skipinitialspace=True)
    frame = frame.drop(columns=list(UNUSED.get(name, ()))).dropna()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{name}.csv")
        frame.to_csv(file, index=False)
        found = fitted_table(file, FILES[name])
        return open_data(file, table=Table(found.columns, found.label)).train


def embedded(name: str) -> tuple[Table, list[Real], Codes]:
    """One of `EMBEDDED`: what is declared of it, its columns, and the place of each row's class."""
    import sklearn.datasets

    found = getattr(sklearn.datasets, f"load_{name}")()
    features: Real = np.asarray(found.data, dtype=np.float64)
    low, high = features.min(axis=0), features.max(axis=0)
    if name == "digits":  # every pixel has one range
        low, high = np.zeros(64), np.full(64, 16.0)
    labels = np.asarray(found.target)
    if name == "diabetes":
        labels = labels > sum(_TARGET) / 2
    table = Table(
        tuple(
            Number(f"x{at}", a, b, type="integer" if name == "digits" else "number")
            for at, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True))
        ),
        Category("label", tuple(range(int(labels.max()) + 1))),
    )
    return table, list(features.T), labels.astype(np.int64)
