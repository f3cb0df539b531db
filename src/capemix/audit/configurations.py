"""The settings of `capemix audit`: small plans under the sound accountant."""

from __future__ import annotations

from typing import Any, Final

from capemix.audit.canary import Change
from capemix.audit.looks import LookSetting, all_looks
from capemix.audit.rounds import RoundSetting, moments_setting, teacher_setting
from capemix.audit.settings import Lost, Setting, View
from capemix.plan import Plan, make_plan
from capemix.queries import Relation

AnySetting = Setting | LookSetting | RoundSetting


def small_plan(
    epsilon: float, *, mixture: int, size: int, draws: int, delta: float, **asked: Any
) -> Plan:
    """Two classes of ``size`` records, ``draws`` mixtures of each, one column."""
    return make_plan(
        width=1,
        class_sizes=(size, size),
        samples=(draws, draws),
        mixture=mixture,
        delta=delta,
        label_noise=False,
        **asked,
    ).calibrate(epsilon)


_CENTRAL: Final[dict[str, Any]] = {"scheme": "central"}
_GAUSSIAN: Final[dict[str, Any]] = {"scheme": "cape", "masks": "gaussian"}
_RING: Final[dict[str, Any]] = {"scheme": "cape", "masks": "ring"}

# name, view, epsilon, (l, n_k, T_k), delta, what else the plan asks
_SOUND: Final[tuple[tuple[str, View, float, tuple[int, int, int], float, dict[str, Any]], ...]] = (
    ("one curator", View.PUBLIC, 4, (16, 160, 100), 1e-2, {**_CENTRAL, "law": "rounded"}),
    ("many draws", View.PUBLIC, 5, (8, 64, 400), 1e-2, {**_CENTRAL, "law": "rounded"}),
    ("one draw of all", View.PUBLIC, 2, (1, 1, 1), 1e-2, _CENTRAL),
    ("discrete noise", View.PUBLIC, 3, (10, 100, 100), 1e-2, _CENTRAL),
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
)
_APART: Final[dict[str, dict[str, Any]]] = {
    "relabelled": {"change": Change.RELABELLED},
    "called lost": {"lost": Lost.MASKED},
}


_LOOKS: Final = (
    ("looks", 2.0, 1e-2, Relation.ADD_REMOVE),
    ("looks, replaced", 4.0, 1e-2, Relation.REPLACE_ONE),
)

_ROUNDS: Final = (
    ("moments", moments_setting, 2.0, 1e-2, _CENTRAL),
    ("moments, rounded noise", moments_setting, 2.0, 1e-2, {**_CENTRAL, "law": "rounded"}),
    ("moments, three sites", moments_setting, 2.0, 1e-2, {**_RING, "sites": 3}),
    ("images with a teacher", teacher_setting, 2.0, 1e-2, _CENTRAL),
)


def sound_settings(count: int | None = None) -> list[AnySetting]:
    """The first ``count`` of them, or all."""
    plans = [
        Setting(
            f"{name}, {view}",
            small_plan(epsilon, mixture=mixture, size=size, draws=draws, delta=delta, **asked),
            view,
            **_APART.get(name, {}),
        )
        for name, view, epsilon, (mixture, size, draws), delta, asked in _SOUND[:count]
    ]
    left = None if count is None else max(0, count - len(_SOUND))
    looks = [
        LookSetting(f"{name}, {View.PUBLIC}", all_looks(epsilon, delta, relation))
        for name, epsilon, delta, relation in _LOOKS[:left]
    ]
    left = None if left is None else max(0, left - len(_LOOKS))
    rounds = [
        made(f"{name}, {View.PUBLIC}", epsilon, delta, **who)
        for name, made, epsilon, delta, who in _ROUNDS[:left]
    ]
    return [*plans, *looks, *rounds]


SETTINGS: Final = len(_SOUND) + len(_LOOKS) + len(_ROUNDS)
