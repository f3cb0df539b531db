"""What sites signed of a release: that they take part in its plan, sum by sum. It lies beside the
release, so that whoever has the sites' public keys can check it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from capemix import documents
from capemix.plan import Plan
from capemix.protocol.roster import Roster
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import Context, ProtocolError, digest, open_text

CONSENTS: Final = "consents.json"


@dataclass(frozen=True)
class SumConsents:
    """Of one sum's run: the digest of what was proposed, and the answer of each site whose share
    is in the sum, as it was signed. ``proposed`` is the whole of it, of a release's first sum:
    later ones bring arrays that were made of earlier sums."""

    sum: str
    run: str
    proposal: str
    sites: dict[str, str]
    proposed: dict[str, Any] | None = None


@dataclass(frozen=True)
class Consents:
    """Of every sum of a release, in order, by the members of a roster."""

    roster: Roster
    sums: tuple[SumConsents, ...]
    format: Literal["capemix-consents/1"] = "capemix-consents/1"

    def text(self) -> str:
        return json.dumps(documents.as_json(self), indent=1) + "\n"

    def faults(self, plan: Plan, *, seeded: bool) -> Iterator[str]:
        """What is wrong with them, as those of this plan, which was carried out."""
        members, federation = self.roster.sites, plan.federation
        if len(members) != federation.sites:
            yield f"the roster has {len(members)} sites, and the plan {federation.sites}"
            return
        if tuple(each.sum for each in self.sums) != plan.names:
            yield "they are of other sums than the plan's"
            return
        yield from self._first(plan)
        for each in self.sums:
            if len(each.sites) < federation.sites - federation.dropouts:
                yield f"{each.sum}: {len(each.sites)} of {federation.sites} sites are too few"
            for site, said in each.sites.items():
                fault = self._fault(each, site, said, seeded)
                if fault is not None:
                    yield f"{each.sum}: {fault}"

    def _first(self, plan: Plan) -> Iterator[str]:
        """Whether the sites were asked about this plan."""
        first = self.sums[0]
        if first.proposed is None or digest(first.proposed).hex() != first.proposal:
            yield "what was proposed to the sites is not what they signed"
            return
        try:
            step = ReleaseStep.from_json(first.proposed)
        except ProtocolError as error:
            yield str(error)
            return
        if step.name != first.sum or not step.becomes(plan):
            yield "the sites took part in another plan than the manifest's"

    def _fault(self, of: SumConsents, site: str, said: str, seeded: bool) -> str | None:
        try:
            number = int(site)
            if site != str(number) or not 0 <= number < len(self.roster.sites):
                return f"there is no site {site}"
            run, proposal = bytes.fromhex(of.run), bytes.fromhex(of.proposal)
            context = Context(run, self.roster.digest(), proposal)
            key = self.roster.sites[number].key
            body = open_text(context, said, key, round="plan", sender=number).body
        except (ValueError, ProtocolError):
            return f"site {site} did not sign that it takes part"
        if body.get("accept") is not True:
            return f"site {site} declined"
        if body.get("seeded") is not False and not seeded:
            return f"site {site} says that its noise is from a test seed"
        return None
