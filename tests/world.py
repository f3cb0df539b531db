"""A coordinator and its sites in one process, for tests that lose, alter and listen."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from capemix import documents
from capemix.data import LabeledRows, UnlistedRows, check_classes
from capemix.data.arrays import cells_of_arrays
from capemix.errors import InputError
from capemix.methods.mixing import MIXTURES, Mixing
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import Plan
from capemix.protocol import wire
from capemix.protocol.agreement import public_bytes
from capemix.protocol.chunks import LEAST_CHUNK
from capemix.protocol.coordinator import Run
from capemix.protocol.journal import Journal
from capemix.protocol.revealed import Revealed
from capemix.protocol.roster import Member, Roster
from capemix.protocol.site import Site
from capemix.protocol.spool import Spool
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import COORDINATOR, Context, Message, ProtocolError
from capemix.randomness.source import SeededSource
from capemix.sums.query import SumQuery
from capemix.sums.share import SiteShare, SourceDraws, prepare_site, site_share
from capemix.zerosum.masks import SiteKeys

RUN = bytes(range(16))
RELEASE = bytes(range(16, 32))
T = TypeVar("T")

ASKED: dict[str, Any] = {
    "width": 2,
    "class_sizes": (1,),
    "samples": 1,
    "mixture": 1,
    "scheme": "cape",
    "sites": 4,
    "colluding": 1,
    "dropouts": 1,
}


@cache
def identity(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


@cache
def a_roster(sites: int) -> Roster:
    def member(name: str) -> Member:
        return Member(name, public_bytes(identity(name)).hex())

    return Roster(member("coordinator"), tuple(member(f"site {s}") for s in range(sites)))


@cache
def counting_plan(
    sites: int,
    colluding: int,
    dropouts: int,
    masks: str = "ring",
    samples: int = 1,
    peers: int | None = None,
) -> Plan:
    """Every row of a site takes part and there is no noise: the release is the sum, exactly."""
    asked = {**ASKED, "sites": sites, "colluding": colluding, "dropouts": dropouts}
    asked["samples"] = samples
    noise = 0.0 if masks == "ring" else 0.01
    plan = plan_mixtures(**asked, clip=100.0, masks=masks, noise=noise)
    # Without noise there is no delta that a sparse graph's chance of failure would have to keep.
    return replace(plan, federation=replace(plan.federation, peers=peers))


def mixtures_of(plan: Plan) -> SumQuery:
    """The sum that a plan to mix rows asks for, of the rows that it mixes."""
    assert isinstance(plan.method, Mixing)
    return plan.query(MIXTURES, plan.method.statistic(plan))


def step_of(plan: Plan, release: bytes = RELEASE) -> ReleaseStep:
    """A plan to mix rows, as it is proposed to the sites."""
    return ReleaseStep(release, plan, MIXTURES, mixtures_of(plan).summed)


def labeled_rows(X: Any, y: Any, classes: Sequence[str | int] | None = None) -> LabeledRows:
    """Arrays as rows of these classes; where there are none, with their labels as they come."""
    rows = UnlistedRows.of(cells_of_arrays(X, y), "label")
    return rows.as_they_come() if classes is None else rows.listed(check_classes(classes))


def one_row(site: int) -> LabeledRows:
    """Sums of these tell exactly who is in: site s adds 2^s and 1."""
    return LabeledRows(
        features=np.array([[2.0**site, 1.0]]),
        labels=np.zeros(1, dtype=np.int64),
        classes=(0,),
        feature_names=("a", "b"),
    )


def expected(included: tuple[int, ...]) -> np.ndarray:
    return np.array([[sum(2.0**s for s in included), float(len(included))]])


def assert_sum(found: np.ndarray, included: tuple[int, ...], atol: float = 0.03) -> None:
    # Truncation onto the lattice loses less than a unit for every site; a mask left on, or a
    # site too many or too few, is off by at least 1.
    right = np.broadcast_to(expected(included), found.shape)
    np.testing.assert_allclose(found, right, atol=atol)


def reseal(raw: bytes, change: Callable[[dict[str, Any]], None], plan: Plan, who: str) -> bytes:
    """The same message with another body, signed by ``who`` for the real run."""
    message = wire.parse(raw)
    body = json.loads(json.dumps(message.body))
    change(body)
    context = Context(
        RUN, a_roster(plan.federation.sites).digest(), wire.digest(step_of(plan).as_json())
    )
    return wire.seal(context, identity(who), Message(message.round, message.sender, body))


def a_document(cls: type[T], text: str) -> T:
    """As a file with this text is read."""
    name = cls.__name__.lower()
    return documents.from_json(cls, documents.parse(text, name=name), name=name)


class World:
    """A coordinator and its sites, with a network that a test can meddle with."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        *,
        seed: int = 0,
        run: bytes = RUN,
        rows: list[LabeledRows] | None = None,
        consent: Callable[[int, ReleaseStep], str | None] = lambda _site, _step: None,
        chunk_bytes: int = LEAST_CHUNK,
        noise_factor: float = 1.0,
        journal: Path | None = None,
    ) -> None:
        self.plan, self.roster = plan, a_roster(plan.federation.sites)
        folder.mkdir(exist_ok=True)
        source = SeededSource(seed)
        self.noise_factor = noise_factor  # sites that do not add all of their noise
        self.uploads: dict[int, SiteShare] = {}
        step = step_of(plan)
        self.query = step.query
        self.journal: Journal | None = None

        def coordinator() -> Run:
            if self.journal is not None:
                self.journal.close()
            self.journal = None if journal is None else Journal(journal)
            return Run(
                step,
                self.roster,
                identity("coordinator"),
                run,
                folder,
                chunk_bytes=chunk_bytes,
                journal=self.journal,
            )

        self.coordinator = coordinator
        """A coordinator of this run, with what is in the journal."""
        self.run = coordinator()
        self.said: dict[tuple[int, str], bytes] = {}
        """Everything that a site ever answered, arrived or not."""
        self.obeyed: dict[tuple[int, str], dict[str, Any]] = {}
        """The requests, true or not, that those were answers to."""
        self.refused: dict[int, str] = {}
        self.sites = []
        for s in range(plan.federation.sites):
            mine = rows[s] if rows else one_row(s)
            self.sites.append(
                Site(
                    s,
                    identity(f"site {s}"),
                    self.roster,
                    source.child("protocol", s),
                    lambda step, s=s: consent(s, step),
                    self.maker(s, mine, seed),
                )
            )

    def maker(self, site: int, rows: LabeledRows, seed: int) -> Any:
        def make(query: SumQuery, keys: SiteKeys) -> SiteShare:
            prepared = prepare_site(query, rows.features, rows.labels)
            # Made anew each time: a fork of this world draws the same noise.
            draws = SourceDraws(query, SeededSource(seed).child("site", site))
            draws._deviation *= self.noise_factor
            self.uploads[site] = site_share(query, site, prepared, draws, keys, threads=1)
            return self.uploads[site]

        return make

    # -- one exchange ----------------------------------------------------------------------------

    def ask(self, site: int, raw: bytes) -> bytes | None:
        """What the site answers, or None if it refuses. It never answers a round in two ways."""
        try:
            answer = self.sites[site].answer(raw)
        except (ProtocolError, InputError) as error:
            self.refused[site] = str(error)
            return None
        round_ = wire.parse(answer).round
        assert self.said.get((site, round_), answer) == answer
        self.said[site, round_] = answer
        self.obeyed[site, round_] = wire.parse(raw).body
        return answer

    def chunk(self, site: int, raw: bytes) -> bytes | None:
        try:
            return self.sites[site].chunk(raw)
        except ProtocolError as error:
            self.refused[site] = str(error)
            return None

    def bring(self, site: int, answer: bytes) -> None:
        """A reply arrives at the coordinator, and the chunks that it announces."""
        self.run.receive(site, answer)
        for _, index in [wanted for wanted in self.run.wanted() if wanted[0] == site]:
            data = self.chunk(site, self.run.chunk_request(site, index))
            if data is not None:
                self.run.receive_chunk(site, index, data)

    def drive(
        self,
        drop: Callable[[int, str], bool] = lambda _site, _round: False,
        request: Callable[[int, str, bytes], bytes] = lambda _site, _round, raw: raw,
        reply: Callable[[int, str, bytes], bytes] = lambda _site, _round, raw: raw,
    ) -> np.ndarray:
        """Run all rounds. A site that is dropped is gone; one that raises says no more.

        Chunks go through the same hands, as if "chunk" were a round.
        """
        gone: set[int] = set()
        while (round_ := self.run.round) is not None:
            for site, raw in list(self.run.requests()):
                if site in gone or drop(site, round_):
                    gone.add(site)
                    continue
                answer = self.ask(site, request(site, round_, raw))
                if answer is not None:
                    self.run.receive(site, reply(site, round_, answer))
            for site, index in self.run.wanted():
                if site in gone or drop(site, "chunk"):
                    gone.add(site)
                    continue
                data = self.chunk(site, request(site, "chunk", self.run.chunk_request(site, index)))
                if data is not None:
                    self.run.receive_chunk(site, index, reply(site, "chunk", data))
            self.run.close()
        return np.asarray(self.run.release_sums())

    def fork(self) -> World:
        """A second world with the same past, which goes its own way from here on."""
        other = _forked(self)
        other.run, other.sites = _forked(self.run), [_forked(site) for site in self.sites]
        folder = Path(tempfile.mkdtemp(dir=self.run._spool.folder.parent))
        other.run._spool.folder = folder
        for file in self.run._spool.folder.iterdir():
            shutil.copy(file, folder)
        return other

    # -- what was revealed -----------------------------------------------------------------------

    def revealed(self) -> Iterator[tuple[str, int, int]]:
        """(kind, whose, by whom) for every share that left a site, whether it arrived or not."""
        for (holder, round_), raw in self.said.items():
            if round_ == "unmask":
                body = wire.parse(raw).body
                for kind in ("own", "pair"):
                    for whose in body[kind]:
                        yield kind, int(whose), holder

    def assert_nothing_is_given_away(self, colluding: tuple[int, ...] = ()) -> None:
        """No two honest sites reveal different secrets of one site, and nobody reveals a share
        unless enough sites have signed one included set; colluders sign whatever is asked.

        And whose self mask is revealed has masked for the members that the revealing site knows."""
        kinds: dict[int, set[str]] = {}
        for kind, whose, holder in self.revealed():
            if holder not in colluding:
                kinds.setdefault(whose, set()).add(kind)
                if kind == "own" and whose not in colluding:
                    # Unmasked for the sum with this set: it must have been masked for this set.
                    used = [self.obeyed[s, "upload"]["members"] for s in (whose, holder)]
                    assert used[0] == used[1]
        assert all(len(of) == 1 for of in kinds.values()), kinds
        if kinds:
            signed = [
                wire.parse(raw).body["included"]
                for (site, round_), raw in self.said.items()
                if round_ == "agree" and site not in colluding
            ]
            most = max((signed.count(one) for one in signed), default=0)
            assert most + len(colluding) >= self.plan.federation.agreement


def _forked(value: Any, depth: int = 3) -> Any:
    """States and the containers in them are copied, two deep; what never changes (keys, messages
    and their bodies, plans) is shared."""
    if depth == 0 and not isinstance(value, (bytearray, tuple)):
        return value
    if isinstance(value, (Site, Run, World, Spool, Revealed)):
        other = copy.copy(value)
        for name, one in vars(value).items():
            if isinstance(one, (Spool, Revealed)):
                setattr(other, name, _forked(one))
            elif not isinstance(one, (Site, Run, World)):
                setattr(other, name, _forked(one, depth - 1))
        return other
    if isinstance(value, dict):
        return {key: _forked(one, depth - 1) for key, one in value.items()}
    if isinstance(value, list):
        return [_forked(one, depth - 1) for one in value]
    if isinstance(value, set):
        return set(value)
    if isinstance(value, SeededSource):
        source = SeededSource._of_key(value._key)
        source._taken = set(value._taken)
        return source
    if isinstance(value, bytearray):  # a secret, which its world overwrites once it has served
        return bytearray(value)
    if isinstance(value, tuple) and any(isinstance(one, bytearray) for one in value):
        return tuple(bytearray(one) for one in value)
    return value


def signed_request(world: World, round_: str, body: dict[str, Any]) -> bytes:
    """What a lying coordinator sends: any body, with its own good signature."""
    return wire.seal(
        world.run._context, identity("coordinator"), Message(round_, COORDINATOR, body)
    )
