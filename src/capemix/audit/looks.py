"""The looks, audited: `Looks.take` as it is paid for, and an observer who sees every noisy sum.

There is no other record, so that nothing but noise surrounds the canary. Its value is larger than
any range that is looked for, so that it lies at the end of whichever is found and adds to every
look as much as a record may.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.audit import sums
from capemix.audit.measure import Scores
from capemix.audit.settings import View
from capemix.data.rows import LabeledRows
from capemix.federation import Federation, Scheme
from capemix.looks import EXPONENTS, Looks, Seen, plan_looks
from capemix.queries import Relation
from capemix.randomness.source import Source
from capemix.sums.share import prepare_to_mix

Real = npt.NDArray[np.float64]

BEYOND: Final = 2.0 ** (EXPONENTS[-1] + 2)
"""Outside of every range that can be found."""


def all_looks(epsilon: float, delta: float, relation: Relation = Relation.ADD_REMOVE) -> Looks:
    """One curator's four looks at one column and two classes."""
    central = Federation(Scheme.CENTRAL)
    return plan_looks(1, 2, central, columns=True, epsilon=epsilon, delta=delta, relation=relation)


@dataclass(frozen=True)
class LookSetting:
    """Looks, and the epsilon that is claimed for them together."""

    name: str
    looks: Looks
    view: View = View.PUBLIC

    @cached_property
    def epsilon(self) -> float:
        found = self.looks.guarantee(seeded=False).epsilon
        if found is None:
            raise ValueError(f"{self.name}: the looks claim nothing")
        return found

    @property
    def delta(self) -> float:
        return self.looks.rounds.delta

    @property
    def worlds(self) -> tuple[LabeledRows, LabeledRows]:
        """Without the canary and with it; replaced, with one of the other class and end."""
        replaced = self.looks.rounds.relation is Relation.REPLACE_ONE
        return (_rows([-BEYOND], 1) if replaced else _rows([], 0)), _rows([BEYOND], 0)

    def describe(self) -> dict[str, object]:
        plan = next(iter(self.looks.plans.values()))
        return sums.describe_sums(self.name, self.view, plan, len(self.looks.plans))


def score_looks(setting: LookSetting, runs: int, *, source: Source | None = None) -> Scores:
    """Log ratios of ``runs`` runs without the canary and of as many with it."""
    worlds = setting.worlds

    def score(world: int, source: Source) -> list[float]:
        _, seen = setting.looks.carried_out([worlds[world]], source)
        return [sum(log_ratio(setting.looks, look, *worlds) for look in seen)]

    return sums.score_sums(("looks",), score, runs, source)


def log_ratio(looks: Looks, seen: Seen, out: LabeledRows, in_: LabeledRows) -> float:
    """Of one look, given what was found before."""
    plan = looks.plans[seen.name]
    unit = plan.mixing.divisor * plan.query.lattice_scale

    def total(rows: LabeledRows) -> Real:
        if not len(rows):
            return np.zeros(plan.mixing.width)
        added = seen.adds(rows).reshape(len(rows), plan.mixing.width)
        prepared = prepare_to_mix(plan, added, np.zeros(len(rows), dtype=np.int64))
        return np.asarray(prepared.by_class[0].sum(axis=0, dtype=np.float64))

    return sums.log_ratio(seen.noisy * unit, total(out), total(in_), plan.site_deviation)


def _rows(values: list[float], label: int) -> LabeledRows:
    return LabeledRows(
        features=np.array(values, dtype=np.float64).reshape(-1, 1),
        labels=np.full(len(values), label, dtype=np.int64),
        classes=(0, 1),
        feature_names=("x",),
    )
