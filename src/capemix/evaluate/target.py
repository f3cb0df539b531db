"""Another column than the label to predict: a category becomes the label of rows that have the old
one as a column, and is judged as a label is; numbers are predicted by regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from capemix.data.cells import Cells
from capemix.data.columns import Category, Column
from capemix.data.rows import LabeledRows
from capemix.errors import InputError, quoted
from capemix.evaluate.score import NOT_CLIPPED, mapped, recoded
from capemix.facts import Facts
from capemix.private import Private
from capemix.sums.rows import Preparation
from capemix.sums.steps import ColumnMap, DeclaredMap, PublicMap

Real = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Target:
    """The column ``name`` of a release with these facts."""

    facts: Facts
    name: str

    def __post_init__(self) -> None:
        if self.name not in self.facts.features:
            raise InputError(
                "target",
                "is no column of the release",
                value=self.name,
                fix=f"choose one of {quoted(self.facts.features)}",
            )
        if self._place.start == self._place.stop:
            raise InputError(
                "target",
                "has nothing to predict: it is constant, or made anew",
                value=self.name,
                fix="choose another column",
            )
        if not isinstance(self.facts.normalise or PublicMap(), DeclaredMap):
            raise InputError(
                "target",
                "has no meaning for a release in each site's own units",
                value=self.name,
                fix="leave it out",
            )

    @property
    def _column(self) -> Column | None:
        """None where rows are of numbers, and no schema says more."""
        table = self.facts.table
        return None if table is None else table.columns[table.names.index(self.name)]

    @property
    def numeric(self) -> bool:
        """Whether it is predicted as a number."""
        return not isinstance(self._column, Category)

    @cached_property
    def _place(self) -> slice:
        at, table = self.facts.features.index(self.name), self.facts.table
        return slice(at, at + 1) if table is None else table.places[at]

    @cached_property
    def _others(self) -> list[int]:
        """Where the numbers of the other columns are in a row."""
        own = range(*self._place.indices(self.facts.width))
        return [at for at in range(self.facts.width) if at not in own]

    @property
    def _labels(self) -> int:
        """How many numbers the label has among the features."""
        return 0 if self.facts.label is None else len(self.facts.listed)

    @property
    def preparation(self) -> Preparation:
        """Of the features: as the release's own was, the label as it stands."""
        how = cast(DeclaredMap, self.facts.normalise or PublicMap())
        shift, scale = (np.broadcast_to(each, self.facts.width) for each in (how.shift, how.scale))
        ends = (how.low, how.high)
        low, high = (
            np.broadcast_to(default if end is None else end, self.facts.width)
            for end, default in zip(ends, (-NOT_CLIPPED, NOT_CLIPPED), strict=True)
        )
        parts = ((shift, 0.0), (scale, 1.0), (low, 0.0), (high, 1.0))
        own = [(*each[self._others].tolist(), *[of] * self._labels) for each, of in parts]
        return Preparation(ColumnMap(own[0], own[1], own[2], own[3]), NOT_CLIPPED)

    def _features(self, rows: LabeledRows) -> Real:
        """All columns but this one, the label last, as categories are coded."""
        parts = [rows.features[:, self._others].astype(np.float64)]
        if self._labels:
            parts.append(np.eye(self._labels)[rows.labels])
        return np.concatenate(parts, axis=1)

    def labelled(self, rows: LabeledRows) -> LabeledRows:
        """Of a category: the rows with it as their label; those without a value are left out."""
        column, rows = cast(Category, self._column), recoded(rows, self.facts.listed)
        block = rows.features[:, self._place][:, : len(column.categories)]
        known = block.any(axis=1)
        names = tuple(self.facts.coded_names[at] for at in self._others)
        names += tuple(f"{self.facts.label}={each}" for each in self.facts.listed[: self._labels])
        return LabeledRows(
            features=self._features(rows)[known],
            labels=block[known].argmax(axis=1).astype(np.int64),
            classes=tuple(
                str(each) if isinstance(each, bool) else each for each in column.categories
            ),
            feature_names=names,
            label_name=self.name,
        )

    def numbers(self, rows: LabeledRows, *, prepared: bool) -> tuple[Real, Real]:
        """Features as models are given them, and what they are to predict, in its own units; rows
        without a number are left out. ``prepared``: as in `train_and_test`."""
        rows = recoded(rows, self.facts.listed)
        block = rows.features[:, self._place].astype(np.float64)
        values, column = block[:, 0], self._column
        if column is not None:
            cells = {self.name: column.arrow(column.cells(block))}
            values = column.read(Cells(len(block), cells, None)).astype(np.float64)
        known, features = np.isfinite(values), self._features(rows)
        if prepared:
            return mapped(features, self.preparation)[known], values[known]
        return self.preparation.apply(features)[known], values[known]


# -- regression ------------------------------------------------------------------------------------


def _ridge() -> Any:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), Ridge())


def _boosting() -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(random_state=0)


REGRESSORS: Final[dict[str, Callable[[], Any]]] = {"ridge": _ridge, "boosting": _boosting}


@dataclass(frozen=True)
class Fit:
    """``r2`` is the part of the variance of the test rows' values that is predicted, below 0 for
    what is worse than their mean; ``error`` the mean absolute error, in the column's units."""

    r2: float
    error: float


@dataclass(frozen=True)
class Regressions:
    """Each model, trained on a release and on real rows, if it was."""

    synthetic: dict[str, Fit]
    real: dict[str, Fit] | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def regress_and_test(
    target: Target, train: LabeledRows, test: LabeledRows, *, prepared: bool = False
) -> Private[dict[str, Fit]]:
    """Each of `REGRESSORS` trained on ``train``, tested on ``test``. ``prepared``: the training
    rows are a release's, see `train_and_test`."""
    from sklearn.metrics import mean_absolute_error, r2_score

    features, values = target.numbers(train, prepared=prepared)
    unseen, truth = target.numbers(test, prepared=False)
    for name, found in (("rows to train on", values), ("test", truth)):
        if len(found) < 2:
            raise InputError(
                name,
                "has fewer than two rows with a number to predict",
                value=target.name,
                fix="give more rows",
            )
    fits = {}
    for name, model in REGRESSORS.items():
        said = model().fit(features, values).predict(unseen)
        fits[name] = Fit(float(r2_score(truth, said)), float(mean_absolute_error(truth, said)))
    return Private(fits)
