"""The Python interface: a frozen plan, `synthesize`, and a scikit-learn-like `Synthesizer`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from capemix.data.arrays import cells_of_arrays, cells_of_columns
from capemix.data.rows import LabeledRows, UnlistedRows, check_classes, read_from_rows_of
from capemix.data.schema import Table
from capemix.engines.local import read_from_rows, run_local, sums_local
from capemix.errors import EpsilonError, InputError
from capemix.federation import Scheme
from capemix.kernels.memory import require_memory
from capemix.ledger import Ledger, Lineage
from capemix.looks import plan_looks
from capemix.moments import check_room, release_moments
from capemix.plan import Accountant, NoiseLaw, Plan, make_plan
from capemix.plan.images import Images
from capemix.plan.moments import make_moments_plan
from capemix.plan.tuning import tuned_mixture
from capemix.sums.steps import ColumnMap, Coverage, PublicMap
from capemix.queries import Relation, Selection
from capemix.randomness.source import SeededSource, Source, SystemSource
from capemix.release import Release
from capemix.synthesizers.mixing import Pool
from capemix.synthesizers.names import SynthesizerName
from capemix.synthesizers.tables import map_of
from capemix.synthesizers.told import listed

COUNT_SHARE: Final = 0.1
"""The part of epsilon and delta that class sizes take when they are not declared."""

LOOK_SHARE: Final = 0.2
"""The part that all looks take when ranges, means and scales are paid for."""

PAID: Final = "paid"
"""In place of a map: let the looks make one."""

LedgerPlace = Ledger | str | os.PathLike[str] | None


def synthesize(
    plan: Plan,
    rows: LabeledRows | Sequence[LabeledRows],
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
    sites = [rows] if isinstance(rows, LabeledRows) else list(rows)
    budget = budget_of(ledger, lineage, source)
    check_countable(budget, read_from_rows(plan, sites))

    def charge() -> None:
        if budget is not None:
            budget.charge("release", plan.cost(budget.relation))

    if plan.federation.scheme is Scheme.CENTRAL and len(sites) > 1:
        raise InputError(
            "rows", "must be one table for the central scheme", value=len(sites), fix="pool them"
        )
    return run_local(plan, sites, source=source, progress=progress, threads=threads, before=charge)


def budget_of(ledger: LedgerPlace, lineage: str | None, source: Source | None) -> Lineage | None:
    """The lineage that a release is charged to, if one is named."""
    if lineage is None:
        if ledger is not None:
            raise InputError("lineage", "is not named", fix="say which data the ledger counts")
        return None
    if isinstance(source, SeededSource):
        raise InputError(
            "--test-seed",
            "makes noise that is not private, so no budget can pay for it",
            fix="leave it out, or say --no-ledger",
        )
    opened = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger)
    return opened.lineage(lineage)


def check_countable(budget: Lineage | None, read_from_rows: tuple[str, ...]) -> None:
    """Refuse to count a release that has read from rows what no budget pays for."""
    if budget is not None and read_from_rows:
        raise InputError(
            "--lineage",
            f"cannot pay: {read_from_rows[0]} was read from the rows",
            value=budget.name,
            fix="confirm the schema with `capemix schema confirm`, declare what is public, or say"
            " --no-ledger",
        )


class Synthesizer:
    """One curator's rows in, private synthetic rows out.

    What is declared is public: ``classes`` (rows of other classes count for nothing), their sizes,
    the range of the features. What is not declared is measured and paid for out of the budget: the
    classes that enough records have, their sizes, ranges, means, scales and the clip norm.
    ``method`` is mixing (DP-CDA), moments or dp-mix; by default ``mixture`` is 16, ``samples`` 1000
    and the relation add-or-remove-one, where the method has them. ``schema`` declares the columns
    and the classes of a table with categories (for moments). With a ``lineage`` every fit is
    charged to it before it draws; without, nothing is counted. After a fit ``release_.warnings``
    say what could not be told from noise.

    Each cell is read by itself. A record with a cell that is no number where one must be, or with a
    label off the list, counts for nothing.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        method: str = "mixing",
        mixture: int | None = None,
        samples: int | None = None,
        clip: float | None = None,
        public_range: tuple[float, float] | None = None,
        classes: Sequence[str | int] | None = None,
        class_sizes: Sequence[int] | None = None,
        relation: str | None = None,
        schema: Table | None = None,
        test_seed: int | None = None,
        ledger: LedgerPlace = None,
        lineage: str | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.mixture = mixture
        self.samples = samples
        self.clip = clip
        self.public_range = public_range
        self.classes = classes
        self.class_sizes = class_sizes
        self.relation = relation
        self.schema = schema
        self.test_seed = test_seed
        self.ledger = ledger
        self.lineage = lineage

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        return {name: value for name, value in vars(self).items() if not name.endswith("_")}

    def set_params(self, **params: Any) -> Self:
        for name, value in params.items():
            if name not in self.get_params():
                raise InputError("parameter", "is unknown", value=name, fix="see get_params()")
            setattr(self, name, value)
        return self

    def fit(self, X: Any, y: npt.ArrayLike) -> Self:
        """``X`` is an array, or with a ``schema`` a table: a DataFrame, or columns by name."""
        rows = self._rows(X, y)
        source = SystemSource() if self.test_seed is None else SeededSource(self.test_seed)
        asked = {name: getattr(self, name) for name in ("mixture", "samples", "relation")}
        self.release_ = release_of(
            rows,
            synthesizer=self.method,
            epsilon=self.epsilon,
            delta=self.delta,
            **self._map(rows.width),
            class_sizes=tuple(self.class_sizes) if self.class_sizes is not None else None,
            source=source,
            ledger=self.ledger,
            lineage=self.lineage,
            **{name: value for name, value in asked.items() if value is not None},
        )
        self.guarantee_ = self.release_.guarantee
        self.classes_ = np.array(self.release_.plan.classes)
        return self

    def _rows(self, X: Any, y: npt.ArrayLike) -> LabeledRows | UnlistedRows:
        if self.schema is not None:
            if self.classes is not None:
                raise InputError("classes", "are the schema's to say", fix="leave them out")
            names, label = self.schema.names, self.schema.label.name
            return self.schema.rows(cells_of_columns(X, names, label, y))
        cells = cells_of_arrays(X, y)
        rows = UnlistedRows.of(cells, cells.label)
        return rows if self.classes is None else rows.listed(check_classes(self.classes))

    def _map(self, width: int) -> dict[str, Any]:
        """How rows are normalised and clipped, in the words of `release_of`."""
        if self.public_range is not None:
            clip = self.clip
            if clip is None and not SynthesizerName.named(self.method).of_moments:
                clip = 0.5 * math.sqrt(width)
            return {"normalise": PublicMap.of_range(*self.public_range), "clip": clip}
        return {"normalise": PAID, "clip": self.clip}

    def sample(self, n: int | None = None) -> tuple[Any, npt.NDArray[Any]]:
        """``n`` of the released rows and labels, evenly over the classes; all of them by default.
        Rows of a ``schema`` come as columns by name.

        Asking for more than were released repeats rows: it costs nothing and tells nothing new.
        """
        if not hasattr(self, "release_"):
            raise InputError("the synthesizer", "is not fitted", fix="call fit(X, y) first")
        total = len(self.release_)
        n = total if n is None else n
        if n < 1:
            raise InputError("n", "must be at least 1", value=n, fix="ask for one row or more")
        picks = np.arange(n) % total if n > total else np.arange(n) * total // n
        labels = self.classes_[self.release_.labels[picks]]
        if self.schema is not None:
            return self.schema.cells(self.release_.features[picks].astype(np.float64)), labels
        return self.release_.features[picks], labels


def release_of(
    rows: LabeledRows | UnlistedRows | Sequence[LabeledRows],
    *,
    epsilon: float,
    class_sizes: tuple[int, ...] | None = None,
    source: Source,
    synthesizer: SynthesizerName | str = SynthesizerName.MIXING,
    tune: bool = False,
    progress: Callable[[int], None] | None = None,
    delta: float = 1e-5,
    ledger: LedgerPlace = None,
    lineage: str | None = None,
    **asked: Any,
) -> Release:
    """Plan, calibrate and synthesize. What is not declared is looked at and paid for first: the
    classes of unlisted rows, class sizes, and with ``normalise="paid"`` each column's range, mean
    and scale, and the clip norm.

    ``tune`` chooses the number of mixtures and their size by what the noise will be, where rows are
    drawn anew (``redraw``). ``asked`` goes to `make_plan`. ``ledger`` and ``lineage`` are as for
    `synthesize`; looks are charged too.
    """
    budget = budget_of(ledger, lineage, source)
    counted: dict[str, Any] = {}
    if budget is not None:
        budget.account()  # declared, and readable
        counted = {"ledger": budget.ledger, "lineage": budget.name}
    kind = SynthesizerName.named(synthesizer)
    if tune and kind.of_moments:
        raise InputError(
            "--tune",
            f"has no meaning for {kind}",
            value="auto",
            fix="leave it out, or use --synthesizer mixing",
        )
    free = math.isinf(epsilon) or asked.get("accountant") == Accountant.PAPER
    unlisted = None
    if isinstance(rows, UnlistedRows):
        if free:  # where nothing is paid for, nothing is promised either
            rows = rows.as_they_come()
        else:
            unlisted, rows = rows, rows.listed(_STAND_IN)
            _check_unlisted(class_sizes, asked)
    sites = [rows] if isinstance(rows, LabeledRows) else list(rows)
    check_countable(budget, read_from_rows_of(sites))
    first = sites[0]
    if first.table is not None and kind is not SynthesizerName.MOMENTS:
        raise InputError(
            "--schema",
            "needs a synthesizer that restores categories",
            value=kind,
            fix="use --synthesizer moments",
        )
    if kind.of_moments:
        return _release_of_moments(
            kind, sites, unlisted, epsilon, delta, class_sizes, source, budget, progress, **asked
        )
    if asked.pop("upright", None):
        raise InputError(
            "--upright", f"has no meaning for {kind}", fix="leave it out, or use moments"
        )
    if kind is SynthesizerName.DP_MIX:
        asked["pool"] = Pool.ALL
    if tune and (asked.get("redraw") is None or math.isinf(epsilon)):
        raise InputError(
            "--tune",
            "chooses mixtures to draw rows anew from, within a budget",
            value="auto",
            fix="say how many rows with --redraw, or leave it out",
        )
    asked = {
        "width": first.width,
        "classes": first.classes,
        "sites": len(sites),
        "mixture": 16,
        "samples": 1000,
        **asked,
    }
    for name, bytes_a_number in (("samples", 16), ("redraw", 40)):
        if isinstance(asked.get(name), int):
            require_memory(f"--{name}", asked[name], first.width, bytes_a_number)
    if math.isinf(epsilon):
        asked["noise"] = 0.0
    # Where nothing is paid for, rows are taken as they stand.
    columns = asked.get("normalise") == PAID and not free
    if asked.get("normalise") == PAID:
        asked["normalise"] = None
    clip = asked.get("clip")
    if clip is None:
        asked["clip"] = 1.0
    warnings: tuple[str, ...] = ()
    if class_sizes is None or columns:
        # A plan by sizes that are declared, or made up: what it refuses depends on no row.
        stand_in = (100 * asked["mixture"] * len(sites),) * len(first.classes)
        plan = make_plan(class_sizes=class_sizes or stand_in, delta=delta, **asked)
        if free:
            class_sizes = tuple(np.sum([site.class_counts() for site in sites], axis=0).tolist())
            asked["sizes"] = Coverage.NOT_COVERED
        elif class_sizes is None and plan.mixing.selection is Selection.FIXED:
            raise InputError(
                "--class-sizes",
                "must be declared for fixed-size selection: it needs public lower bounds",
                fix="give them, or use --selection poisson",
            )
        else:
            part = LOOK_SHARE if columns else COUNT_SHARE
            with _part_of(epsilon, 1 - part):  # before anything is looked at and paid for
                likely = replace(plan, delta=delta * (1 - part)).calibrate(epsilon * (1 - part))
            with _part_of(epsilon, part):
                looks = plan_looks(
                    first.width,
                    None if unlisted is not None else len(first.classes),
                    plan.federation,
                    columns=columns,
                    epsilon=epsilon * part,
                    delta=delta * part,
                    relation=plan.relation,
                    class_sizes=class_sizes,
                    clip=clip,
                )
            epsilon, delta = epsilon * (1 - part), delta * (1 - part)
            if budget is not None:
                budget.check(looks.cost(budget.relation), likely.cost(budget.relation))

            def charge() -> None:
                if budget is not None:
                    cost = looks.cost(budget.relation)
                    budget.charge(", ".join(looks.plans), cost, preliminary=True)

            found = looks.take(sites if unlisted is None else unlisted, source, charge)
            if unlisted is not None:
                sites = [unlisted.listed(found.classes)]
                first, asked["classes"] = sites[0], found.classes
            least = plan.mixing.mixture * plan.mixing.sites_averaged
            if plan.mixing.pool is Pool.ALL:  # then all classes together hold a mixture
                least = math.ceil(least / len(first.classes))
            warnings = found.warnings
            if class_sizes is None:
                warnings += _raised(found.class_sizes, least, first.classes)
                class_sizes = tuple(max(size, least) for size in found.class_sizes)
                asked["sizes"] = Coverage.PAID
            asked["earlier"] = looks.guarantee(seeded=isinstance(source, SeededSource))
            asked["looks"] = looks.lines(part)
            if found.normalise is not None:
                asked["normalise"] = found.normalise
            if found.clip is not None:
                asked["clip"] = found.clip
    if tune:
        asked |= _tuned(epsilon, class_sizes=class_sizes, delta=delta, **asked)
    plan = make_plan(class_sizes=class_sizes, delta=delta, **asked)
    made = synthesize(plan.calibrate(epsilon), sites, source=source, progress=progress, **counted)
    return replace(made, warnings=(*warnings, *made.warnings))


def _raised(sizes: tuple[int, ...], least: int, classes: Sequence[str | int]) -> tuple[str, ...]:
    """What is said where a class, as counted with noise, is smaller than a mixture."""
    small = [name for name, size in zip(classes, sizes, strict=True) if size < least]
    if not small:
        return ()
    return (
        f"class sizes: {len(small)} of {len(classes)} classes have fewer records, as counted with"
        f" noise, than the {least} that a mixture takes: {listed(small)}; every record of theirs is"
        " in every mixture, and the mixtures are nearer to 0 than the rows",
    )


def _release_of_moments(
    kind: SynthesizerName,
    sites: Sequence[LabeledRows],
    unlisted: UnlistedRows | None,
    epsilon: float,
    delta: float,
    class_sizes: tuple[int, ...] | None,
    source: Source,
    budget: Lineage | None,
    progress: Callable[[int], None] | None,
    *,
    normalise: Any = None,
    samples: int | None = None,
    relation: Relation | str | None = None,
    upright: bool = False,
    **asked: Any,
) -> Release:
    """Classes and ranges are looked at first if they are not declared; then the rounds take what is
    left."""
    for name, value in asked.items():
        if name not in _WHO and value is not None:
            raise InputError(
                f"--{name.replace('_', '-')}",
                "has no meaning for moments",
                value=value,
                fix="leave it out",
            )
    first = sites[0]
    if first.table is not None:
        normalise = _declared_map(sites, normalise)
    plan = make_moments_plan(
        width=first.width,
        classes=first.classes,
        normalise=None if normalise in (None, PAID) else normalise,
        table=first.table,
        images=Images.of(kind, first.width, first.image_shape, upright),
        samples=samples,
        class_sizes=class_sizes,
        delta=delta,
        relation=relation,
        sites=len(sites),
        **{name: asked[name] for name in _WHO if name in asked},
    )
    if plan.federation.sites != len(sites):
        raise InputError(
            "sites",
            f"must be {plan.federation.sites} for --scheme {plan.federation.scheme}",
            value=len(sites),
            fix="give all rows as one site's, or use --scheme cape",
        )
    check_room(plan)
    looks = None
    columns = normalise == PAID
    part = LOOK_SHARE if columns else COUNT_SHARE
    if (columns or unlisted is not None) and not math.isinf(epsilon):
        plan = replace(plan, delta=delta * (1 - part))
        with _part_of(epsilon, 1 - part):
            plan = plan.calibrate(epsilon * (1 - part))
        with _part_of(epsilon, part):
            looks = plan_looks(
                first.width,
                None if unlisted is not None else len(first.classes),
                plan.federation,
                columns=columns,
                epsilon=epsilon * part,
                delta=delta * part,
                relation=plan.relation,
                class_sizes=class_sizes,
                clip=1.0,  # the rounds find their own
            )
        epsilon, delta = epsilon * (1 - part), delta * (1 - part)
    else:
        plan = plan.calibrate(epsilon)
    costs = [one.cost(budget.relation) for one in (looks, plan) if one] if budget else []
    if budget is not None:
        budget.check(*costs)
    warnings: tuple[str, ...] = ()
    if looks is not None:

        def charge_looks() -> None:
            if budget is not None:
                budget.charge(", ".join(looks.plans), costs[0], preliminary=True)

        found = looks.take(sites if unlisted is None else unlisted, source, charge_looks)
        warnings = found.warnings
        plan = replace(
            plan,
            classes=found.classes,
            normalise=found.normalise or plan.normalise,
            class_sizes=found.class_sizes,
            earlier=looks.guarantee(seeded=isinstance(source, SeededSource)),
            looks=looks.lines(part),
        )
        if unlisted is not None:  # a list that was found has its own number of classes
            sites = [unlisted.listed(found.classes)]
            first, plan = sites[0], plan.calibrate(epsilon)

    if budget is not None:
        budget.charge("release", plan.cost(budget.relation))
    seeded = isinstance(source, SeededSource)
    made = release_moments(
        plan,
        first,
        sums_local(sites, source),
        lambda chosen: chosen.guarantee(
            seeded=seeded, one_process=True, read_from_rows=read_from_rows_of(sites)
        ),
        progress=progress,
    )
    return replace(made, warnings=(*warnings, *made.warnings))


def _tuned(epsilon: float, **asked: Any) -> dict[str, int]:
    """The number of mixtures and their size, by public numbers."""
    classes = len(asked["class_sizes"])

    def planned(draws: int, mixture: int) -> Plan:
        return make_plan(**asked | {"samples": draws * classes, "mixture": mixture})

    smallest = min(asked["class_sizes"]) // planned(2, 1).mixing.sites_averaged
    draws, mixture = tuned_mixture(planned, epsilon, smallest)
    return {"samples": draws * classes, "mixture": mixture}


def _declared_map(sites: Sequence[LabeledRows], normalise: Any) -> ColumnMap:
    """By the schema that all sites' rows are coded by."""
    table = sites[0].table
    if table is None or any(site.table != table for site in sites):
        raise InputError("schema", "must be the same at every site", fix="code all rows by one")
    declared = map_of(table)
    if normalise not in (None, PAID, declared):
        raise InputError(
            "--public-range", "contradicts the ranges of the schema", fix="leave it out"
        )
    return declared


@contextmanager
def _part_of(epsilon: float, part: float) -> Iterator[None]:
    """What cannot be delivered of a part of the budget, said of the whole that was asked for."""
    try:
        yield
    except EpsilonError as error:
        raise EpsilonError(epsilon, error.most / part) from None


def _check_unlisted(class_sizes: tuple[int, ...] | None, asked: dict[str, Any]) -> None:
    """Whether classes can be found, by what was asked alone."""
    problem = None
    if class_sizes is not None:
        problem = "must be declared where their sizes are"
    elif asked.get("law") == NoiseLaw.GAUSSIAN:
        problem = "must be declared for --law gaussian: a list is found on the lattice"
    if problem is not None:
        raise InputError("--classes", problem, fix="list them: a,b,c")


_STAND_IN: Final = ("a", "b")
"""Classes to check a plan by until some are found: what it refuses depends on no row."""

_WHO: Final = ("scheme", "form", "colluding", "dropouts", "masks", "peers", "law")
