"""The Python interface: a plan, `synthesize`, and a scikit-learn-like `Synthesizer`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from capemix.data.arrays import cells_of_arrays, cells_of_columns
from capemix.data.cells import Cells
from capemix.data.frames import frame_of, kind_of
from capemix.data.persons import check_persons, counted
from capemix.data.rows import UNLABELLED, LabeledRows, UnlistedRows, check_classes
from capemix.data.schema import Table
from capemix.engines.local import LocalEngine
from capemix.errors import InputError
from capemix.facts import CLASS_SIZES, Facts
from capemix.ledger import Ledger, Lineage
from capemix.methods import PAPERS, Method, method_named
from capemix.methods.measured import MOST_COLUMNS
from capemix.plan import Plan, make_plan
from capemix.randomness.source import SeededSource, Source
from capemix.release import Release
from capemix.run import more, run
from capemix.sums.steps import DeclaredMap, PublicMap
from capemix.where import conditions, evenly, matching

LedgerPlace = Ledger | str | os.PathLike[str] | None


def synthesize(
    plan: Plan,
    rows: LabeledRows | UnlistedRows | Sequence[LabeledRows],
    *,
    source: Source | None = None,
    progress: Callable[[int], None] | None = None,
    threads: int | None = None,
    ledger: LedgerPlace = None,
    lineage: str | None = None,
) -> Release:
    """Carry out a calibrated plan on one curator's rows, or on a sequence of sites' rows.

    With a ``lineage``, the release is charged to it before any noise is drawn; ``ledger`` is a
    ledger or its file, the user's own by default. Without, nothing is counted.
    """
    engine = LocalEngine(rows, source, progress=progress, threads=threads)
    return run(plan, engine, lineage_of(ledger, lineage))


def lineage_of(ledger: LedgerPlace, lineage: str | None) -> Lineage | None:
    """The lineage that a release is charged to, if one is named."""
    if lineage is None:
        if ledger is not None:
            raise InputError("lineage", "is not named", fix="say which data the ledger counts")
        return None
    opened = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger)
    found = opened.lineage(lineage)
    found.account()  # declared, and readable
    return found


def usual_method(facts: Facts, *, measured: bool = True) -> str:
    """The method for rows of which nothing more is said: for images and for wide rows, those that
    are made for them, and for all other tables `tables`. It needs ranges: for small images, and for
    rows that are taken as they stand, class Gaussians. ``measured``: whether ranges that are not
    declared will be."""
    if facts.width > MOST_COLUMNS and facts.table is None:
        return PAPERS if facts.image_shape is None else "image-clusters"
    how = facts.normalise
    ranged = measured if how is None else isinstance(how, DeclaredMap) and how.low is not None
    return "tables" if ranged and facts.image_shape is None else "class-gaussian"


def config_of(name: str, **config: Any) -> Method:
    """A method by its name, with those parts of its config that are not None."""
    cls = method_named(name)
    known = {each.name for each in fields(cls) if each.name != "kind"}  # type: ignore[arg-type]
    given = {part: value for part, value in config.items() if value is not None}
    for part, value in given.items():
        if part not in known:
            raise InputError(
                part, f"has no meaning for {name}", value=value, fix="leave it out, or use another"
            )
    return cls(**given)


def as_they_stand(facts: Facts, sites: Sequence[LabeledRows]) -> Facts:
    """Where no privacy is promised, facts that nobody declared are read from the rows, and said to
    be unpaid."""
    sizes, unpaid = facts.class_sizes, facts.unpaid
    if sizes is None:
        rows = [counted(site, facts.rows_per_person, one_class=False) for site in sites]
        sizes = tuple(np.sum([each.class_counts() for each in rows], axis=0).tolist())
        unpaid = (*unpaid, CLASS_SIZES)
    return replace(
        facts,
        class_sizes=sizes,
        normalise=PublicMap() if facts.normalise is None else facts.normalise,
        unpaid=unpaid,
    )


class Synthesizer:
    """One curator's rows in, private synthetic rows out.

    What is declared is public: ``classes`` (rows of other classes count for nothing), their sizes,
    the range of the features. What is not declared is measured and paid for out of the budget: the
    classes that enough records have, their sizes, ranges, means, scales and the clip norm.
    ``method`` is a method's name or config (by default the one for such rows, see
    `usual_method`); ``config`` are parts of the named method's config, such as ``samples``.
    ``person`` names the column that says whose a row is, and ``rows_per_person`` how many of a
    person's rows count: then the guarantee is a person's, with all of these rows.
    ``schema`` declares the columns and the classes of a table: a `Table`, the path of its file, or
    what such a file says as a dict. With a ``lineage``
    every fit is charged to it before it draws; without, nothing is counted. After a fit
    ``release_.warnings`` say what could not be told from noise.

    Each cell is read by itself. A record with a cell that is no number where one must be, or with a
    label off the list, counts for nothing.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        method: Method | str | None = None,
        public_range: tuple[float, float] | None = None,
        classes: Sequence[str | int] | None = None,
        class_sizes: Sequence[int] | None = None,
        relation: str | None = None,
        schema: Table | str | os.PathLike[str] | Mapping[str, Any] | None = None,
        person: str | None = None,
        rows_per_person: int | None = None,
        test_seed: int | None = None,
        ledger: LedgerPlace = None,
        lineage: str | None = None,
        **config: Any,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.public_range = public_range
        self.classes = classes
        self.class_sizes = class_sizes
        self.relation = relation
        self.schema = schema
        self.person = person
        self.rows_per_person = rows_per_person
        self.test_seed = test_seed
        self.ledger = ledger
        self.lineage = lineage
        self._config = config

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        own = {name: value for name, value in vars(self).items() if name[-1] != "_" != name[0]}
        return own | self._config

    def set_params(self, **params: Any) -> Self:
        for name, value in params.items():
            if name in self._config:
                self._config[name] = value
            elif name in self.get_params():
                setattr(self, name, value)
            else:
                raise InputError("parameter", "is unknown", value=name, fix="see get_params()")
        return self

    def fit(self, X: Any, y: npt.ArrayLike | None = None) -> Self:
        """``X`` is an array, or with a ``schema`` a table: a DataFrame, or columns by name. Labels,
        if there are any, are ``y``, or the column that the schema names."""
        if self.person is not None or self.rows_per_person is not None:
            check_persons(self.person is not None, self.rows_per_person)
        rows = self._rows(X, y)
        how = None if self.public_range is None else PublicMap.of_range(*self.public_range)
        method = self._method(Facts.of(rows, normalise=how))
        free = math.isinf(self.epsilon) or method.claimed  # nothing is promised of any row
        if free and isinstance(rows, UnlistedRows):
            rows = rows.as_they_come()
        facts = Facts.of(
            rows,
            class_sizes=None if self.class_sizes is None else tuple(self.class_sizes),
            normalise=how,
            rows_per_person=self.rows_per_person,
        )
        if free and isinstance(rows, LabeledRows):
            facts = as_they_stand(facts, [rows])
        plan = make_plan(facts, method, delta=self.delta, relation=self.relation)
        self.release_ = synthesize(
            plan.calibrate(self.epsilon),
            rows,
            source=None if self.test_seed is None else SeededSource(self.test_seed),
            ledger=self.ledger,
            lineage=self.lineage,
        )
        self.guarantee_ = self.release_.guarantee
        self.classes_ = np.array(self.release_.facts.listed)
        return self

    def _method(self, facts: Facts) -> Method:
        if isinstance(self.method, Method):
            if self._config:
                raise InputError(
                    next(iter(self._config)), "is the method's to say", fix="leave it out"
                )
            return self.method
        usual = usual_method(facts, measured=not math.isinf(self.epsilon))
        return config_of(self.method or usual, **self._config)

    def _rows(self, X: Any, y: npt.ArrayLike | None) -> LabeledRows | UnlistedRows:
        if self.schema is not None:
            if self.classes is not None:
                raise InputError("classes", "are the schema's to say", fix="leave them out")
            schema = Table.of(self.schema)
            names, label = schema.names, schema.label_name
            if label is None and y is not None:
                raise InputError("y", "is the label, and the schema names none", fix="leave it out")
            self._kind = kind_of(X)
            return schema.rows(cells_of_columns(X, names, label, y, self.person))
        cells = cells_of_arrays(X, y) if self.person is None else self._of_people(X, y, self.person)
        rows = UnlistedRows.of(cells, cells.label)
        if y is None:
            if self.classes is not None:
                raise InputError("y", "is not given, but classes are", fix="give the labels")
            return rows.listed(UNLABELLED)
        return rows if self.classes is None else rows.listed(check_classes(self.classes))

    def _of_people(self, X: Any, y: npt.ArrayLike | None, person: str) -> Cells:
        """Of a frame with a column of persons, whose other columns are numbers."""
        if kind_of(X) is None or person not in X.columns:
            raise InputError(
                "X",
                "must be a frame with the column of persons",
                value=person,
                fix="give a DataFrame, or leave 'person' out",
            )
        cells = cells_of_arrays(X[[name for name in X.columns if name != person]], y)
        beside = cells_of_columns(X, (), None, person=person).columns[person]
        return replace(cells, columns={**cells.columns, person: beside}, person=person)

    def sample(self, n: int | None = None, *, where: Mapping[str, Any] | None = None) -> Any:
        """``n`` rows and labels; all that were released by default. Fewer are taken evenly over the
        classes. More are those and new rows of the same noisy sums, which costs nothing.
        Rows of a ``schema`` come as the kind of table that was fitted: a DataFrame of pandas or of
        polars with a Series of labels, or columns by name. Without a label they come alone.
        ``where`` says which: of a column by its name a value, a list of values, or a range
        as a tuple (low, high), where None leaves an end open.

        Where a method's rows are the noisy sums themselves, as with mixing, there are no new ones:
        rows are repeated.
        """
        if not hasattr(self, "release_"):
            raise InputError("the synthesizer", "is not fitted", fix="call fit(X, y) first")
        if n is not None and n < 1:
            raise InputError("n", "must be at least 1", value=n, fix="ask for one row or more")
        features, labels = self._drawn(n, where or {})
        name = self.release_.facts.label
        table = self.release_.facts.table
        if table is None:
            return features if name is None else (features, self.classes_[labels])
        cells = table.cells(features.astype(np.float64), labels)
        if self._kind is not None:
            frame = frame_of(table.arrow(cells), table.missing, self._kind)
            return frame if name is None else (frame[[x for x in cells if x != name]], frame[name])
        return cells if name is None else (cells, np.array(cells.pop(name)))

    def _drawn(self, n: int | None, where: Mapping[str, Any]) -> tuple[Any, Any]:
        """Released rows that fit, and as many new ones as are asked for beyond them."""
        release = self.release_
        fit = _fitting(release, where)
        if n is None or n <= len(fit):
            if not len(fit):
                raise InputError(
                    "where", "is met by no released row", value=where, fix="ask for less, or give n"
                )
            by_class = fit[np.argsort(release.labels[fit], kind="stable")]
            chosen = np.sort(evenly(by_class, n))
            return release.features[chosen], release.labels[chosen]
        features, labels = [release.features[fit]], [release.labels[fit]]
        found, drawn = len(fit), len(release)
        for turn in range(1, _TURNS + 1):
            lacking = n - found
            rows = min(max(2 * lacking * drawn // max(found, 1), _LEAST_ROWS), _MOST_ROWS)
            new = more(release, rows, turn)
            if new is None:  # the rows are sums
                if not found:
                    break
                again = fit[np.arange(n) % found]
                return release.features[again], release.labels[again]
            fits = _fitting(new, where)
            found, drawn = found + len(fits), drawn + rows
            features.append(new.features[fits[:lacking]])
            labels.append(new.labels[fits[:lacking]])
            if found >= n:
                return np.concatenate(features), np.concatenate(labels)
        raise InputError(
            "where",
            f"is met by {found} of {drawn:,} rows that were drawn",
            value=where,
            fix="ask for fewer rows, or for less",
        )


_TURNS: Final = 10
_LEAST_ROWS: Final = 1_000
_MOST_ROWS: Final = 100_000
"""How often new rows are drawn, and how many at a time, until enough meet a condition."""


def _fitting(release: Release, where: Mapping[str, Any]) -> npt.NDArray[np.intp]:
    """The places of the rows that meet every condition."""
    if not where:
        return np.arange(len(release))
    cells = {
        name: values if isinstance(values, np.ndarray) else np.array(values, dtype=object)
        for name, values in release.columns().items()
    }
    every = Cells(len(release), cells, release.facts.label)
    return np.flatnonzero(matching(release.facts, every, conditions(where)))
