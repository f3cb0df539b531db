"""How a site answers: in order, only the coordinator, and to one request of a round only."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from capemix.errors import InputError
from capemix.protocol.agreement import public_bytes
from capemix.protocol.refund import ERASE, REFUND
from capemix.protocol.roster import Roster
from capemix.protocol.wire import (
    COORDINATOR,
    Context,
    Message,
    ProtocolError,
    bytes_of,
    digest,
    open_message,
    parse,
    seal,
)
from capemix.randomness.source import Process

ROUNDS: Final = ("plan", "keys", "shares", "check", "open", "upload", "agree", "unmask")
"""In their order. The round "open" is for a site about which another one complained, and is left
out otherwise."""


class Answering(ABC):
    """The same request gets the same reply again. What the coordinator did not sign is refused and
    changes nothing; so is another request of a round that was answered. If the coordinator signed
    what is wrong, this site leaves the run, and will answer nothing further.
    """

    def __init__(self, number: int, identity: Ed25519PrivateKey, roster: Roster) -> None:
        if public_bytes(identity) != roster.sites[number].key:
            raise InputError(
                "identity", "is not the roster's for this site", value=number, fix="use its own key"
            )
        self._born = Process.current()
        self._number, self._identity, self._roster = number, identity, roster
        self._answered = 0
        self._broken = False
        self._replies: dict[str, tuple[bytes, bytes]] = {}  # the digest of a request, and the reply
        self._said: dict[str, dict[str, Any]] = {}
        self._context: Context | None = None
        self.proposed = False
        """Whether the coordinator itself proposed this run, as its signature shows."""

    def answer(self, raw: bytes) -> bytes:
        """The reply to the coordinator's request of the next round, or once more to an earlier one.

        Refused after a fork: two copies of a site could be told of different sets of sites, and
        reveal both secrets of one.
        """
        self._born.check("this site's part in the run")
        request = parse(raw)
        asked = hashlib.sha256(raw).digest()
        before = self._replies.get(request.round)
        if before is not None:
            if before[0] != asked:
                raise ProtocolError(f"this site has answered another {request.round} message")
            return before[1]
        if request.round in (ERASE, REFUND):
            said = self._after_failure(request.round, self._signed(request.round, raw))
            reply = seal(self._run, self._identity, said)
        else:
            reply = self._next(request, raw)
        self._replies[request.round] = asked, reply
        return reply

    def _next(self, request: Message, raw: bytes) -> bytes:
        """The reply to a request of the next round."""
        if self._broken or self._answered == len(ROUNDS):
            raise ProtocolError("this site has left the run")
        expected = ROUNDS[self._answered]
        if request.round != expected and (expected, request.round) != ("open", "upload"):
            raise ProtocolError(f"expected a {expected} message, got another round's")
        if request.round == "plan":
            self._context = self._context_of(request, raw)
        body = self._signed(request.round, raw)
        self.proposed = True
        self._broken = True  # until the reply is made: a failed round is never tried again
        try:
            said = Message(request.round, self._number, self._said_to(request.round, body))
            self._said[request.round] = said.body
            reply = seal(self._run, self._identity, said)
            self._answered = ROUNDS.index(request.round) + 1
            self._broken = False
            return reply
        finally:
            if self._broken or self._answered == len(ROUNDS):
                self._leave()

    @property
    def _run(self) -> Context:
        """What this run's messages are bound to."""
        if self._context is None:
            raise ProtocolError("this site knows of no such run")
        return self._context

    def _signed(self, round_: str, raw: bytes) -> dict[str, Any]:
        """What the coordinator says. Whoever else sends something has changed nothing."""
        key = self._roster.coordinator.key
        return open_message(self._run, raw, key, round=round_, sender=COORDINATOR).body

    def _context_of(self, request: Message, raw: bytes) -> Context:
        """The run that a proposal is of, if the coordinator signed it."""
        run = bytes_of(request.body, "run", 16)
        if bytes_of(request.body, "roster", 32) != self._roster.digest():
            raise ProtocolError("the coordinator's roster is not the one this site verified")
        context = Context(run, self._roster.digest(), digest(request.body.get("step")))
        open_message(context, raw, self._roster.coordinator.key, round="plan", sender=COORDINATOR)
        return context

    @abstractmethod
    def _said_to(self, round_: str, body: dict[str, Any]) -> dict[str, Any]:
        """What this site says to a request of the next round."""

    @abstractmethod
    def _after_failure(self, asked: str, body: dict[str, Any]) -> Message:
        """What it says once the run has failed."""

    @abstractmethod
    def _leave(self) -> None:
        """Overwrite what could unmask anything: no further round will be answered."""
