"""A site in a run: it says nothing that depends on its rows except the noised and masked upload.

Structure after Bonawitz et al. 2017; no input or output happens here. How it answers, and what it
refuses, is in `answering`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from capemix.protocol import dealing, group, shamir
from capemix.protocol.agreement import (
    check_keys,
    commitment,
    included_of,
    own_mask_key,
    pair_key,
    peers_among,
    public_bytes,
    setting_of,
)
from capemix.protocol.answering import Answering
from capemix.protocol.chunks import LEAST_CHUNK, MOST_CHUNK, Cut
from capemix.protocol.dealing import Box, Shares
from capemix.protocol.refund import ERASE, erased_by, refundable, refunded_by
from capemix.protocol.roster import Roster
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import (
    Message,
    ProtocolError,
    bytes_of,
    is_signed,
    open_text,
    sign,
    sites_of,
)
from capemix.randomness.source import SeededSource, Source, erase
from capemix.sums.query import SumQuery
from capemix.sums.share import SiteShare, share_bytes
from capemix.zerosum.masks import SiteKeys

Consent = Callable[[ReleaseStep], str | None]
"""The site's policy: why a sum, with the plan of its release, is declined, or None. Never sees
rows."""

MakeShare = Callable[[SumQuery, SiteKeys], SiteShare]
"""The site's part of the sum, masked with these keys: the one thing that reads rows."""


class Site(Answering):
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
        super().__init__(number, identity, roster)
        self._source = source
        self._consent = consent
        self._make_share = make_share
        self.refunded = False
        """Whether it was shown that this run's uploads stay masked for ever: its cost may be taken
        back."""
        self._uploaded: memoryview | None = None
        self._own_mask = self._mask_secret = bytearray()
        self._box: Box | None = None
        self._dealt: dict[int, Shares] = {}
        self._held: dict[int, Shares] = {}

    def _said_to(self, round_: str, body: dict[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = getattr(self, f"_{round_}")(body)
        return said

    def chunk(self, raw: bytes) -> bytes:
        """A chunk of the upload that was made. Asking changes nothing, and may be repeated."""
        if self._uploaded is None:
            raise ProtocolError("this site has no upload to send a chunk of")
        index = self._signed("chunk", raw).get("index")
        if type(index) is not int or not 0 <= index < self._cut.chunks:
            raise ProtocolError(
                f"the upload has chunks 0 to {self._cut.chunks - 1}, and no chunk {index}"
            )
        return bytes(self._uploaded[self._cut.span(index)])

    def free_upload(self) -> None:
        """Free the upload's memory: no chunk can be had any more. The rounds go on."""
        self._uploaded = None

    def _leave(self) -> None:
        self.free_upload()
        self._erase_secrets()
        self._erase_shares()

    def _erase_secrets(self) -> None:
        """Whatever could take the masks off an upload. Others' shares of it are all that is left,
        and each holder gives up one of the two at most."""
        self._source.erase()
        erase(self._own_mask, self._mask_secret)
        self._box = None
        for shares in self._dealt.values():
            erase(*shares)

    def _erase_shares(self) -> None:
        for shares in self._held.values():
            erase(*shares)

    # -- after a run that failed -----------------------------------------------------------------

    def _after_failure(self, asked: str, body: dict[str, Any]) -> Message:
        """Erase what could unmask an upload, and say so; then hear that enough others did."""
        if asked == ERASE:
            if "plan" not in self._said or "unmask" in self._said:
                raise ProtocolError("this site has nothing to erase, or has revealed its shares")
            self._broken = True
            self._leave()
            return erased_by(self._number)
        found = body.get("erased")
        signed = found if isinstance(found, dict) else {}
        enough = refundable(self._run, self._roster, self._query.federation, signed)
        if ERASE not in self._replies or not enough:
            raise ProtocolError("too few sites erased their shares: what was paid stays paid")
        self.refunded = True
        return refunded_by(self._number)

    # -- the plan ----------------------------------------------------------------------------------

    def _plan(self, body: dict[str, Any]) -> dict[str, Any]:
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
        box = X25519PrivateKey.from_private_bytes(self._source.key("box"))
        self._box = Box(self._run, self._number, box)
        self._mask_secret = group.as_bytes(group.drawn(self._source.stream("mask")))
        self._public = public_bytes(box), group.point_of(self._mask_secret)
        return {
            "accept": reason is None,
            "seeded": isinstance(self._source, SeededSource),
            "reason": reason,
            "commit": commitment(self._run, self._number, self._nonce, *self._public),
        }

    # -- keys --------------------------------------------------------------------------------------

    def _keys(self, body: dict[str, Any]) -> dict[str, Any]:
        accepts = self._from_sites(body, "accepts", "plan")
        if not all(message.body.get("accept") is True for message in accepts.values()):
            raise ProtocolError("a site that declined is listed as taking part")
        if not isinstance(self._source, SeededSource):
            for site, message in accepts.items():
                if message.body.get("seeded") is not False:
                    raise ProtocolError(f"site {site} draws from a test seed; its noise hides none")
        self._commits = {s: bytes_of(m.body, "commit", 32).hex() for s, m in accepts.items()}
        box, mask = self._public
        return {"box": box.hex(), "mask": mask.hex(), "nonce": self._nonce.hex()}

    # -- shares of what unmasks --------------------------------------------------------------------

    def _shares(self, body: dict[str, Any]) -> dict[str, Any]:
        keys = self._from_sites(body, "keys", "keys")
        if not set(keys) <= set(self._commits):
            raise ProtocolError("a site that did not accept has keys")
        nonces = {s: bytes_of(m.body, "nonce", 32) for s, m in keys.items()}
        self._boxes = {s: bytes_of(m.body, "box", 32) for s, m in keys.items()}
        self._masks = {s: bytes_of(m.body, "mask", 32) for s, m in keys.items()}
        for site, nonce in nonces.items():
            own = self._boxes[site], self._masks[site]
            said = commitment(self._run, site, nonce, *own)
            if not hmac.compare_digest(said, self._commits[site]):
                raise ProtocolError(
                    f"the keys and nonce of site {site} are not those it committed to"
                )
            check_keys(*own)
        self._keys_shown = {s: m.body for s, m in keys.items()}
        if len(set(self._boxes.values()) | set(self._masks.values())) != 2 * len(keys):
            raise ProtocolError("two sites have one key")
        self._peers = peers_among(self._query.federation, nonces)[self._number]
        self._own_mask = group.as_bytes(group.drawn(self._source.stream("own mask")))
        holders = sorted((*self._peers, self._number))
        threshold = self._query.federation.share_threshold
        of_own, of_pair = (
            shamir.split(secret, holders, threshold, self._source.stream("shamir", name))
            for name, secret in (("own", self._own_mask), ("pair", self._mask_secret))
        )
        self._dealt = {holder: (of_own[holder], of_pair[holder]) for holder in holders}
        reply = dealing.dealt(self._own_box, self._identity, self._boxes, self._dealt)
        self._held = {self._number: self._dealt.pop(self._number)}
        self._source.erase()  # nothing more is drawn from it
        return reply

    @property
    def _own_box(self) -> Box:
        if self._box is None:
            raise ProtocolError("this site's key was used and erased")
        return self._box

    # -- check what was dealt ----------------------------------------------------------------------

    def _check(self, body: dict[str, Any]) -> dict[str, Any]:
        """Whose shares are not what their points say. That the dealer signed them is certain."""
        deals = body.get("deals")
        if not isinstance(deals, dict) or not set(deals) <= {str(peer) for peer in self._peers}:
            raise ProtocolError("the deals are not those of this site's peers")
        self._deals = {peer: deals[str(peer)] for peer in self._peers if str(peer) in deals}
        for peer, deal in self._deals.items():
            key = self._roster.sites[peer].key
            dealing.check_deal(self._run, key, peer, self._number, deal)
            sealed = bytes.fromhex(deal["sealed"])
            shares = self._own_box.open(peer, self._boxes[peer], sealed)
            if shares is not None and dealing.are_shares_of(deal, shares):
                self._held[peer] = shares
        complaints = sorted(set(self._deals) - set(self._held))
        return {"complaints": complaints, "keys": setting_of(self._keys_shown, ())}

    def _open(self, body: dict[str, Any]) -> dict[str, Any]:
        """Show a share to whoever says that it got none. This site sealed it as it should, so who
        complains lies, and tells the others nothing by it that it could not tell them anyway."""
        complaints = self._messages(body, "complaints", "check")
        sites, most = len(self._roster.sites), self._query.federation.colluding
        for holder, message in complaints.items():
            if self._number not in sites_of(message.body, "complaints", sites):
                raise ProtocolError(f"site {holder} did not complain about this site")
            # One that was begun anew has another key, and cannot open what was sealed for the old.
            if message.body.get("keys") != setting_of(self._keys_shown, ()):
                raise ProtocolError(f"site {holder} complains, and was shown other keys")
        if not set(complaints) <= set(self._dealt) or len(complaints) > most:
            raise ProtocolError(
                f"{len(complaints)} sites complain about this one; {most} may collude"
            )
        return {"opened": {str(h): dealing.shown(self._dealt[h]) for h in complaints}}

    # -- the upload --------------------------------------------------------------------------------

    def _upload(self, body: dict[str, Any]) -> dict[str, Any]:
        self._cut = self._cut_asked_for(body)
        self._members = sites_of(body, "members", len(self._roster.sites))
        if not set(self._members) <= set(self._boxes) or self._number not in self._members:
            raise ProtocolError("the members are not those whose keys were shown")
        self._enough(len(self._members))
        peers = [s for s in self._peers if s in self._members]
        self._hold_shares_of(peers, body.get("opened"))
        keys = SiteKeys(
            site=self._number,
            own=own_mask_key(self._run, self._own_mask),
            pair={
                peer: pair_key(self._run, self._mask_secret, self._masks[peer], self._number, peer)
                for peer in peers
            },
        )
        # Signed, for whoever is to take this site's self mask off: see _agree.
        self._setting = setting_of(self._keys_shown, self._members)
        try:
            share = self._make_share(self._query, keys)
        finally:
            keys.erase()
            self._erase_secrets()
        self._uploaded = share.values.data.cast("B")
        return {
            "shape": list(share.values.shape),
            "dtype": share.values.dtype.str,
            "chunks": [
                hashlib.sha256(self._uploaded[self._cut.span(index)]).hexdigest()
                for index in range(self._cut.chunks)
            ],
            "setting": sign(self._run, self._identity, self._setting_of(self._number)),
        }

    def _hold_shares_of(self, peers: list[int], opened: Any) -> None:
        """Of every peer, and of nobody else: what it sealed, or what it showed later."""
        for peer in peers:
            if peer in self._held:
                continue
            if peer not in self._deals or not isinstance(opened, dict):
                raise ProtocolError("an upload needs the shares of every peer")
            shares = dealing.read_shown(opened, str(peer))
            if not dealing.are_shares_of(self._deals[peer], shares):
                raise ProtocolError(f"the share that site {peer} showed is not the one it dealt")
            self._held[peer] = shares
        for other in set(self._held) - {*peers, self._number}:
            erase(*self._held.pop(other))

    def _setting_of(self, site: int) -> Message:
        return Message("setting", site, {"setting": self._setting})

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

    # -- agree on who is in ------------------------------------------------------------------------

    def _agree(self, body: dict[str, Any]) -> dict[str, Any]:
        signed = body.get("included")
        if not isinstance(signed, dict):
            raise ProtocolError("the field included must hold sites' signatures")
        self._included = tuple(s for s in self._members if str(s) in signed)
        if len(self._included) != len(signed):
            raise ProtocolError("a site is called included that shared nothing")
        # A site that was told of other members has no mask against those left out: the missing
        # ones' pair keys would then bare a sum over fewer honest sites than the plan promises.
        for site in self._included:
            key = self._roster.sites[site].key
            if not is_signed(self._run, self._setting_of(site), signed[str(site)], key):
                raise ProtocolError(f"site {site} masked its upload among other keys or members")
        self._enough(len(self._included))
        return {"included": included_of(self._included, self._setting)}

    # -- reveal, for each site one of its two secrets ----------------------------------------------

    def _unmask(self, body: dict[str, Any]) -> dict[str, Any]:
        signed = body.get("agreed")
        if not isinstance(signed, dict):
            raise ProtocolError("the field agreed must hold sites' signatures")
        same = sum(
            is_signed(
                self._run,
                Message("agree", site, self._said["agree"]),
                signed.get(str(site)),
                by.key,
            )
            for site, by in enumerate(self._roster.sites)
        )
        if same < self._query.federation.agreement:
            raise ProtocolError(
                f"only {same} sites signed the same included set;"
                f" {self._query.federation.agreement} are needed"
            )
        own, pair = {}, {}
        for site, (of_own, of_pair) in self._held.items():
            if site in self._included:
                own[str(site)] = of_own.hex()
            else:
                pair[str(site)] = of_pair.hex()
        return {"own": own, "pair": pair}

    # -- what the rounds share -------------------------------------------------------------------

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
                found[site] = open_text(self._run, raw, member.key, round=round_, sender=site)
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
