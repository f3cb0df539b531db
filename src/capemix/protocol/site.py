"""A site in a run: it answers each round once, and says nothing that depends on its rows except
the noised and masked upload.

Structure after Bonawitz et al. 2017; no input or output happens here. Whatever is wrong with a
message ends the run for this site: it raises, and will answer nothing further. The one thing that
may be asked for again is a chunk of the upload, once that was made: it is the same bytes each time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from capemix.errors import InputError
from capemix.protocol import shamir
from capemix.protocol.agreement import (
    box_key,
    pair_key,
    peers_among,
    public_bytes,
    setting_of,
)
from capemix.protocol.chunks import LEAST_CHUNK, MOST_CHUNK, Cut
from capemix.protocol.roster import Roster
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import (
    COORDINATOR,
    Context,
    Message,
    ProtocolError,
    bytes_of,
    digest,
    open_message,
    open_text,
    parse,
    seal,
    sites_of,
)
from capemix.randomness.source import Process, SeededSource, Source, erase
from capemix.sums.query import SumQuery
from capemix.sums.share import SiteShare, share_bytes
from capemix.zerosum.masks import SiteKeys

SEALED_BYTES: Final = 2 * shamir.SHARE_BYTES + 16
"""Two shares for a peer, encrypted, with the tag."""

ROUNDS: Final = ("plan", "keys", "shares", "upload", "agree", "unmask")

Consent = Callable[[ReleaseStep], str | None]
"""The site's policy: why a sum, with the plan of its release, is declined, or None. Never sees
rows."""

MakeShare = Callable[[SumQuery, SiteKeys], SiteShare]
"""The site's part of the sum, masked with these keys: the one thing that reads rows."""


class Site:
    """One site's side of one run."""

    def __init__(
        self,
        number: int,
        identity: Ed25519PrivateKey,
        roster: Roster,
        source: Source,
        consent: Consent,
        make_share: MakeShare,
    ) -> None:
        if public_bytes(identity) != roster.sites[number].key:
            raise InputError(
                "identity", "is not the roster's for this site", value=number, fix="use its own key"
            )
        self._born = Process.current()
        self._number = number
        self._identity = identity
        self._roster = roster
        self._source = source
        self._consent = consent
        self._make_share = make_share
        self._answered = 0
        self._broken = False
        self._said: dict[str, dict[str, Any]] = {}
        self.proposed = False
        """Whether the coordinator itself proposed this run, as its signature shows."""
        self._uploaded: memoryview | None = None
        self._own_mask = self._mask_secret = bytearray()
        self._box: X25519PrivateKey | None = None
        self._held: dict[int, tuple[bytearray, bytearray]] = {}

    def answer(self, raw: bytes) -> bytes:
        """The reply to the coordinator's request of the next round.

        Refused after a fork: two copies of a site could be told of different sets of sites, and
        reveal both secrets of one.
        """
        self._born.check("this site's part in the run")
        if self._broken or self._answered == len(ROUNDS):
            raise ProtocolError("this site has left the run")
        self._broken = True  # until the reply is made: a failed round is never tried again
        try:
            reply = self._answer(ROUNDS[self._answered], raw)
            self._answered += 1
            self._broken = False
            return reply
        finally:
            if self._broken or self._answered == len(ROUNDS):
                self.free_upload()
                self._erase_secrets()
                self._erase_shares()

    def _answer(self, round_: str, raw: bytes) -> bytes:
        request = parse(raw)
        if request.round != round_:
            raise ProtocolError(f"expected a {round_} message, got another round's")
        if round_ == "plan":
            self._take_proposal(request)
        opened = open_message(
            self._context, raw, self._roster.coordinator.key, round=round_, sender=COORDINATOR
        )
        self.proposed = True
        reply: Message = getattr(self, f"_{round_}")(opened.body)
        self._said[round_] = reply.body
        return seal(self._context, self._identity, reply)

    def chunk(self, raw: bytes) -> bytes:
        """A chunk of the upload that was made. Asking changes nothing, and may be repeated."""
        if self._uploaded is None:
            raise ProtocolError("this site has no upload to send a chunk of")
        request = open_message(
            self._context, raw, self._roster.coordinator.key, round="chunk", sender=COORDINATOR
        )
        index = request.body.get("index")
        if type(index) is not int or not 0 <= index < self._cut.chunks:
            raise ProtocolError(
                f"the upload has chunks 0 to {self._cut.chunks - 1}, and no chunk {index}"
            )
        return bytes(self._uploaded[self._cut.span(index)])

    def free_upload(self) -> None:
        """Free the upload's memory: no chunk can be had any more. The rounds go on."""
        self._uploaded = None

    def _erase_secrets(self) -> None:
        """Whatever could take the masks off an upload. Others' shares of it are all that is left,
        and each holder gives up one of the two at most."""
        self._source.erase()
        erase(self._own_mask, self._mask_secret)
        self._box = None

    def _erase_shares(self) -> None:
        for shares in self._held.values():
            erase(*shares)

    # -- round 0: the plan -----------------------------------------------------------------------

    def _take_proposal(self, request: Message) -> None:
        run = bytes_of(request.body, "run", 16)
        if bytes_of(request.body, "roster", 32) != self._roster.digest():
            raise ProtocolError("the coordinator's roster is not the one this site verified")
        self._context = Context(run, self._roster.digest(), digest(request.body.get("step")))

    def _plan(self, body: dict[str, Any]) -> Message:
        step = ReleaseStep.from_json(body.get("step"))
        sites, federation = len(self._roster.sites), step.plan.federation
        if federation.sites != sites or not federation.masked:
            raise ProtocolError(f"the plan must be a cape plan for {sites} sites")
        misfit = step.misfit()
        if misfit is not None:
            raise ProtocolError(misfit)
        self._query = step.query
        reason = self._consent(step)
        self._nonce = self._source.key("nonce")
        return self._reply(
            accept=reason is None,
            seeded=isinstance(self._source, SeededSource),
            reason=reason,
            commit=hashlib.sha256(self._nonce).hexdigest(),
        )

    # -- round 1: keys ---------------------------------------------------------------------------

    def _keys(self, body: dict[str, Any]) -> Message:
        accepts = self._from_sites(body, "accepts", "plan")
        if not all(message.body.get("accept") is True for message in accepts.values()):
            raise ProtocolError("a site that declined is listed as taking part")
        if not isinstance(self._source, SeededSource):
            for site, message in accepts.items():
                if message.body.get("seeded") is not False:
                    raise ProtocolError(f"site {site} draws from a test seed; its noise hides none")
        self._commits = {s: bytes_of(m.body, "commit", 32) for s, m in accepts.items()}
        self._box = X25519PrivateKey.from_private_bytes(self._source.key("box"))
        self._mask_secret = self._source.key("mask")
        mask = X25519PrivateKey.from_private_bytes(self._mask_secret)
        return self._reply(
            box=public_bytes(self._box).hex(),
            mask=public_bytes(mask).hex(),
            nonce=self._nonce.hex(),
        )

    # -- round 2: shares of what unmasks ---------------------------------------------------------

    def _shares(self, body: dict[str, Any]) -> Message:
        keys = self._from_sites(body, "keys", "keys")
        if not set(keys) <= set(self._commits):
            raise ProtocolError("a site that did not accept has keys")
        for site, message in keys.items():
            nonce = bytes_of(message.body, "nonce", 32)
            if not hmac.compare_digest(hashlib.sha256(nonce).digest(), self._commits[site]):
                raise ProtocolError(f"the nonce of site {site} is not the one it committed to")
        self._boxes = {s: bytes_of(m.body, "box", 32) for s, m in keys.items()}
        self._masks = {s: bytes_of(m.body, "mask", 32) for s, m in keys.items()}
        self._keys_shown = {s: m.body for s, m in keys.items()}
        if len(set(self._boxes.values()) | set(self._masks.values())) != 2 * len(keys):
            raise ProtocolError("two sites have one key")
        nonces = {s: bytes_of(m.body, "nonce", 32) for s, m in keys.items()}
        self._peers = peers_among(self._query.federation, nonces)[self._number]
        self._own_mask = self._source.key("own mask")
        holders = sorted((*self._peers, self._number))
        threshold = self._query.federation.share_threshold
        own, pair = (
            shamir.split(secret, holders, threshold, self._source.stream("shamir", name))
            for name, secret in (("own", self._own_mask), ("pair", self._mask_secret))
        )
        self._held = {self._number: (own.pop(self._number), pair.pop(self._number))}
        reply = self._reply(
            commit=hashlib.sha256(self._own_mask).hexdigest(),
            shares={
                str(site): self._seal_share(site, own[site] + pair[site]).hex() for site in own
            },
        )
        erase(*own.values(), *pair.values())
        self._source.erase()  # nothing more is drawn from it
        return reply

    def _aead(self, peer: int) -> ChaCha20Poly1305:
        if self._box is None:
            raise ProtocolError("this site's key was used and erased")
        key = box_key(self._context, self._box, self._boxes[peer], self._number, peer)
        try:
            return ChaCha20Poly1305(key)
        finally:
            erase(key)

    def _seal_share(self, peer: int, shares: bytearray) -> bytes:
        # The key serves one run and one pair; the two directions have nonces of their own.
        return self._aead(peer).encrypt(self._number.to_bytes(12, "big"), shares, None)

    def _open_share(self, peer: int, sealed: bytes) -> tuple[bytearray, bytearray]:
        try:
            shares = bytearray(self._aead(peer).decrypt(peer.to_bytes(12, "big"), sealed, None))
        except InvalidTag:
            raise ProtocolError(f"the share from site {peer} was altered on its way") from None
        if len(shares) != 2 * shamir.SHARE_BYTES:
            raise ProtocolError(f"the share from site {peer} has another length")
        return shares[: shamir.SHARE_BYTES], shares[shamir.SHARE_BYTES :]

    # -- round 3: the upload ---------------------------------------------------------------------

    def _upload(self, body: dict[str, Any]) -> Message:
        self._cut = self._cut_asked_for(body)
        self._members = sites_of(body, "members", len(self._roster.sites))
        if not set(self._members) <= set(self._boxes) or self._number not in self._members:
            raise ProtocolError("the members are not those whose keys were shown")
        self._enough(len(self._members))
        sealed = body.get("shares")
        peers = [s for s in self._peers if s in self._members]
        if not isinstance(sealed, dict) or set(sealed) != {str(peer) for peer in peers}:
            raise ProtocolError("an upload needs the shares of every peer")
        for peer in peers:
            try:
                self._held[peer] = self._open_share(peer, bytes.fromhex(sealed[str(peer)]))
            except (ValueError, TypeError):
                raise ProtocolError("a share is not hexadecimal") from None
        mask = X25519PrivateKey.from_private_bytes(self._mask_secret)
        keys = SiteKeys(
            site=self._number,
            own=bytearray(self._own_mask),
            pair={
                peer: pair_key(self._context, mask, self._masks[peer], self._number, peer)
                for peer in peers
            },
        )
        # Signed, for whoever is to take this site's self mask off: see _agree.
        self._setting = setting_of(self._keys_shown, self._members)
        setting = Message("setting", self._number, {"setting": self._setting})
        try:
            share = self._make_share(self._query, keys)
        finally:
            keys.erase()
            self._erase_secrets()
        self._uploaded = share.values.data.cast("B")
        return self._reply(
            shape=list(share.values.shape),
            dtype=share.values.dtype.str,
            chunks=[
                hashlib.sha256(self._uploaded[self._cut.span(index)]).hexdigest()
                for index in range(self._cut.chunks)
            ],
            setting=seal(self._context, self._identity, setting).decode(),
        )

    def _cut_asked_for(self, body: dict[str, Any]) -> Cut:
        """Checked before a row is read or a budget charged."""
        chunk_bytes = body.get("chunk_bytes")
        if type(chunk_bytes) is int:
            cut = Cut(share_bytes(self._query), chunk_bytes)
            if cut.allowed:
                return cut
        raise ProtocolError(
            f"chunk_bytes must be between {LEAST_CHUNK} and {MOST_CHUNK}, and not so small that an"
            f" upload has too many chunks (got {chunk_bytes}); the coordinator must set another"
        )

    # -- round 4: agree on who is in -------------------------------------------------------------

    def _agree(self, body: dict[str, Any]) -> Message:
        settings = self._messages(body, "included", "setting")
        included = tuple(sorted(settings))
        if not set(included) <= set(self._members):
            raise ProtocolError("a site is called included that shared nothing")
        # A site that was told of other members has no mask against those left out: the missing
        # ones' pair keys would then bare a sum over fewer honest sites than the plan promises.
        for site, message in settings.items():
            if message.body != {"setting": self._setting}:
                raise ProtocolError(f"site {site} masked its upload among other keys or members")
        self._enough(len(included))
        self._included = included
        return self._reply(included=list(included), setting=self._setting)

    # -- round 5: reveal, for each site one of its two secrets ------------------------------------

    def _unmask(self, body: dict[str, Any]) -> Message:
        agreed = self._messages(body, "agreed", "agree")
        same = [m for m in agreed.values() if m.body == self._said["agree"]]
        if len(same) < self._query.federation.agreement:
            raise ProtocolError(
                f"only {len(same)} sites signed the same included set;"
                f" {self._query.federation.agreement} are needed"
            )
        own, pair = {}, {}
        for site, (of_own, of_pair) in self._held.items():
            if site in self._included:
                own[str(site)] = of_own.hex()
            else:
                pair[str(site)] = of_pair.hex()
        return self._reply(own=own, pair=pair)

    # -- what the rounds share -------------------------------------------------------------------

    def _reply(self, **body: Any) -> Message:
        return Message(ROUNDS[self._answered], self._number, body)

    def _enough(self, count: int) -> None:
        federation = self._query.federation
        if count < federation.sites - federation.dropouts:
            raise ProtocolError(
                f"{count} of {federation.sites} sites are left;"
                f" the plan allows {federation.dropouts} to be missing"
            )

    def _messages(self, body: dict[str, Any], name: str, round_: str) -> dict[int, Message]:
        """Other sites' signed messages of an earlier round, as the coordinator passes them on."""
        passed = body.get(name)
        if not isinstance(passed, dict):
            raise ProtocolError(f"the field {name} must hold sites' messages")
        found = {}
        for site, member in enumerate(self._roster.sites):
            raw = passed.get(str(site))
            if isinstance(raw, str):
                found[site] = open_text(self._context, raw, member.key, round=round_, sender=site)
        if len(found) != len(passed):
            raise ProtocolError(f"the field {name} holds a message from nobody in the roster")
        return found

    def _from_sites(self, body: dict[str, Any], name: str, round_: str) -> dict[int, Message]:
        found = self._messages(body, name, round_)
        if self._number not in found:
            raise ProtocolError("the coordinator left this site out")
        if found[self._number].body != self._said[round_]:
            raise ProtocolError("the coordinator passes on another answer than this site gave")
        self._enough(len(found))
        return found
