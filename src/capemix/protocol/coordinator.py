"""The coordinator in a run: it passes messages on, adds uploads up, and learns only the sum.

No input or output happens here but a spool for uploads, and a journal where one is kept. The engine
asks for `requests`, brings replies to `receive`, and calls `close` when a round's time is over: who
has not answered by then is missing for the rest of the run.

In the round "upload" a site replies with the digests of its upload's chunks, which the engine then
fetches: what is `wanted`, by `chunk_request`, to `receive_chunk`. Half an upload counts as none.

A site that is caught before the included set is signed is `lost`, like one that is silent. After
that its upload is in the sum: a wrong share that it reveals is left out, and it is `blamed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from capemix.errors import InputError, printable
from capemix.protocol import replies
from capemix.protocol.agreement import (
    included_of,
    own_mask_key,
    pair_key,
    peers_among,
    public_bytes,
    setting_of,
)
from capemix.protocol.answering import ROUNDS
from capemix.protocol.chunks import DEFAULT_CHUNK, LEAST_CHUNK, MOST_CHUNK, MOST_CHUNKS, Cut
from capemix.protocol.consents import SumConsents
from capemix.protocol.dealing import check_dealing, deal_for
from capemix.protocol.journal import Journal
from capemix.protocol.refund import Refund
from capemix.protocol.revealed import Revealed
from capemix.protocol.roster import Roster
from capemix.protocol.spool import Spool
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import (
    COORDINATOR,
    Context,
    Message,
    ProtocolError,
    digest,
    is_signed,
    open_message,
    seal,
)
from capemix.randomness.source import erase
from capemix.sums.aggregate import Aggregate
from capemix.sums.share import share_bytes, share_dtype


class Run:
    """One run, from the proposal of a sum to the noisy sums."""

    def __init__(
        self,
        step: ReleaseStep,
        roster: Roster,
        identity: Ed25519PrivateKey,
        run: bytes,
        spool: Path,
        *,
        chunk_bytes: int = DEFAULT_CHUNK,
        journal: Journal | None = None,
    ) -> None:
        if public_bytes(identity) != roster.coordinator.key:
            raise InputError(
                "identity", "is not the roster's coordinator", fix="use the coordinator's key"
            )
        self._step, self._query = step, step.query
        cut = Cut(share_bytes(self._query), chunk_bytes)
        if not cut.allowed:
            raise InputError(
                "chunk_bytes",
                f"must be between {LEAST_CHUNK} and {MOST_CHUNK}, with at most {MOST_CHUNKS} chunks"
                " in an upload",
                value=chunk_bytes,
                fix=f"try {DEFAULT_CHUNK}",
            )
        self._roster = roster
        self._identity = identity
        self._spool = Spool(spool, cut, lasts=journal is not None)
        self._proposed = step.as_json()
        self._context = Context(run, roster.digest(), digest(self._proposed))
        self._round = 0
        self._alive = tuple(range(len(roster.sites)))
        self._replies: dict[str, dict[int, Message]] = {"plan": {}}
        self._accused: dict[int, tuple[int, ...]] = {}  # a dealer, and who complains about it
        self._members: tuple[int, ...] = ()
        self._included: tuple[int, ...] | None = None  # once it is decided
        self._revealed = Revealed(self._query.federation.share_threshold)
        self.failed: str | None = None
        """Why the run ended without a sum. What its sites paid for it may be given back."""
        self._erased: dict[str, str] | None = None  # once it is decided
        self.lost: dict[int, str] = {}
        """Why a site is missing: shown to the coordinator's people, never to other sites."""
        self._journal: Journal | None = None
        if journal is not None:
            bound = {"to": self._context.plan.hex(), "roster": self._context.roster.hex()}
            journal.begin(run, {**bound, "chunk_bytes": chunk_bytes})
            self._go_on(journal)

    @property
    def round(self) -> str | None:
        """The round that is open; None once the sums can be had."""
        return ROUNDS[self._round] if self._round < len(ROUNDS) else None

    @property
    def rounds(self) -> tuple[str, ...]:
        """The run's rounds, as far as is known: "open" is one only if a site complained."""
        return tuple(name for name in ROUNDS if name != "open" or self._accused)

    @property
    def _asked(self) -> tuple[int, ...]:
        """Whose answer to the open round is needed."""
        if self.round != "open":
            return self._alive
        return tuple(site for site in self._alive if site in self._accused)

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Whose answer to the open round is not in, or not whole."""
        found = self._answers
        return tuple(site for site in self._asked if site not in found or self._spool.is_part(site))

    @property
    def answered(self) -> tuple[int, ...]:
        """Whose answer to the open round is in."""
        waiting = set(self.waiting_for)
        return tuple(site for site in self._asked if site not in waiting)

    @property
    def _answers(self) -> dict[int, Message]:
        """To the open round."""
        return self._replies[ROUNDS[self._round]]

    @property
    def blamed(self) -> dict[int, str]:
        """Who did wrong and could be left in; each has signed what shows it."""
        return self._revealed.blamed

    @property
    def disputes(self) -> tuple[tuple[int, int], ...]:
        """Who complained about whom: one of the two lied, and nobody can tell which."""
        return tuple((h, dealer) for dealer, of in sorted(self._accused.items()) for h in of)

    @property
    def uploaded(self) -> tuple[int, int]:
        """Bytes of the sites' uploads: how many are in, and how many will be."""
        missing = sum(map(self._spool.missing_bytes, self._alive))
        expected = len(self._alive) * self._spool.cut.size
        return expected - missing, expected

    # -- what is asked -------------------------------------------------------------------------

    def requests(self) -> Iterator[tuple[int, bytes]]:
        """What to send to whom in the open round: the same bytes whenever it is asked."""
        round_ = ROUNDS[self._round]
        own = {"check": self._deals_for, "open": self._complaints_for, "upload": self._upload_for}
        same = None if round_ in own else self._for_all(round_)
        for site in self._asked:
            body = own[round_](site) if same is None else same
            message = Message(round_, COORDINATOR, body)
            yield site, seal(self._context, self._identity, message)

    def _for_all(self, round_: str) -> dict[str, Any]:
        if round_ == "plan":
            return {
                "run": self._context.run.hex(),
                "roster": self._context.roster.hex(),
                "step": self._proposed,
            }
        if round_ == "agree":
            uploads = self._replies["upload"]
            return {"included": {str(s): uploads[s].body["setting"] for s in self.included}}
        if round_ == "unmask":
            signed = self._replies["agree"]
            return {"agreed": {str(s): m.signature.hex() for s, m in sorted(signed.items())}}
        field, before = {"keys": ("accepts", "plan"), "shares": ("keys", "keys")}[round_]
        passed = sorted(self._replies[before].items())
        return {field: {str(site): message.raw.decode() for site, message in passed}}

    def _deals_for(self, site: int) -> dict[str, Any]:
        dealt = self._replies["shares"]
        return {"deals": {str(d): deal_for(dealt[d].body, site) for d in self._dealers(site)}}

    def _dealers(self, site: int) -> list[int]:
        return [peer for peer in self._peers[site] if peer in self._replies["shares"]]

    def _complaints_for(self, site: int) -> dict[str, Any]:
        said = self._replies["check"]
        return {"complaints": {str(h): said[h].raw.decode() for h in self._accused[site]}}

    def _upload_for(self, site: int) -> dict[str, Any]:
        shown = {
            str(dealer): self._replies["open"][dealer].body["opened"][str(site)]
            for dealer in self._members
            if site in self._accused.get(dealer, ())
        }
        return {
            "chunk_bytes": self._spool.cut.chunk_bytes,
            "members": list(self._members),
            "opened": shown,
        }

    # -- what is answered ------------------------------------------------------------------------

    def receive(self, site: int, raw: bytes) -> None:
        """A site's reply to the open round. A bad one counts as none, and the site as missing."""
        round_ = self.round
        if round_ is None or site not in self._asked or site in self._answers:
            return  # late, or a second answer: the first one stands
        try:
            key = self._roster.sites[site].key
            message = open_message(self._context, raw, key, round=round_, sender=site)
            self._check(round_, site, message)
        except ProtocolError as error:
            self.mark_lost(site, str(error))
            return
        self._answers[site] = message
        if self._journal is not None:
            self._journal.note(reply=raw.decode(), of=site)
        if round_ == "upload":
            self._spool.expect(site, message.body["chunks"])
        elif round_ == "unmask":
            dealt = {dealer: m.body for dealer, m in self._replies["shares"].items()}
            self._revealed.take(site, message.body, dealt)

    def wanted(self) -> Iterator[tuple[int, int]]:
        """Chunks to fetch, as (site, index): the first one of every site, then the second ones."""
        for index in range(self._spool.cut.chunks):
            for site in range(len(self._roster.sites)):
                if site in self._alive and index in self._spool.due.get(site, ()):
                    yield site, index

    def chunk_request(self, site: int, index: int) -> bytes:
        """What to send to a site for a chunk of its upload."""
        if not 0 <= site < len(self._roster.sites):
            raise ProtocolError(f"there is no site {site}")
        return seal(self._context, self._identity, Message("chunk", COORDINATOR, {"index": index}))

    def receive_chunk(self, site: int, index: int, data: bytes) -> None:
        """A chunk's bytes. Those that are not what the site announced cost it its place."""
        if site not in self._alive or index not in self._spool.due.get(site, ()):
            return  # late, or a second time: the first one stands
        try:
            self._spool.put(site, index, data)
        except ProtocolError as error:
            self.mark_lost(site, str(error))

    def _check(self, round_: str, site: int, message: Message) -> None:
        body, federation = message.body, self._query.federation
        if round_ == "plan":
            replies.check_plan(body)
        elif round_ == "keys":
            commit = self._replies["plan"][site].body["commit"]
            replies.check_site_keys(self._context, site, body, commit)
        elif round_ == "shares":
            check_dealing(
                self._context,
                self._roster.sites[site].key,
                site,
                body,
                sorted((*self._peers[site], site)),
                federation.share_threshold,
                bytes.fromhex(self._replies["keys"][site].body["mask"]),
            )
        elif round_ == "check":
            sites, keys = len(self._roster.sites), self._setting_among(())
            replies.check_complaints(body, sites, set(self._dealers(site)), keys)
        elif round_ == "open":
            dealt = self._replies["shares"][site].body
            replies.check_opened(body, {h: deal_for(dealt, h) for h in self._accused[site]})
        elif round_ == "upload":
            replies.check_announcement(body, self._query, self._spool.cut)
            setting = Message("setting", site, {"setting": self._setting})
            key = self._roster.sites[site].key
            if not is_signed(self._context, setting, body["setting"], key):
                raise ProtocolError("it masked its upload among other keys or members")
        elif round_ == "agree":
            if body != {"included": included_of(self.included, self._setting)}:
                raise ProtocolError("it signed another included set")
        elif round_ == "unmask":
            held = (site, *self._peers[site])
            wanted = {kind: {s for s in of if s in held} for kind, of in self._to_reveal().items()}
            replies.check_revealed(body, wanted)

    def _to_reveal(self) -> dict[str, tuple[int, ...]]:
        """Of whom which secret is put together."""
        gone = tuple(site for site in self._members if site not in self.included)
        return {"own": self.included, "pair": gone}

    @property
    def _setting(self) -> str:
        return self._setting_among(self._members)

    def _setting_among(self, members: tuple[int, ...]) -> str:
        return setting_of({s: m.body for s, m in self._replies["keys"].items()}, members)

    # -- the end of a round ----------------------------------------------------------------------

    def close(self) -> None:
        """End the open round. Too few sites left end the run, and nothing is released."""
        if self.round is None:
            raise ProtocolError("the run is over")
        for site in self.waiting_for:
            self.mark_lost(site, self._silence(site))
        for site, why in self._caught().items():
            self.mark_lost(site, why)
        try:
            self._check_enough()
        except ProtocolError as error:
            self.fail(str(error))
            raise
        included = self.included if self.round == "upload" else ()
        if self._journal is not None:
            self._journal.note(closed=self.round, included=list(included))
            self._journal.keep()
        self._advance(included)

    def _caught(self) -> dict[int, str]:
        """Whom the answers of a round show to be wrong only when they are held side by side."""
        said = {site: message.body for site, message in self._answers.items()}
        if self.round == "plan":
            return replies.seeded_among_others(said)
        if self.round == "keys":
            return replies.with_one_key(said)
        if self.round == "check":
            complained = replies.complained(said, self._alive)
            return replies.wrong_to_many(complained, self._query.federation.colluding)
        return {}

    def _check_enough(self) -> None:
        federation = self._query.federation
        if self.round == "unmask":
            # Uploads are in: a site lost from here on costs nothing while enough reveal.
            if len(self._alive) < federation.agreement:
                raise ProtocolError(
                    f"{len(self._alive)} sites revealed; {federation.agreement} are needed"
                )
            lacking = self._revealed.lacking(self._to_reveal())
            if lacking is not None:
                raise ProtocolError(lacking)
        elif self.round == "agree":
            if len(self._answers) < federation.agreement:
                raise ProtocolError(
                    f"{len(self._alive)} sites agreed; {federation.agreement} are needed"
                )
        elif len(self._alive) < federation.sites - federation.dropouts:
            reasons = "; ".join(f"site {s}: {why}" for s, why in sorted(self.lost.items()))
            raise ProtocolError(
                f"{len(self._alive)} of {federation.sites} sites are left in round {self.round},"
                f" {federation.dropouts} may be missing ({reasons})"
            )

    def _advance(self, included: tuple[int, ...]) -> None:
        if self.round == "keys":
            nonces = {s: bytes.fromhex(m.body["nonce"]) for s, m in self._answers.items()}
            self._peers = peers_among(self._query.federation, nonces)
        if self.round == "check":
            said = {site: message.body for site, message in self._answers.items()}
            self._accused = replies.complained(said, self._alive)
            if not self._accused:
                self._round += 1  # over at once: nobody has a share to show
                self._replies["open"] = {}
        if self.round == "open":
            self._members = self._alive
        if self.round == "upload":
            self._included = included
            self._spool.due |= {site: set() for site in included}
        self._round += 1
        if self.round is not None:
            self._replies[self.round] = {}

    # -- without a sum ---------------------------------------------------------------------------

    def fail(self, why: str) -> None:
        """No further round is opened."""
        self.failed = printable(why)
        if self._journal is not None:
            self._journal.note(failed=self.failed)
            self._journal.keep()

    def refund(self) -> Refund | None:
        """Of a run that failed: what is left to do for its sites. None where nobody was asked for
        an upload, and so nobody paid."""
        if self.failed is None or self.round not in ("upload", "agree", "unmask"):
            return None
        revealed = self._answers if self.round == "unmask" else {}
        holders = tuple(s for s in range(len(self._roster.sites)) if s not in revealed)
        found = Refund(self._context, self._identity, self._roster, self._query.federation, holders)
        found.go_on(self._erased, self._journal)
        return found

    # -- after a crash ---------------------------------------------------------------------------

    def _go_on(self, journal: Journal) -> None:
        """Do again what the journal says, and keep it from here on."""
        for event in journal.events:
            if "reply" in event:
                self.receive(event["of"], event["reply"].encode())
            elif "lost" in event:
                self.mark_lost(event["of"], event["lost"])
            elif "failed" in event:
                self.failed = event["failed"]
            elif "erased" in event:
                self._erased = event["erased"]
            else:
                self._advance(tuple(event["included"]))
        if self.round == "upload":
            self._spool.find()
        self._journal = journal

    def _silence(self, site: int) -> str:
        if not self._spool.is_part(site):
            return f"no answer in round {self.round}"
        return f"only {self._spool.came(site)}"

    def mark_lost(self, site: int, why: str) -> None:
        """A site will not answer any more: it is missing for the rest of the run."""
        if self._journal is not None:
            self._journal.note(lost=printable(why), of=site)
        self.lost[site] = printable(why)
        if self.round is not None:
            self._answers.pop(site, None)
        self._alive = tuple(s for s in self._alive if s != site)
        if self._spool.is_part(site):
            self._spool.remove(site)

    @property
    def seeded(self) -> bool:
        """Whether a site drew its noise from a test seed, as far as the sites say."""
        return any(
            message.body.get("seeded") is not False for message in self._replies["plan"].values()
        )

    @property
    def included(self) -> tuple[int, ...]:
        """Whose uploads are in the sum: those that came whole."""
        if self._included is not None:
            return self._included
        announced = self._replies.get("upload", {})
        return tuple(site for site in sorted(announced) if not self._spool.due[site])

    def consents(self) -> SumConsents:
        """What the sites in the sum signed of it: that they take part."""
        first = not self._step.before
        return SumConsents(
            sum=self._step.name,
            run=self._context.run.hex(),
            proposal=self._context.plan.hex(),
            sites={str(s): self._replies["plan"][s].raw.decode() for s in self.included},
            proposed=self._proposed if first else None,
        )

    # -- the end -----------------------------------------------------------------------------------

    def release_sums(self) -> npt.NDArray[np.floating[Any]]:
        """The noisy sums over the line's divisor, the masks taken off."""
        if self.round is not None:
            raise ProtocolError(f"round {self.round} is still open")
        own_keys = {}
        for site in self.included:
            secret = self._revealed.secret("own", site)
            own_keys[site] = own_mask_key(self._context, secret)
            erase(secret)
        missing_pairs = {}
        for missing in self._to_reveal()["pair"]:
            secret = self._revealed.secret("pair", missing)
            for site in (s for s in self._peers[missing] if s in self.included):
                other = bytes.fromhex(self._replies["keys"][site].body["mask"])
                missing_pairs[site, missing] = pair_key(self._context, secret, other, missing, site)
            erase(secret)
        total = Aggregate(self._query)
        for site in self.included:
            total.add_pieces(site, self._spool.pieces(site, share_dtype(self._query)))
        total.unmask(own_keys, missing_pairs)
        erase(*own_keys.values(), *missing_pairs.values())
        sums = total.release_sums()
        for site in self.included:
            self._spool.remove(site)
        return sums
