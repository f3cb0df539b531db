"""When a run that failed has told nothing, so that its sites need not have paid for it.

A site that signs ``erased`` has overwritten every share it holds in the run, and reveals none any
more. If enough sites say so, those who did not, and those who may have lied, hold too few shares to
take any honest site's self mask off, ever. See docs/theory/proofs/server-view.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from capemix.federation import Federation, MaskKind
from capemix.protocol.journal import Journal
from capemix.protocol.roster import Roster
from capemix.protocol.wire import (
    COORDINATOR,
    Context,
    Message,
    ProtocolError,
    is_signed,
    open_message,
    seal,
)

ERASE: Final = "erase"
ERASED: Final = "erased"
REFUND: Final = "refund"
REFUNDED: Final = "refunded"


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


def refunded_by(site: int) -> Message:
    return Message(REFUNDED, site, {})


class Refund:
    """The coordinator's side of it: it asks every site that it reaches to erase its shares, and
    shows those that did how many did. The two questions stay the same if it dies between them.

    ``holders`` are the sites that have not revealed any, as far as it knows.
    """

    def __init__(
        self,
        context: Context,
        identity: Ed25519PrivateKey,
        roster: Roster,
        federation: Federation,
        holders: tuple[int, ...],
    ) -> None:
        self._context, self._identity = context, identity
        self._roster, self._federation = roster, federation
        self._journal: Journal | None = None
        self._decided = False
        self.holders = holders
        self.erased: dict[str, str] = {}
        """Signatures, by sites' numbers."""
        self.refunded: tuple[int, ...] = ()
        """Sites that say that they took back what they paid."""

    @property
    def hindrance(self) -> str | None:
        """Why nobody can take back what it paid, as far as is known by now, or None."""
        needed = erasures_needed(self._federation)
        if needed is None:
            return "Gaussian masks that stay on hide an upload in part only"
        sites = len(self._roster.sites)
        if len(self.holders) < needed:
            revealed = sites - len(self.holders)
            return (
                f"{revealed} of {sites} sites have revealed shares, and {needed} must erase theirs"
            )
        signed = _good(self._context, self._roster, self.erased)
        if signed < needed:
            return f"{signed} of {sites} sites signed that they erased their shares, {needed} must"
        return None

    def go_on(self, decided: dict[str, str] | None, journal: Journal | None) -> None:
        """From where a coordinator before this one was."""
        self._decided, self._journal = decided is not None, journal
        self.erased = dict(decided or {})

    def erase_requests(self) -> dict[int, bytes]:
        """To whom it is still open; nobody, once it is decided who erased, or if too few are left
        that could."""
        needed = erasures_needed(self._federation)
        if self._decided or needed is None or len(self.holders) < needed:
            return {}
        raw = seal(self._context, self._identity, Message(ERASE, COORDINATOR, {}))
        return dict.fromkeys(self.holders, raw)

    def take_erased(self, site: int, raw: bytes) -> None:
        """A site's word that its shares are gone. What it did not sign counts as silence."""
        message = self._opened(site, raw, ERASED)
        if message is not None:
            self.erased[str(site)] = message.signature.hex()

    def refund_requests(self) -> dict[int, bytes]:
        """Who erased takes back what it paid, if enough did; otherwise nobody can."""
        if self.hindrance is not None:
            return {}
        if self._journal is not None and not self._decided:
            self._journal.note(erased=self.erased)
            self._journal.keep()
        self._decided = True
        message = Message(REFUND, COORDINATOR, {"erased": self.erased})
        raw = seal(self._context, self._identity, message)
        return {int(site): raw for site in sorted(self.erased, key=int)}

    def take_refunded(self, site: int, raw: bytes) -> None:
        if self._opened(site, raw, REFUNDED) is not None:
            self.refunded = tuple(sorted({*self.refunded, site}))

    def _opened(self, site: int, raw: bytes, round_: str) -> Message | None:
        key = self._roster.sites[site].key
        try:
            message = open_message(self._context, raw, key, round=round_, sender=site)
        except ProtocolError:
            return None
        return None if message.body else message


def refundable(
    context: Context, roster: Roster, federation: Federation, erased: Mapping[str, Any]
) -> bool:
    """Whether these signatures, by sites' numbers, show that the run's uploads stay masked."""
    needed = erasures_needed(federation)
    return needed is not None and _good(context, roster, erased) >= needed


def _good(context: Context, roster: Roster, erased: Mapping[str, Any]) -> int:
    """How many of these signatures are those of their sites."""
    return sum(
        is_signed(context, erased_by(site), erased.get(str(site)), member.key)
        for site, member in enumerate(roster.sites)
    )
