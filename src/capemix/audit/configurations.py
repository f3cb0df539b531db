"""The settings of `capemix audit`: small plans under the sound accountant."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from capemix.api import config_of
from capemix.audit.canary import Change
from capemix.audit.drawn import Setting
from capemix.audit.facts import facts_setting
from capemix.audit.programs import Program, corners
from capemix.audit.settings import Audited, Lost, View
from capemix.data.rows import LabeledRows, pixel_names
from capemix.facts import Facts, unnamed_columns
from capemix.methods import method_named
from capemix.plan import Plan, make_plan
from capemix.queries import Relation
from capemix.sums.steps import PublicMap


def small_plan(
    epsilon: float,
    *,
    mixture: int,
    size: int,
    draws: int,
    delta: float,
    scheme: str = "central",
    form: str = "joint",
    rows_per_person: int | None = None,
    **asked: Any,
) -> Plan:
    """Two classes of ``size`` records, ``draws`` mixtures of each, one column."""
    facts = Facts(
        features=unnamed_columns(1),
        label="label",
        classes=(0, 1),
        class_sizes=(size, size),
        normalise=PublicMap(),
        rows_per_person=rows_per_person,
    )
    mixing = method_named("mixing").usual(
        scheme=scheme,
        form=form,
        samples=(draws, draws),
        mixture=mixture,
        clip=1.0,
        label_noise=False,
    )
    return make_plan(facts, mixing, scheme=scheme, form=form, delta=delta, epsilon=epsilon, **asked)


_CENTRAL: Final[dict[str, Any]] = {"scheme": "central"}
_GAUSSIAN: Final[dict[str, Any]] = {"scheme": "cape", "masks": "gaussian"}
_RING: Final[dict[str, Any]] = {"scheme": "cape", "masks": "ring"}

# name, view, epsilon, (l, n_k, T_k), delta, what else the plan asks
_SOUND: Final[tuple[tuple[str, View, float, tuple[int, int, int], float, dict[str, Any]], ...]] = (
    ("one curator", View.PUBLIC, 4, (16, 160, 100), 1e-2, _CENTRAL),
    ("many draws", View.PUBLIC, 5, (8, 64, 400), 1e-2, _CENTRAL),
    ("one draw of all", View.PUBLIC, 2, (1, 1, 1), 1e-2, _CENTRAL),
    ("few draws", View.PUBLIC, 3, (10, 100, 100), 1e-2, _CENTRAL),
    ("rarely drawn", View.PUBLIC, 4, (4, 400, 1000), 1e-3, _CENTRAL),
    ("large mixtures", View.PUBLIC, 8, (64, 512, 200), 1e-3, _CENTRAL),
    ("often drawn", View.PUBLIC, 6, (30, 60, 50), 1e-5, _CENTRAL),
    ("replaced", View.PUBLIC, 4, (16, 160, 100), 1e-2, {**_CENTRAL, "relation": "replace-one"}),
    ("relabelled", View.PUBLIC, 6, (2, 20, 10), 1e-2, {**_CENTRAL, "relation": "replace-one"}),
    ("two sites", View.PUBLIC, 4, (10, 100, 150), 1e-2, {**_RING, "sites": 2}),
    ("two sites", View.SERVER, 4, (10, 100, 150), 1e-2, {**_RING, "sites": 2}),
    ("a site missing", View.PUBLIC, 3, (8, 80, 100), 1e-2, {**_RING, "sites": 4, "dropouts": 1}),
    ("a site missing", View.SERVER, 3, (8, 80, 100), 1e-2, {**_RING, "sites": 4, "dropouts": 1}),
    ("ten sites", View.SERVER, 5, (20, 200, 100), 1e-3, {**_RING, "sites": 10, "colluding": 3}),
    (
        "all but one collude",
        View.SERVER,
        4,
        (12, 60, 50),
        1e-2,
        {**_RING, "sites": 5, "colluding": 4},
    ),
    ("Gaussian masks", View.SERVER, 4, (10, 100, 100), 1e-2, {**_GAUSSIAN, "sites": 3}),
    ("called lost", View.SERVER, 4, (12, 60, 50), 1e-2, {**_GAUSSIAN, "sites": 5, "dropouts": 1}),
    ("conventional", View.PUBLIC, 4, (10, 300, 100), 1e-2, {"scheme": "conventional", "sites": 3}),
    ("conventional", View.SERVER, 4, (10, 300, 100), 1e-2, {"scheme": "conventional", "sites": 3}),
    (
        "Algorithm 1",
        View.SERVER,
        6,
        (10, 300, 100),
        1e-2,
        {**_GAUSSIAN, "form": "algorithm1", "sites": 3},
    ),
    ("people", View.PUBLIC, 4, (16, 160, 100), 1e-2, {**_CENTRAL, "rows_per_person": 5}),
    (
        "people, three sites",
        View.SERVER,
        4,
        (10, 100, 150),
        1e-2,
        {**_RING, "sites": 3, "rows_per_person": 3},
    ),
)
_APART: Final[dict[str, dict[str, Any]]] = {
    "relabelled": {"change": Change.RELABELLED},
    "called lost": {"lost": Lost.MASKED},
}


def table_setting(name: str, epsilon: float, delta: float, **who: Any) -> Program:
    """Two classes in four columns, the fewest at which classes have spreads of their own."""
    plan = make_plan(
        Facts(
            features=tuple(f"x{column}" for column in range(4)),
            label="label",
            classes=(0, 1),
            normalise=PublicMap(),
        ),
        config_of("class-gaussian", samples=2),
        delta=delta,
        **who,
    )
    return Program.with_canary(name, plan.calibrate(epsilon), corners(plan))


def pairs_setting(
    name: str, epsilon: float, delta: float, *, rows_per_person: int | None = None, **who: Any
) -> Program:
    """Two classes in two columns, and records enough that pairs of columns are counted."""
    facts = Facts(
        features=("x0", "x1"),
        label="label",
        classes=(0, 1),
        normalise=PublicMap.of_range(-2, 2),
        rows_per_person=rows_per_person,
    )
    plan = make_plan(facts, config_of("tables", samples=2), delta=delta, **who)
    return Program.with_canary(name, plan.calibrate(epsilon), corners(plan, 150))


def image_setting(name: str, epsilon: float, delta: float, **who: Any) -> Program:
    """Two classes of the smallest images, nearly grey, with soft labels; the canary is white."""
    cube = np.array(list(itertools.product((-0.1, 0.1), repeat=4)) * 6)
    grey = np.hstack([cube, np.zeros((len(cube), 12))])
    records = LabeledRows(
        features=np.vstack([grey, grey, np.ones((1, 16))]),
        labels=np.append(np.repeat([0, 1], len(grey)), 0).astype(np.int64),
        classes=(0, 1),
        feature_names=pixel_names((4, 4)),
        image_shape=(4, 4),
    )
    plan = make_plan(
        Facts.of(records, normalise=PublicMap.of_range(-1, 1)),
        config_of("image-clusters", samples=2, soft_labels=True),
        delta=delta,
        **who,
    )
    return Program.with_canary(name, plan.calibrate(epsilon), records)


_PROGRAMS: Final[tuple[tuple[str, Callable[..., Program], float, float, dict[str, Any]], ...]] = (
    ("looks", facts_setting, 2.0, 1e-2, {}),
    ("looks, replaced", facts_setting, 4.0, 1e-2, {"relation": Relation.REPLACE_ONE}),
    ("moments", table_setting, 2.0, 1e-2, _CENTRAL),
    ("moments, three sites", table_setting, 2.0, 1e-2, {**_RING, "sites": 3}),
    ("images with a teacher", image_setting, 2.0, 1e-2, _CENTRAL),
    ("pairs of columns", pairs_setting, 2.0, 1e-2, _CENTRAL),
    ("pairs of columns, three sites", pairs_setting, 2.0, 1e-2, {**_RING, "sites": 3}),
    ("people, a table", pairs_setting, 2.0, 1e-2, {**_CENTRAL, "rows_per_person": 3}),
    (
        "people, a table, three sites",
        pairs_setting,
        2.0,
        1e-2,
        {**_RING, "sites": 3, "rows_per_person": 3},
    ),
)


def sound_settings(count: int | None = None) -> list[Audited]:
    """The first ``count`` of them, or all."""
    drawn: list[Audited] = [
        Setting(
            f"{name}, {view}",
            small_plan(epsilon, mixture=mixture, size=size, draws=draws, delta=delta, **asked),
            view,
            **_APART.get(name, {}),
        )
        for name, view, epsilon, (mixture, size, draws), delta, asked in _SOUND[:count]
    ]
    left = None if count is None else max(0, count - len(_SOUND))
    programs = [
        made(f"{name}, {View.PUBLIC}", epsilon, delta, **asked)
        for name, made, epsilon, delta, asked in _PROGRAMS[:left]
    ]
    return [*drawn, *programs]


SETTINGS: Final = len(_SOUND) + len(_PROGRAMS)
