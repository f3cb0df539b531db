"""The coordinator inside Flower: it drives a `Run` over the network, or one for each round of a
release, and writes the release.

What happens is known from one file, ``OUT.outcome.json``, written anew as the run goes on:
Flower's own exit codes do not say.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from logging import INFO
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from capemix import documents
from capemix.collector import Origin
from capemix.engines.flower.envelope import Refused
from capemix.engines.flower.exchange import exchange
from capemix.engines.flower.files import (
    ENDED,
    RELEASED,
    STOPPED,
    Outcome,
    ProcessMark,
    RoundOpen,
    RoundOver,
    check_fits,
    listed,
    read_plan_file,
)
from capemix.engines.flower.processes import peak_memory
from capemix.engines.flower.progress import Progress
from capemix.engines.flower.rounds import Round
from capemix.engines.flower.settings import Settings
from capemix.engines.flower.unfinished import Made, Unfinished
from capemix.errors import CapemixError, InputError, printable
from capemix.identity import Identity, load_identity
from capemix.plan import Plan
from capemix.protocol.coordinator import Run
from capemix.protocol.hello import new_challenge, site_of
from capemix.protocol.journal import Journal
from capemix.protocol.roster import Roster
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import ProtocolError
from capemix.release import check_output
from capemix.run import check_room, run
from capemix.sums.query import SumQuery

_POLL: Final = 1.0
_HELLO_SECONDS: Final = 60.0
_SAY_EVERY: Final = 10.0


def server_app() -> ServerApp:
    """The app of the SuperLink."""
    app = ServerApp()
    app.main()(main)
    return app


def main(grid: Grid, context: Context) -> None:
    """One run: a release, or a reason; either way an outcome."""
    settings = Settings.from_config(context.run_config)
    outcome = Outcome(process=ProcessMark.of(os.getpid()))
    outcome.write(settings.out)
    try:
        _conduct(grid, settings, outcome)
    except BaseException as error:
        if outcome.status != ENDED and Unfinished.begun(settings.out):
            outcome.status = STOPPED
        else:
            outcome.status = ENDED
        outcome.progress = None
        outcome.reason = _why(error)
        _say(f"{outcome.status}, nothing released: {outcome.reason}")
        outcome.write(settings.out)
        raise
    outcome.write(settings.out)
    _say(f"released to {settings.out}; sites in: {listed(outcome.included)}")


def _why(error: BaseException) -> str:
    """The system's own word where it has one, as of a disk that is full."""
    if isinstance(error, CapemixError):
        return printable(str(error))
    if isinstance(error, SystemExit | KeyboardInterrupt):  # as Flower's programs do on SIGTERM
        return "its process was told to stop"
    system = isinstance(error, OSError) and error.strerror
    return f"it broke off: {system or type(error).__name__}"


def _conduct(grid: Grid, settings: Settings, outcome: Outcome) -> None:
    check_output(settings.out)
    plan = read_plan_file(settings.plan)
    roster = documents.read(Roster, settings.roster, name="roster")
    if len(roster.sites) != plan.federation.sites:
        raise InputError(
            "roster",
            f"must have the plan's {plan.federation.sites} sites",
            value=len(roster.sites),
            fix="bring the two in line",
        )
    if settings.give_up and not Unfinished.begun(settings.out):
        raise InputError(
            "out", "has no unfinished release beside it", value=settings.out, fix="name another"
        )
    check_room(plan)  # before a site is charged for rows that cannot be drawn here
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    identity = load_identity(settings.identity)
    needed = 0 if settings.give_up else plan.federation.sites - plan.federation.dropouts
    node_of = find_sites(grid, roster, settings.wait_seconds, outcome, needed)
    unfinished = Unfinished(settings.out, plan, roster)
    if unfinished.goes_on:
        _say(f"going on with the release that was begun in {unfinished.folder}")
    engine = FlowerEngine(grid, settings, outcome, roster, identity, node_of, unfinished)
    try:
        made, signer = run(plan, engine), Identity(roster.coordinator.name, identity)
        made.save(settings.out, identity=signer, beside=unfinished.beside())
    except ProtocolError:
        outcome.status = ENDED  # it can only be proposed again
        if not engine.may_ask_again:
            unfinished.remove()
        raise
    unfinished.remove()
    outcome.status = RELEASED
    outcome.peak_memory["coordinator"] = peak_memory()


class FlowerEngine:
    """Noisy sums from the sites, a run of the protocol for each. Every site charges its own ledger,
    and takes a charge back if the run failed and told nothing.

    A site that is lost in one sum is not asked again: who was late once would be waited for in
    every sum that follows. What outlasts a crash is in ``unfinished``.
    """

    def __init__(
        self,
        grid: Grid,
        settings: Settings,
        outcome: Outcome,
        roster: Roster,
        identity: Ed25519PrivateKey,
        node_of: Mapping[int, int],
        unfinished: Unfinished,
    ) -> None:
        self._grid, self._settings, self._outcome = grid, settings, outcome
        self._roster, self._identity = roster, identity
        self._node_of = dict(node_of)
        self._unfinished = unfinished
        self._seeded = False
        self.may_ask_again = False
        """Whether more sites within reach could still take back what they paid for a failed run."""

    def check(self, plan: Plan) -> None:
        check_fits(plan)

    def origin(self, plan: Plan) -> Origin:  # noqa: ARG002
        return Origin(seeded=self._seeded)

    def list_classes(self, *_asked: object) -> dict[str, float]:
        raise InputError("classes", "must be declared in a federation", fix="list them")

    def sum(self, plan: Plan, query: SumQuery) -> npt.NDArray[np.floating[Any]]:
        number = plan.names.index(query.name)
        before = self._unfinished.made(number)
        if before is not None:
            sums, made = before
        else:
            sums, made = self._make(plan, query, number)
            self._unfinished.keep(number, sums, made)
        self._outcome.included = list(made.included)
        for said, of in ((self._outcome.lost, made.lost), (self._outcome.blamed, made.blamed)):
            for site, why in of.items():
                said.setdefault(site, why)
        self._seeded |= made.seeded
        return sums

    def _make(
        self, plan: Plan, query: SumQuery, number: int
    ) -> tuple[npt.NDArray[np.floating[Any]], Made]:
        """A run of the protocol: a new one, or the one that a coordinator before this one began."""
        settings, outcome = self._settings, self._outcome
        folder = self._unfinished.sum_folder(number)
        journal = Journal(folder / "journal")
        try:
            run = Run(
                ReleaseStep(self._unfinished.release, plan, query.name, query.summed),
                self._roster,
                self._identity,
                journal.run or secrets.token_bytes(16),
                folder,
                chunk_bytes=settings.chunk_bytes,
                journal=journal,
            )
            name = query.name if len(plan.names) > 1 else None
            done: list[RoundOver] = []
            nodes = dict(self._node_of)
            if settings.give_up and run.failed is None and run.round is not None:
                run.fail("it was given up")
            try:
                while run.failed is None and run.round is not None:
                    _one_round(self._grid, run, self._node_of, settings, outcome, done, name)
                    outcome.write(settings.out)
            except ProtocolError:
                if run.failed is None:
                    raise
            finally:
                lost, blamed = (
                    {str(site): why for site, why in sorted(of.items())}
                    for of in (run.lost, run.blamed)
                )
                outcome.lost = {**lost, **outcome.lost}
                outcome.blamed = {**blamed, **outcome.blamed}
                outcome.disputes = sorted({*outcome.disputes, *run.disputes})
                for site in run.lost:
                    self._node_of.pop(site, None)
            if run.failed is not None:
                before = f"; and the sums before it ({number}), which were made" if number else ""
                outcome.paid = self._give_back(run, nodes) + before
                raise ProtocolError(run.failed)
            outcome.peak_memory["coordinator in rounds"] = peak_memory()
            _say("taking the masks off")
            made = Made(run.included, run.seeded, lost, blamed, run.consents())
            return run.release_sums(), made
        finally:
            journal.close()

    def _give_back(self, run: Run, node_of: Mapping[int, int]) -> str:
        """Whoever is within reach is asked, lost or not. Returns what stays paid, and why."""
        refund = run.refund()
        if refund is None:
            return "nothing: no site was asked for an upload"
        site_of_node = {node: site for site, node in node_of.items()}

        def ask(requests: Mapping[int, bytes], take: Callable[[int, bytes], None]) -> None:
            asked = [(node_of[site], raw) for site, raw in requests.items() if site in node_of]
            for node, reply in exchange(self._grid, asked, self._settings.round_seconds):
                if not isinstance(reply, Refused):
                    take(site_of_node[node], reply)

        _say("the run failed; the sites are asked to erase what they hold of it")
        ask(refund.erase_requests(), refund.take_erased)
        ask(refund.refund_requests(), refund.take_refunded)
        self._outcome.refunded = list(refund.refunded)
        _say(f"sites that took back what they paid: {listed(refund.refunded)}")
        if refund.hindrance is None:
            everyone = len(refund.refunded) == len(self._roster.sites)
            return "nothing" if everyone else "what the other sites uploaded"
        self.may_ask_again = bool(refund.erase_requests())
        again = "; --give-up asks again" if self.may_ask_again else ""
        return f"all that was uploaded: {refund.hindrance}{again}"


def find_sites(
    grid: Grid, roster: Roster, seconds: float, outcome: Outcome, needed: int
) -> dict[int, int]:
    """Which node speaks for which site: each gets a challenge of its own, which the site signs, so
    that a node which lies cannot take a site's place.

    Waits for all sites; once time is up, as many as are needed will do. A node that does not
    answer yet, or whose agent is not up, is asked again.
    """
    end = time.monotonic() + seconds
    sites = len(roster.sites)
    node_of: dict[int, int] = {}
    strangers: set[int] = set()
    _say(f"waiting for {sites} sites")
    while len(node_of) < sites and (left := end - time.monotonic()) > 0:
        new = sorted(set(grid.get_node_ids()) - strangers - set(node_of.values()))
        asked = {node: new_challenge() for node in new}
        for node, reply in exchange(grid, asked.items(), min(_HELLO_SECONDS, left)):
            if isinstance(reply, Refused):
                outcome.nodes_left_out[str(node)] = str(reply)
                continue
            site = site_of(asked[node], reply, roster)
            if isinstance(site, int) and site in node_of:
                site = f"it says that it is site {site}, which is here already"
            if isinstance(site, str):
                strangers.add(node)
                outcome.nodes_left_out[str(node)] = site
                _say(f"node {node} is left out: {site}")
                continue
            node_of[site] = node
            outcome.nodes_left_out.pop(str(node), None)
            _say(f"site {site} ({roster.sites[site].name}) is here")
        time.sleep(_POLL)
    if len(node_of) < needed:
        raise ProtocolError(f"{len(node_of)} sites came; {needed} of {sites} are needed")
    return node_of


def _one_round(
    grid: Grid,
    run: Run,
    node_of: Mapping[int, int],
    settings: Settings,
    outcome: Outcome,
    before: list[RoundOver],
    name: str | None,
) -> None:
    """Ask every site, hand on what comes, and close the round when all have answered or time is
    up. ``before`` are this run's rounds that are over, and ``name`` is its sum's."""
    started, lost = time.monotonic(), set(run.lost)
    said = started

    def show(progress: RoundOpen) -> None:
        nonlocal said
        outcome.progress = progress
        outcome.write(settings.out)
        if time.monotonic() > said + _SAY_EVERY:
            said = time.monotonic()
            _say(str(progress))

    open_round = Round(grid, run, node_of, settings.round_seconds)
    open_round.conduct(Progress(run, before, show, name))
    round_, answered, rounds = str(run.round), len(run.answered), run.rounds
    try:
        run.close()
    finally:
        done = RoundOver(
            sum=name,
            round=round_,
            number=rounds.index(round_) + 1,
            of=len(rounds),
            answered=answered,
            bytes_out=open_round.bytes_out,
            bytes_in=open_round.bytes_in,
            lost=tuple(sorted(set(run.lost) - lost)),
            seconds=round(time.monotonic() - started, 3),
        )
        before.append(done)
        outcome.rounds.append(done)
        outcome.progress = None
        _say(str(done))


def _say(text: str) -> None:
    log(INFO, "capemix: %s", text)
