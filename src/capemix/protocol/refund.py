"""When a run that failed has told nothing, so that its sites need not have paid for it.

A site that signs ``erased`` has overwritten every share it holds in the run, and reveals none any
more. If enough sites say so, those who did not, and those who may have lied, hold too few shares to
take any honest site's self mask off, ever. See docs/theory/proofs/server-view.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from capemix.federation import Federation, MaskKind
from capemix.protocol.roster import Roster
from capemix.protocol.wire import Context, Message, is_signed

ERASE: Final = "erase"
ERASED: Final = "erased"
REFUND: Final = "refund"


def erasures_needed(federation: Federation) -> int | None:
    """How many sites must have erased their shares; None where no number would do.

    On the complete graph all but ``threshold - 1`` holders, were ``colluding`` of them to lie. A
    sparse graph's holders are few, and could all be among those who did not sign: there every site
    must. Gaussian masks that stay on hide an upload in part only.
    """
    if federation.masks is not MaskKind.RING:
        return None
    if federation.peers is not None:
        return federation.sites
    return federation.sites - federation.share_threshold + 1 + federation.colluding


def erased_by(site: int) -> Message:
    return Message(ERASED, site, {})


def refundable(
    context: Context, roster: Roster, federation: Federation, erased: Mapping[str, Any]
) -> bool:
    """Whether these signatures, by sites' numbers, show that the run's uploads stay masked."""
    needed = erasures_needed(federation)
    if needed is None:
        return False
    good = sum(
        is_signed(context, erased_by(site), erased.get(str(site)), member.key)
        for site, member in enumerate(roster.sites)
    )
    return good >= needed
