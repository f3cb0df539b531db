"""What a site agrees to, decided before any row is read: from the plan and the public schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from capemix.data.cells import places
from capemix.errors import InputError
from capemix.guarantee import Status
from capemix.ledger import Account, Limit
from capemix.methods import PAPERS, methods
from capemix.plan import Plan
from capemix.protocol.demands import Demands, demands_of
from capemix.protocol.step import ReleaseStep
from capemix.queries import Relation

_MOST: Final = 1e9
"""No limit of a policy is larger: it would be none, or a slip."""
MOST_SIZE: Final = 1 << 60
"""The same of what a plan may ask of the machine."""

_SIZES: Final = {
    "upload_bytes": ("an upload of {} bytes", "ask for fewer samples, columns or classes"),
    "memory_bytes": ("{} bytes of memory", "ask for fewer samples, columns or classes"),
    "work": (
        "work on {} numbers",
        "ask for fewer samples or columns, smaller mixtures, or a peer graph",
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
    are a claim about real numbers, so they must be allowed by name. ``methods`` are those that may
    be used; a release's epsilon is that of all of its sums. The four ``largest`` are what a plan
    may ask of the machine, see `Demands`: they are held against the plan's own numbers, never
    against the rows. Where ``plans`` is "ask", a plan that is within all of these limits also waits
    until a person has approved it.
    """

    max_epsilon: float = 1.0
    max_delta: float = 1e-5
    total_epsilon: float = 1.0
    least_sites: int = 4
    least_colluding: int = 1
    columns: tuple[str, ...] | None = None
    classes: tuple[str | int, ...] | None = None
    real_arithmetic: bool = False
    methods: tuple[str, ...] = (PAPERS,)
    relation: Relation = Relation.ADD_REMOVE
    largest_upload_bytes: int = 1 << 30
    largest_memory_bytes: int = 1 << 33
    largest_work: int = 10**12
    largest_draws: int = 10_000
    plans: Literal["within limits", "ask"] = "within limits"

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
            if not 0 < value <= MOST_SIZE:
                raise InputError(
                    f"policy largest_{name}",
                    f"must be a whole number from 1 to {MOST_SIZE}",
                    value=value,
                    fix="set a limit",
                )
        if not set(self.methods) <= set(methods()):
            raise InputError(
                "policy methods",
                f"must be a list of some of {', '.join(methods())}",
                fix="list those that may be used",
            )

    @property
    def limit(self) -> Limit:
        return Limit(self.total_epsilon, self.max_delta, self.relation)

    def exceeded(self, demands: Demands) -> Iterator[str]:
        """Which limits of the machine's a plan is above, by how much and what helps."""
        for name, (says, fix) in _SIZES.items():
            asked, limit = getattr(demands, name), getattr(self, f"largest_{name}")
            if asked > limit:
                yield (
                    f"the plan asks for {says.format(f'{asked:,}')}, above the policy's"
                    f" largest_{name} of {limit:,}: {fix}, or let the site raise its limit"
                )

    def declines(self, step: ReleaseStep, account: Account) -> str | None:
        """Why this sum is declined, or None. ``account`` says what earlier runs took. A sum is
        judged by the whole release, and its budget by this sum and all that follow."""
        return next(self.objections(step, account), None)

    def objections(self, step: ReleaseStep, account: Account) -> Iterator[str]:
        """All that is against this sum, each naming the limit that it is above."""
        plan, facts = step.plan, step.plan.facts
        if plan.method.kind not in self.methods:
            yield f"{plan.method.kind} is not among the methods that are allowed"
        if not plan.countable:
            yield "the plan is not accounted soundly"
            return  # no ledger can say what it costs
        yield from self.exceeded(demands_of(plan))
        yield from self._promised(plan)
        if plan.guarantee().epsilon is not None and not step.fits(account):
            yield self._overspent(account)
        if plan.federation.sites < self.least_sites:
            yield f"{plan.federation.sites} sites are fewer than {self.least_sites}"
        if plan.federation.colluding < self.least_colluding:
            yield f"fewer than {self.least_colluding} colluding sites are tolerated"
        if self.columns is not None and not set(facts.columns_read) <= set(self.columns):
            yield "the plan asks for columns that are not allowed"
        listed = places(self.classes or ())
        if self.classes is not None and not set(places(facts.listed)) <= set(listed):
            yield "the plan asks for classes that are not allowed"

    def _promised(self, plan: Plan) -> Iterator[str]:
        """What is against the guarantee that this plan has."""
        guarantee = plan.guarantee()
        allowed = {Status.GUARANTEE}
        if self.real_arithmetic:
            allowed.add(Status.REAL_ARITHMETIC)
        if guarantee.epsilon is None or guarantee.status not in allowed:
            yield f"the plan gives {guarantee.status}"
            return
        if plan.epsilon is None or guarantee.epsilon > plan.epsilon * (1 + 1e-9):
            yield f"epsilon {guarantee.epsilon:.4g} is above what the plan says"
        judged = guarantee.epsilon
        if plan.relation is not self.relation:  # the site's own limits are in its own relation
            judged = plan.epsilon_in(self.relation)
        if judged > self.max_epsilon:
            yield f"epsilon {judged:.4g} is above {self.max_epsilon:.4g} a run"
        if guarantee.delta > self.max_delta:
            yield f"delta {guarantee.delta:.3g} is above {self.max_delta:.3g}"

    def _overspent(self, account: Account) -> str:
        """Says which limit it was: the policy's, or a lower one of the ledger."""
        limit = account.limit
        if limit.epsilon < self.total_epsilon or limit.delta < self.max_delta:
            return (
                f"the ledger's limit of {limit.epsilon:.4g} in all, at delta {limit.delta:.3g},"
                f" would be overspent; the policy's total_epsilon of {self.total_epsilon:.4g} does"
                " not raise it, only capemix ledger set-limit does"
            )
        return (
            f"the budget of {self.total_epsilon:.4g} in all would be overspent: it is the policy's"
            " total_epsilon"
        )
