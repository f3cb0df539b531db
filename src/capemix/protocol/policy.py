"""What a site agrees to, decided before any row is read: from the plan and the public schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from capemix.data.cells import places
from capemix.errors import InputError
from capemix.guarantee import Status
from capemix.ledger import Account, Limit
from capemix.plan import Accountant, Plan
from capemix.protocol.demands import Demands, demands_of
from capemix.protocol.part import Part
from capemix.queries import Relation
from capemix.synthesizers.names import SynthesizerName

_FEDERATED: Final = (
    SynthesizerName.MIXING,
    SynthesizerName.MOMENTS,
    SynthesizerName.MOMENTS_TEACHER,
)
_MOST: Final = 1e9
"""No limit of a policy is larger: it would be none, or a slip."""
_MOST_SIZE: Final = 1 << 60
"""The same of what a plan may ask of the machine."""

_SIZES: Final = {
    "upload_bytes": ("an upload of {} bytes", "ask for fewer samples, columns or classes"),
    "memory_bytes": ("{} bytes of memory", "ask for fewer samples, columns or classes"),
    "work": (
        "work on {} numbers",
        "ask for fewer samples or columns, smaller mixtures, or --peers",
    ),
    "draws": (
        "{} draws that a record takes part in",
        "ask for fewer samples or smaller mixtures, or declare the true class sizes",
    ),
}
"""What a plan asks of the machine, as `Demands` has it: how it is said, and what helps."""


@dataclass(frozen=True)
class Policy:
    """Limits that a site's owner sets. The site works the guarantee out itself, from the plan.

    ``total_epsilon`` is over all runs, as the ledger composes them, at ``max_delta`` and in
    ``relation``: the lineage's limit. ``columns`` and ``classes`` list what may be used; None
    allows any. Where a schema says which column is the label, that is one of them: without one it
    is the site's to say. How a schema codes columns is judged by the site's people: its agent's
    rows are coded by the one that they have read, and it takes part by no other. Gaussian masks
    are a claim about real numbers, so they must be allowed by name. ``synthesizers``: "mixing" is
    any one sum of drawn rows, and "moments" a release in rounds, whose epsilon is that of all of
    them. The four ``largest`` are what a plan may ask of the machine, see `Demands`: they are held
    against the plan's own numbers, never against the rows.
    """

    max_epsilon: float = 1.0
    max_delta: float = 1e-5
    total_epsilon: float = 1.0
    least_sites: int = 4
    least_colluding: int = 1
    columns: tuple[str, ...] | None = None
    classes: tuple[str | int, ...] | None = None
    real_arithmetic: bool = False
    synthesizers: tuple[str, ...] = (SynthesizerName.MIXING,)
    relation: Relation = Relation.ADD_REMOVE
    largest_upload_bytes: int = 1 << 30
    largest_memory_bytes: int = 1 << 33
    largest_work: int = 10**12
    largest_draws: int = 10_000

    def __post_init__(self) -> None:
        for name in ("max_epsilon", "max_delta", "total_epsilon"):
            value = getattr(self, name)
            if not 0 < value <= _MOST:
                raise InputError(
                    f"policy {name}", "must be a positive number", value=value, fix="set a limit"
                )
        for name in ("least_sites", "least_colluding"):
            value = getattr(self, name)
            if not 0 <= value <= _MOST:
                raise InputError(
                    f"policy {name}", "must be a whole number", value=value, fix="set a limit"
                )
        for name in _SIZES:
            value = getattr(self, f"largest_{name}")
            if not 0 < value <= _MOST_SIZE:
                raise InputError(
                    f"policy largest_{name}",
                    f"must be a whole number from 1 to {_MOST_SIZE}",
                    value=value,
                    fix="set a limit",
                )
        if not set(self.synthesizers) <= set(_FEDERATED):
            raise InputError(
                "policy synthesizers",
                f"must be a list of some of {', '.join(_FEDERATED)}",
                fix="list those that may be used",
            )

    @property
    def limit(self) -> Limit:
        return Limit(self.total_epsilon, self.max_delta, self.relation)

    def exceeded(self, demands: Demands) -> str | None:
        """Which limit of the machine's a plan is above, by how much and what helps; or None."""
        for name, (says, fix) in _SIZES.items():
            asked, limit = getattr(demands, name), getattr(self, f"largest_{name}")
            if asked > limit:
                return (
                    f"the plan asks for {says.format(f'{asked:,}')}, above the policy's"
                    f" largest_{name} of {limit:,}: {fix}, or let the site raise its limit"
                )
        return None

    def declines(
        self, plan: Plan, schema: dict[str, Any], account: Account, part: Part | None = None
    ) -> str | None:
        """Why this plan is declined, or None. ``account`` says what earlier runs took. A round of a
        release is judged by the whole release, and its budget by this round and all that follow."""
        if part is None and plan.contribution is not None:
            return "a sum of moments must be proposed as a round, with its release"
        kind = SynthesizerName.MIXING if part is None else part.whole.synthesizer
        if kind not in self.synthesizers:
            return f"{kind} is not among the synthesizers that are allowed"
        if part is not None and (reason := part.misfit(plan)) is not None:
            return reason
        if plan.accountant is not Accountant.SOUND:
            return "the plan is not accounted soundly"
        demands = demands_of(plan if part is None else part.whole)
        if (reason := self.exceeded(demands)) is not None:
            return reason
        guarantee = plan.guarantee(reference=False) if part is None else part.whole.guarantee()
        allowed = {Status.GUARANTEE}
        if self.real_arithmetic:
            allowed.add(Status.REAL_ARITHMETIC)
        if guarantee.epsilon is None or guarantee.status not in allowed:
            return f"the plan gives {guarantee.status}"
        if guarantee.epsilon > self.max_epsilon:
            return f"epsilon {guarantee.epsilon:.4g} is above {self.max_epsilon:.4g} a run"
        if guarantee.delta > self.max_delta:
            return f"delta {guarantee.delta:.3g} is above {self.max_delta:.3g}"
        if account.limit.relation is Relation.ADD_REMOVE and not plan.poisson:
            return "the plan cannot be counted for added records"
        relation = account.limit.relation
        if not account.admits([plan.cost(relation)] if part is None else part.costs(relation)):
            return f"the budget of {self.total_epsilon:.4g} in all would be overspent"
        if plan.federation.sites < self.least_sites:
            return f"{plan.federation.sites} sites are fewer than {self.least_sites}"
        if plan.federation.colluding < self.least_colluding:
            return f"fewer than {self.least_colluding} colluding sites are tolerated"
        columns, table = schema.get("features"), None if part is None else part.whole.table
        if (
            not isinstance(columns, list)
            or not all(isinstance(name, str) for name in columns)
            or len(set(columns)) != len(columns)
            or (table is None and len(columns) != plan.columns_read)
            or (table is not None and tuple(columns) != table.names)
        ):
            return "the schema does not name the plan's columns"
        asked = {*columns, *(() if table is None else (table.label.name,))}
        if self.columns is not None and not asked <= set(self.columns):
            return "the plan asks for columns that are not allowed"
        if self.classes is not None and not set(places(plan.classes)) <= set(places(self.classes)):
            return "the plan asks for classes that are not allowed"
        return None
