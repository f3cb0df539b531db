"""A federation of agents in one process, as an engine: every message, and no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from capemix.agent import Agent, SiteState
from capemix.collector import Origin
from capemix.data import LabeledRows, UnlistedRows
from capemix.errors import InputError
from capemix.identity import load_identity, new_identity
from capemix.ledger import Ledger
from capemix.plan import Plan
from capemix.protocol.agreement import public_bytes
from capemix.protocol.chunks import LEAST_CHUNK
from capemix.protocol.consents import SumConsents
from capemix.protocol.coordinator import Run
from capemix.protocol.policy import Policy
from capemix.protocol.roster import Member, Roster
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import ProtocolError
from capemix.sums.query import SumQuery
from capemix.sums.statistic import Statistic

Carry = Callable[[int, bytes], bytes]
"""A message to a site, and its answer."""


def allowing(plan: Plan, **changed: Any) -> Policy:
    """A policy that this plan keeps to, and nothing more."""
    limits = {"max_epsilon": plan.epsilon, "total_epsilon": plan.epsilon}
    return Policy(**{**limits, "methods": (plan.method.kind,), **changed})


class AgentsEngine:
    """Each site's rows in an agent with a policy and a ledger of its own, in ``folder``.

    ``carry`` may stand between the coordinator and the agents; ``members`` is a folder with their
    keys, made anew if there is none. ``included`` are the sites of the last sum, and ``lost`` says
    why others are not. ``consents`` are what the sites signed of each sum.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        rows: Sequence[LabeledRows | UnlistedRows],
        *,
        seed: int | None = None,
        members: Path | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        names = ["coordinator", *(f"site{site}" for site in range(len(rows)))]
        if members is None:
            for name in names:
                new_identity(name, folder)
        keys = [load_identity((members or folder) / f"{name}.key") for name in names]
        found = [
            Member(name, public_bytes(key).hex()) for name, key in zip(names, keys, strict=True)
        ]
        self.roster = Roster(found[0], tuple(found[1:]))
        self.lineages = [Ledger.open(folder / f"{s}.db").lineage("rows") for s in range(len(rows))]
        self.agents = [
            Agent(
                SiteState(site, keys[site + 1], self.roster, policy, own, self.lineages[site], seed)
            )
            for site, own in enumerate(rows)
        ]
        self.carry: Carry = lambda site, raw: self.agents[site].answer(raw)
        self.release, self.lost, self.included = bytes(16), dict[int, str](), tuple[int, ...]()
        self.refunded = tuple[int, ...]()
        self.consents: list[SumConsents] = []
        self.refusals: list[str] = []
        self._folder, self._coordinator, self._seed, self._runs = folder, keys[0], seed, 0

    def check(self, plan: Plan) -> None:
        if plan.federation.sites != len(self.agents):
            raise InputError("sites", "must be as many as there are agents", fix="plan for them")

    def origin(self, plan: Plan) -> Origin:  # noqa: ARG002
        return Origin(seeded=self._seed is not None)

    def list_classes(self, *_asked: object) -> dict[str, float]:
        raise InputError("classes", "must be declared in a federation", fix="list them")

    def run_of(self, plan: Plan, name: str, statistic: Statistic) -> Run:
        """A run of the protocol that has not begun."""
        self._runs += 1
        spool = self._folder / f"spool{self._runs}"
        spool.mkdir()
        return Run(
            ReleaseStep(self.release, plan, name, statistic),
            self.roster,
            self._coordinator,
            self._runs.to_bytes(16, "big"),
            spool,
            chunk_bytes=LEAST_CHUNK,
        )

    def sum(self, plan: Plan, query: SumQuery) -> npt.NDArray[Any]:
        run = self.run_of(plan, query.name, query.summed)
        while run.round is not None:
            for site, raw in list(run.requests()):
                self._ask(site, raw, partial(run.receive, site))
            for site, index in list(run.wanted()):
                raw = run.chunk_request(site, index)
                self._ask(site, raw, partial(run.receive_chunk, site, index))
            try:
                run.close()
            except ProtocolError:
                self.refunded = self._given_back(run)
                raise
        self.lost, self.included = run.lost, run.included
        self.consents.append(run.consents())
        return run.release_sums()

    def _ask(self, site: int, raw: bytes, take: Callable[[bytes], None]) -> None:
        """A site that refuses has not answered."""
        try:
            take(self.carry(site, raw))
        except ProtocolError as error:
            self.refusals.append(str(error))

    def _given_back(self, run: Run) -> tuple[int, ...]:
        """Who took back what it paid for a run that failed."""
        refund = run.refund()
        if refund is None:
            return ()
        for site, raw in refund.erase_requests().items():
            self._ask(site, raw, partial(refund.take_erased, site))
        for site, raw in refund.refund_requests().items():
            self._ask(site, raw, partial(refund.take_refunded, site))
        return refund.refunded

    def declined(self, plan: Plan, name: str, statistic: Statistic) -> str | None:
        """Why the first site does not take part in a sum; None if it does."""
        run = self.run_of(plan, name, statistic)
        for site, raw in list(run.requests()):
            run.receive(site, self.carry(site, raw))
        return run.lost.get(0)
