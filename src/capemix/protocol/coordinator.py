"""The coordinator in a run: it passes messages on, adds uploads up, and learns only the sum.

No input or output happens here but a spool for uploads. The engine asks for `requests`, brings
replies to `receive`, and calls `close` when a round's time is over: who has not answered by then
is missing for the rest of the run.

In the round "upload" a site replies with the digests of its upload's chunks, which the engine then
fetches: what is `wanted`, by `chunk_request`, to `receive_chunk`. Half an upload counts as none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from capemix.errors import InputError, printable
from capemix.protocol import shamir
from capemix.protocol.agreement import pair_key, peers_among, public_bytes, setting_of
from capemix.protocol.chunks import DEFAULT_CHUNK, LEAST_CHUNK, MOST_CHUNK, MOST_CHUNKS, Cut
from capemix.protocol.roster import Roster
from capemix.protocol.site import ROUNDS, SEALED_BYTES
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
    seal,
)
from capemix.randomness.source import erase
from capemix.sums.aggregate import Aggregate
from capemix.sums.share import share_bytes, share_dtype

_PIECE: Final = 1 << 20
"""How many numbers of an upload are in memory beside the sum."""

_LONGEST_REASON: Final = 500


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
    ) -> None:
        if public_bytes(identity) != roster.coordinator.key:
            raise InputError(
                "identity", "is not the roster's coordinator", fix="use the coordinator's key"
            )
        self._query = step.query
        self._cut = Cut(share_bytes(self._query), chunk_bytes)
        if not self._cut.allowed:
            raise InputError(
                "chunk_bytes",
                f"must be between {LEAST_CHUNK} and {MOST_CHUNK}, with at most {MOST_CHUNKS} chunks"
                " in an upload",
                value=chunk_bytes,
                fix=f"try {DEFAULT_CHUNK}",
            )
        self._roster = roster
        self._identity = identity
        self._spool = spool
        self._proposed = step.as_json()
        self._context = Context(run, roster.digest(), digest(self._proposed))
        self._round = 0
        self._alive = tuple(range(len(roster.sites)))
        self._replies: list[dict[int, Message]] = [{}]
        self._due: dict[int, set[int]] = {}  # of each announced upload, the chunks not yet in
        self.lost: dict[int, str] = {}
        """Why a site is missing: shown to the coordinator's people, never to other sites."""

    @property
    def round(self) -> str | None:
        """The round that is open; None once the sums can be had."""
        return ROUNDS[self._round] if self._round < len(ROUNDS) else None

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Whose answer to the open round is not in, or not whole."""
        return tuple(s for s in self._alive if s not in self._replies[self._round] or self._part(s))

    @property
    def answered(self) -> tuple[int, ...]:
        """Whose answer to the open round is in."""
        waiting = set(self.waiting_for)
        return tuple(site for site in self._alive if site not in waiting)

    @property
    def uploaded(self) -> tuple[int, int]:
        """Bytes of the sites' uploads: how many are in, and how many will be."""
        missing = sum(
            sum(map(self._cut.length, self._due.get(site, range(self._cut.chunks))))
            for site in self._alive
        )
        expected = len(self._alive) * self._cut.size
        return expected - missing, expected

    def _part(self, site: int) -> bool:
        """Whether a site's upload was announced, and is not whole yet."""
        return bool(self._due.get(site))

    def requests(self) -> Iterator[tuple[int, bytes]]:
        """What to send to whom in the open round."""
        round_ = ROUNDS[self._round]
        same = None if round_ == "upload" else self._request(round_)
        for site in self._alive:
            body = self._upload_request(site) if same is None else same
            message = Message(round_, COORDINATOR, body)
            yield site, seal(self._context, self._identity, message)

    def _request(self, round_: str) -> dict[str, Any]:
        if round_ == "plan":
            return {
                "run": self._context.run.hex(),
                "roster": self._context.roster.hex(),
                "step": self._proposed,
            }
        if round_ == "agree":
            uploads = self._replies[ROUNDS.index("upload")]
            return {"included": {str(s): uploads[s].body["setting"] for s in self.included}}
        field = {"keys": "accepts", "shares": "keys", "unmask": "agreed"}[round_]
        before = self._replies[self._round - 1]
        return {field: {str(s): m.raw.decode() for s, m in sorted(before.items())}}

    def _upload_request(self, site: int) -> dict[str, Any]:
        sent = self._replies[ROUNDS.index("shares")]
        return {
            "chunk_bytes": self._cut.chunk_bytes,
            "members": sorted(sent),
            "shares": {
                str(peer): sent[peer].body["shares"][str(site)]
                for peer in self._peers[site]
                if peer in sent
            },
        }

    def receive(self, site: int, raw: bytes) -> None:
        """A site's reply to the open round. A bad one counts as none, and the site as missing."""
        round_ = self.round
        if round_ is None or site not in self._alive or site in self._replies[self._round]:
            return  # late, or a second answer: the first one stands
        try:
            key = self._roster.sites[site].key
            message = open_message(self._context, raw, key, round=round_, sender=site)
            self._check(round_, site, message)
        except ProtocolError as error:
            self.mark_lost(site, str(error))
            return
        if round_ == "upload":
            with self._path(site).open("wb") as file:
                file.truncate(self._cut.size)
            self._due[site] = set(range(self._cut.chunks))
        self._replies[self._round][site] = message

    def wanted(self) -> Iterator[tuple[int, int]]:
        """Chunks to fetch, as (site, index): the first one of every site, then the second ones."""
        for index in range(self._cut.chunks):
            for site in range(len(self._roster.sites)):
                if site in self._alive and index in self._due.get(site, ()):
                    yield site, index

    def chunk_request(self, site: int, index: int) -> bytes:
        """What to send to a site for a chunk of its upload."""
        if not 0 <= site < len(self._roster.sites):
            raise ProtocolError(f"there is no site {site}")
        return seal(self._context, self._identity, Message("chunk", COORDINATOR, {"index": index}))

    def receive_chunk(self, site: int, index: int, data: bytes) -> None:
        """A chunk's bytes. Those that are not what the site announced cost it its place."""
        if site not in self._alive or index not in self._due.get(site, ()):
            return  # late, or a second time: the first one stands
        announced = self._replies[ROUNDS.index("upload")][site].body["chunks"][index]
        if len(data) != self._cut.length(index):
            whole = self._cut.length(index)
            self.mark_lost(site, f"chunk {index} of its upload has {len(data)} bytes, not {whole}")
        elif hashlib.sha256(data).hexdigest() != announced:
            self.mark_lost(site, f"chunk {index} of its upload is not the one that it announced")
        else:
            with self._path(site).open("r+b") as file:
                file.seek(self._cut.span(index).start)
                file.write(data)
            self._due[site].remove(index)

    def _path(self, site: int) -> Path:
        return self._spool / f"{site}.upload"

    def _check(self, round_: str, site: int, message: Message) -> None:
        body = message.body
        if round_ == "plan":
            bytes_of(body, "commit", 32)
            if body.get("accept") is not True:
                raise ProtocolError(f"declined: {str(body.get('reason'))[:_LONGEST_REASON]}")
        elif round_ == "keys":
            for name in ("box", "mask", "nonce"):
                bytes_of(body, name, 32)
            commit = self._replies[0][site].body["commit"]
            if hashlib.sha256(bytes.fromhex(body["nonce"])).hexdigest() != commit:
                raise ProtocolError("its nonce is not the one it committed to")
        elif round_ == "shares":
            bytes_of(body, "commit", 32)
            shares = body.get("shares")
            peers = {str(s) for s in self._peers[site]}
            if not isinstance(shares, dict) or set(shares) != peers:
                raise ProtocolError("it did not share with every peer")
            for peer in shares:
                bytes_of(shares, peer, SEALED_BYTES)
        elif round_ == "upload":
            shape, dtype = list(self._query.shape), share_dtype(self._query).str
            if set(body) != {"shape", "dtype", "chunks", "setting"}:
                raise ProtocolError("its upload is announced with other fields than this version's")
            if (body["shape"], body["dtype"]) != (shape, dtype):
                raise ProtocolError("its upload has another shape than the sum's")
            self._check_setting(site, body["setting"])
            chunks = body["chunks"]
            if not isinstance(chunks, list) or len(chunks) != self._cut.chunks:
                raise ProtocolError(f"its upload must be announced in {self._cut.chunks} chunks")
            for place, found in enumerate(chunks):
                bytes_of({f"chunks[{place}]": found}, f"chunks[{place}]", 32)
        elif round_ == "agree":
            if body != {"included": list(self.included), "setting": self._setting}:
                raise ProtocolError("it signed another included set")
        elif round_ == "unmask":
            held = (site, *self._peers[site])
            for name, group in (("own", self.included), ("pair", self._gone())):
                of = [s for s in group if s in held]
                shares = body.get(name)
                if not isinstance(shares, dict) or set(shares) != {str(s) for s in of}:
                    raise ProtocolError("it revealed other shares than were agreed")
                for key in shares:
                    bytes_of(shares, key, shamir.SHARE_BYTES)

    def _check_setting(self, site: int, raw: Any) -> None:
        if not isinstance(raw, str):
            raise ProtocolError("its setting is not a message")
        key = self._roster.sites[site].key
        message = open_text(self._context, raw, key, round="setting", sender=site)
        if message.body != {"setting": self._setting}:
            raise ProtocolError("it masked its upload among other keys or members")

    @property
    def _setting(self) -> str:
        keys, shared = (self._replies[ROUNDS.index(name)] for name in ("keys", "shares"))
        return setting_of({s: m.body for s, m in keys.items()}, shared)

    def close(self) -> None:
        """End the open round. Too few sites left end the run, and nothing is released."""
        if self.round is None:
            raise ProtocolError("the run is over")
        for site in self.waiting_for:
            self.mark_lost(site, self._silence(site))
        federation = self._query.federation
        if self.round == "unmask":
            # Uploads are in: a site lost from here on costs nothing while enough reveal.
            if len(self._alive) < federation.agreement:
                raise ProtocolError(
                    f"{len(self._alive)} sites revealed; {federation.agreement} are needed"
                )
        elif self.round == "agree":
            if len(self._replies[self._round]) < federation.agreement:
                raise ProtocolError(
                    f"{len(self._alive)} sites agreed; {federation.agreement} are needed"
                )
        elif len(self._alive) < federation.sites - federation.dropouts:
            reasons = "; ".join(f"site {s}: {why}" for s, why in sorted(self.lost.items()))
            raise ProtocolError(
                f"{len(self._alive)} of {federation.sites} sites are left in round {self.round},"
                f" {federation.dropouts} may be missing ({reasons})"
            )
        if self.round == "keys":
            nonces = {s: bytes_of(m.body, "nonce", 32) for s, m in self._replies[1].items()}
            self._peers = peers_among(self._query.federation, nonces)
        self._round += 1
        self._replies.append({})

    def _silence(self, site: int) -> str:
        if not self._part(site):
            return f"no answer in round {self.round}"
        chunks = self._cut.chunks
        return f"only {chunks - len(self._due[site])} of its upload's {chunks} chunks came"

    def mark_lost(self, site: int, why: str) -> None:
        """A site will not answer any more: it is missing for the rest of the run."""
        self.lost[site] = printable(why)
        self._alive = tuple(s for s in self._alive if s != site)
        if self._part(site):
            self._path(site).unlink(missing_ok=True)

    @property
    def seeded(self) -> bool:
        """Whether a site drew its noise from a test seed, as far as the sites say."""
        return any(message.body.get("seeded") is not False for message in self._replies[0].values())

    @property
    def included(self) -> tuple[int, ...]:
        """Whose uploads are in the sum: those that came whole."""
        announced = self._replies[ROUNDS.index("upload")]
        return tuple(site for site in sorted(announced) if not self._due[site])

    def _gone(self) -> tuple[int, ...]:
        shared = self._replies[ROUNDS.index("shares")]
        return tuple(s for s in sorted(shared) if s not in self.included)

    # -- the end -----------------------------------------------------------------------------------

    def release_sums(self) -> npt.NDArray[np.floating[Any]]:
        """The noisy sums over the line's divisor, the masks taken off."""
        if self.round is not None:
            raise ProtocolError(f"round {self.round} is still open")
        own_keys = {s: self._own_mask(s) for s in self.included}
        missing_pairs = {}
        keys = self._replies[ROUNDS.index("keys")]
        for missing in self._gone():
            secret = self._mask_secret(missing)
            for site in (s for s in self._peers[missing] if s in self.included):
                other = bytes.fromhex(keys[site].body["mask"])
                missing_pairs[site, missing] = pair_key(self._context, secret, other, missing, site)
        total = Aggregate(self._query)
        for site in self.included:
            total.add_pieces(site, self._spooled(site))
            self._path(site).unlink()
        total.unmask(own_keys, missing_pairs)
        erase(*own_keys.values(), *missing_pairs.values())
        return total.release_sums()

    def _spooled(self, site: int) -> Iterator[npt.NDArray[Any]]:
        with self._path(site).open("rb") as file:
            while len(piece := np.fromfile(file, share_dtype(self._query), _PIECE)):
                yield piece

    def _combined(self, kind: str, site: int) -> bytearray | None:
        revealed = {
            holder: message.body[kind][str(site)]
            for holder, message in sorted(self._replies[ROUNDS.index("unmask")].items())
            if str(site) in message.body[kind]
        }
        threshold = self._query.federation.share_threshold
        if len(revealed) < threshold:
            return None
        chosen = list(revealed)[:threshold]
        return shamir.combine({s: bytes.fromhex(revealed[s]) for s in chosen})

    def _own_mask(self, site: int) -> bytearray:
        secret = self._combined("own", site)
        commit = self._replies[ROUNDS.index("shares")][site].body["commit"]
        if secret is None or hashlib.sha256(secret).hexdigest() != commit:
            raise ProtocolError(f"the self mask of site {site} cannot be put together")
        return secret

    def _mask_secret(self, site: int) -> X25519PrivateKey:
        secret = self._combined("pair", site)
        public = self._replies[ROUNDS.index("keys")][site].body["mask"]
        if secret is not None:
            key = X25519PrivateKey.from_private_bytes(secret)
            erase(secret)
            if public_bytes(key).hex() == public:
                return key
        raise ProtocolError(f"the pair keys of site {site} cannot be put together")
