"""How like a table its release is, beside what chance makes of real rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from capemix.data.rows import LabeledRows
from capemix.errors import InputError
from capemix.evaluate.coding import CodedTable, coded
from capemix.evaluate.fidelity import Fidelity, fidelity
from capemix.evaluate.propensity import MOST_ROWS, Propensity, propensity
from capemix.evaluate.subsample import Subsample, as_good_as
from capemix.private import Private

LEAST_ROWS = 6
"""Of each table: with fewer no model can be trained on some and asked about the others."""


@dataclass(frozen=True)
class Likeness:
    """How far two tables are apart, and whether a model can tell their rows apart."""

    fidelity: Fidelity
    propensity: Propensity

    def as_json(self) -> dict[str, Any]:
        return {**self.fidelity.as_json(), "propensity": self.propensity.as_json()}

    def figures(self) -> dict[str, float | None]:
        """In the words of a table; 0 is best, but for the last, where it is 0.5."""
        found, told = self.fidelity, self.propensity
        return {
            "1-way total variation": found.one_way,
            "2-way total variation": found.two_way,
            "3-way total variation": found.three_way,
            "error of range queries": found.queries,
            "error of correlations": found.association,
            "pMSE: synthetic rows are told from real ones": told.mse,
            "AUC of telling them apart": told.auc,
        }


@dataclass(frozen=True)
class Measures:
    """A release beside real rows: those ``against`` which it was held. ``floor`` is test rows
    beside training rows, where both were given. ``subsample``: which part of the real rows is as
    good as the release."""

    against: Literal["train", "test"]
    release: Likeness
    floor: Likeness | None
    subsample: Subsample | None = None

    def lines(self) -> Iterator[tuple[str, float | None, float | None]]:
        """Each measure, of the release and of the floor."""
        floor = {} if self.floor is None else self.floor.figures()
        for name, value in self.release.figures().items():
            yield name, value, floor.get(name)

    def as_json(self) -> dict[str, Any]:
        return {
            "against": self.against,
            "release": self.release.as_json(),
            "floor": None if self.floor is None else self.floor.as_json(),
            "as_good_as": None if self.subsample is None else self.subsample.as_json(),
        }


def measured(
    release: LabeledRows, test: LabeledRows, train: LabeledRows | None = None
) -> Private[Measures]:
    """Hold a release against the rows that it was made from (``train``), if they are given, or else
    against others of their kind (``test``). All are coded by one schema."""
    tables = {"release": release, "test": test} | ({} if train is None else {"train": train})
    parts = {name: _with_rows(name, rows) for name, rows in tables.items()}
    against: Literal["train", "test"] = "test" if train is None else "train"
    rows = min(MOST_ROWS, *map(len, parts.values()))
    real = parts[against]
    return Private(
        Measures(
            against,
            _likeness(parts["release"], real, rows),
            None if train is None else _likeness(parts["test"], real, rows),
            as_good_as(parts["release"], real),
        )
    )


def _likeness(one: CodedTable, other: CodedTable, rows: int) -> Likeness:
    # As many rows for the release as for the floor: with more of them a model sees more.
    return Likeness(fidelity(one, other), propensity(one, other, rows=rows))


def _with_rows(name: str, rows: LabeledRows) -> CodedTable:
    if len(rows) < LEAST_ROWS:
        raise InputError(
            name,
            f"has fewer than {LEAST_ROWS} rows that fit the schema",
            fix="give more rows",
        )
    return coded(rows)
