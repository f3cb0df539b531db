"""The paper's own accounting, audited: its settings, how often each is run, and what such an audit
would have caught."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from capemix.audit.configurations import small_plan
from capemix.audit.drawn import Setting
from capemix.audit.many import Task
from capemix.audit.measure import Measured
from capemix.audit.settings import Lost, View
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import Plan
from capemix.sums.steps import SiteZScore
from capemix_research.audit.power import Pair, would_catch

_GAUSSIAN: Final[dict[str, Any]] = {"scheme": "cape", "masks": "gaussian"}
_MNIST: Final[dict[str, Any]] = {
    "width": 1,
    "class_sizes": (6000,) * 10,
    "samples": 60_000,
    "accountant": "paper",
    "label_noise": False,  # labels are the same in both worlds; Theorem 1's noise is left as it is
}
_CLAIMED: Final = 10.0
SITES: Final = 10


def paper_settings() -> list[Setting]:
    """The settings of docs/theory/errata.md: N = T = 60000, K = 10, c = 1, claimed epsilon 10."""
    central = plan_mixtures(**_MNIST, mixture=4).calibrate(_CLAIMED)
    found = [
        Setting("central, Theorem 1's noise", central, reference=False),
        Setting(
            "central, the appendix's variance",
            central,
            claimed=_CLAIMED,
            noise_factor=1 / math.sqrt(SITES),
            reference=False,
        ),
    ]
    for mixture in (4, 16):
        plan = algorithm_1(mixture)
        for view, colluding in ((View.PUBLIC, 0), (View.SERVER, 0), (View.SERVER, SITES - 1)):
            name = f"Algorithm 1, l = {mixture}, {view}, {colluding} collude"
            found.append(Setting(name, plan, view, _CLAIMED, colluding=colluding, reference=False))
    z_score = algorithm_1(4, normalise=SiteZScore())
    found.append(
        Setting(
            "Algorithm 1, z-score and an outlier",
            z_score,
            View.PUBLIC,
            _CLAIMED,
            0,
            reference=False,
        )
    )
    lossy = small_plan(
        4.0, mixture=60, size=600, draws=200, delta=1e-5, **_GAUSSIAN, sites=10, dropouts=1
    )
    for lost in (Lost.MASKED, Lost.BARE):
        name = f"Gaussian masks, called lost, {lost}"
        found.append(Setting(name, lossy, View.SERVER, lost=lost, reference=False))
    return found


def algorithm_1(mixture: int, **asked: Any) -> Plan:
    """Algorithm 1 with the appendix's tau_g, which is the noise of Theorem 1."""
    return plan_mixtures(
        **_MNIST,
        mixture=mixture,
        scheme="cape",
        form="algorithm1",
        sites=SITES,
        site_noise="appendix",
        **asked,
    ).calibrate(_CLAIMED)


def paper_tasks(settings: Sequence[Setting], runs: int) -> list[Task]:
    """Most runs where they are cheap: one curator, or one honest site."""
    found = []
    for setting in settings:
        sites = setting.plan.federation.sites
        if sites == 1 or setting.honest == 1:
            found.append(Task(setting, runs, max(20, runs // 10), after=with_power))
        elif setting.lost != Lost.NO:
            found.append(Task(setting, max(20, runs // 4), max(20, runs // 10), after=with_power))
        else:
            found.append(Task(setting, max(20, runs // 40), after=with_power))
    return found


def with_power(found: Measured, setting: Setting) -> Measured:
    """The same, with what holds for the two worlds and what would have been caught."""
    pair = Pair.of(setting)
    if pair is None:
        return found
    claimed, delta = setting.epsilon, setting.delta
    caught = would_catch(pair, found.runs, claimed, delta, found.confidence)
    return replace(
        found, exact=pair.epsilon(delta), caught=None if caught is None else caught.epsilon
    )
