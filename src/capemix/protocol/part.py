"""A run that is one round of a release: it is proposed with the whole, so that a site agrees to all
rounds or to none.

The whole is a `MomentsPlan`, from which a site works out itself how many rounds there are, what
each adds up, how much noise it has and what it costs. Only what a record adds (a centre, a basis, a
norm to clip at) depends on earlier rounds, and it can be anything that adds no more than was said.
No plan has more than `MOST_COLUMNS` and `MOST_CLASSES`, and an image no more than `MOST_EXACT`
pixels, so that a round's sums are 121 MB at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from capemix.accounting.cost import Cost
from capemix.errors import InputError
from capemix.plan import MomentsPlan, Plan, moments_from_json
from capemix.plan.rounds import Rounds
from capemix.plan.shares import LABELS
from capemix.prepare.head import Head
from capemix.protocol.wire import MAX_MESSAGE, ProtocolError, bytes_of
from capemix.queries import Relation
from capemix.synthesizers.tables import map_of

_REST: Final = 1 << 20
"""Room for what is not an array in a proposal."""


def fits_in_messages(plan: MomentsPlan) -> bool:
    """Whether a proposal has room for the largest arrays that a round is taken about: of images,
    directions and the classes' centres. If not, a release would break off after
    rounds that were paid for."""
    if plan.images is None:
        return True
    columns = plan.width + plan.images.upright
    directions = plan.most_rank + 1 + max(plan.images.textured or 0, plan.images.smooth)
    numbers = columns * (directions + len(plan.classes))
    return numbers * 8 * 4 // 3 + _REST <= MAX_MESSAGE  # eight bytes each, in base64


@dataclass(frozen=True)
class Part:
    """``release`` names the release in the proposals of all its rounds; ``name`` is this round's.
    ``whole`` has the rank as far as it is chosen: once, after the class sizes."""

    release: bytes
    whole: MomentsPlan
    name: str

    def as_json(self) -> dict[str, Any]:
        return {
            "release": self.release.hex(),
            "whole": self.whole.as_json(),
            "round": self.name,
        }

    @classmethod
    def from_json(cls, found: Any) -> Part:
        if not isinstance(found, dict) or set(found) != {"release", "whole", "round"}:
            raise ProtocolError("a round's proposal must name its release, the whole and the round")
        whole = moments_from_json(found["whole"])
        part = cls(bytes_of(found, "release", 16), whole, found["round"])
        if whole.multiplier is None or part.name not in part.names:
            raise ProtocolError("a round's proposal must be of a calibrated release that has it")
        return part

    @property
    def _rounds(self) -> Rounds:
        """Those to come have the same shares whichever rank is chosen, up to the choice."""
        return self.whole.chosen_rounds()

    @property
    def names(self) -> tuple[str, ...]:
        """All rounds, in order."""
        return self._rounds.names

    @property
    def before(self) -> tuple[str, ...]:
        return self.names[: self.names.index(self.name)]

    def costs(self, relation: Relation) -> list[Cost]:
        """Of this round and of each that follows."""
        plans = self._rounds.plans
        return [plans[name].cost(relation) for name in self.names[len(self.before) :]]

    def misfit(self, plan: Plan) -> str | None:
        """Why this plan is not this round's, or None. Looks at no row."""
        whole, asked = self.whole, plan.contribution
        if asked is None:
            return "the plan is not a sum of moments"
        if not fits_in_messages(whole):
            return "the release has rounds that no message has room for"
        if whole.table is not None and whole.normalise != map_of(whole.table):
            return "the release maps columns in another way than its schema says"
        frame = asked.frame
        if frame.columns != whole.width or frame.directions > frame.seen:
            return "the round looks in more directions than there are columns"
        upright = whole.images.shape if whole.images and whole.images.upright else None
        if frame.upright != upright:
            return "the round looks at rows in another way than the release"
        if frame.points is not None and frame.points.shape[1] != whole.clusters:
            return "the round has other points than the release has clusters"
        if isinstance(asked, Head) != self.name.startswith(LABELS) or (
            isinstance(asked, Head) and (whole.images is None or asked.shape != whole.images.shape)
        ):
            return "the round asks for another kind of sum than the release says"
        if whole.rank is None and self.name not in whole.before_rank:
            return f"the round {self.name} needs the rank to be chosen"
        if asked.frame.normalise != whole.normalise:
            return "the round normalises rows in another way than the release"
        try:
            said = self._rounds.plan(self.name, classes=whole.classes, contribution=asked)
        except InputError:
            return "the round adds up something else than the release says"
        if said.as_json() != plan.as_json():
            return "the round is not planned as the release says"
        return None

    def follows(self, known: Part | None) -> str | None:
        """Why it is not this round's turn, or None; ``known`` is the last round of this release
        that the site took part in."""
        if known is None:
            return "this site was not in the release's earlier rounds" if self.before else None
        if replace(known.whole, rank=None, clusters=None) != replace(
            self.whole, rank=None, clusters=None
        ):
            return "this is not the release that was agreed to"
        if known.whole.rank is not None and known.whole != self.whole:
            return "the release's rank was chosen already"
        if self.before != (*known.before, known.name):
            return "a release's rounds are made once each, in their order"
        return None
