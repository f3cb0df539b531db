"""What a failed run cost is given back: by the ledger, by agents, by a coordinator that may die."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import AgentsEngine, allowing
from capemix import documents
from capemix.accounting.cost import Cost, response_rdp
from capemix.accounting.sampled import ORDERS
from capemix.agent import Agent
from capemix.data import LabeledRows, partition
from capemix.engines.flower import coordinator_app
from capemix.engines.flower import exchange as exchange_module
from capemix.engines.flower.app_folder import run_config
from capemix.engines.flower.coordinator_app import FlowerEngine
from capemix.engines.flower.envelope import pack, pack_refusal, unpack
from capemix.engines.flower.files import ENDED, Outcome, plan_text
from capemix.engines.flower.unfinished import Unfinished
from capemix.errors import BudgetError, CapemixError, InputError
from capemix.facts import Facts
from capemix.journal import Journal
from capemix.ledger import Account, Ledger, Limit, Way, chain
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.mixing import Mixing
from capemix.plan import Plan, make_plan
from capemix.protocol import wire
from capemix.protocol.chunks import LEAST_CHUNK
from capemix.protocol.coordinator import Run
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import COORDINATOR, Message, ProtocolError
from capemix.queries import Relation
from capemix.run import run as carry_out
from capemix.sums.steps import PublicMap
from conftest import Capemix
from world import World, assert_sum, counting_plan, identity, mixtures_of

SITES = 4
LIMIT = Limit(20.0, 1e-4)


# -- the account -----------------------------------------------------------------------------------


def gaussian(squared: float, distance: float = 0.0, growth: float = 0.0) -> Cost:
    curve = {order: order * squared / 2 for order in ORDERS}
    return Cost(
        Relation.ADD_REMOVE, 1.0, 1e-6, curve, 1e-7, distance, squared=squared, growth=growth
    )


def response(epsilon: float) -> Cost:
    curve = {order: response_rdp(epsilon, 2, order) for order in ORDERS}
    return Cost(Relation.ADD_REMOVE, epsilon, 1e-6, curve)


COSTS = st.one_of(
    st.builds(gaussian, st.sampled_from([0.001, 0.02]), st.just(1e-20), st.just(1e-9)),
    st.builds(response, st.sampled_from([0.05, 0.3])),
)


def same(found: Account, expected: Account) -> bool:
    """But for the rounding of sums of doubles."""

    def close(one: float, other: float) -> bool:
        return one == other or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-15)

    def pairs(one: Any, other: Any) -> list[tuple[float, float]]:
        names = [f.name for f in fields(one) if isinstance(getattr(one, f.name), (int, float))]
        return [(getattr(one, name), getattr(other, name)) for name in names]

    curves = [(v, expected.total.curve[a]) for a, v in found.total.curve.items()]
    numbers = [*pairs(found, expected), *pairs(found.total, expected.total), *curves]
    return found.terms == expected.terms and all(close(*pair) for pair in numbers)


@settings(max_examples=60)
@given(before=st.lists(COSTS, max_size=3), failed=COSTS, after=st.lists(COSTS, max_size=3))
def test_without_a_charge_an_account_is_where_it_was(
    before: list[Cost], failed: Cost, after: list[Cost]
) -> None:
    """Whatever was charged before and after it: what is fixed stays so, and nothing else."""
    account = Account(LIMIT)
    for cost in before:
        account = account.charged(cost, Way.CURVE) if account.terms else _admitted(account, cost)
    fixed = _admitted(account, failed) if account.terms is None else account
    charged = account.fixed(fixed.terms).charged(failed, Way.CURVE)
    straight = account.fixed(fixed.terms)
    for cost in after:
        charged, straight = (each.charged(cost, Way.CURVE) for each in (charged, straight))
    found = charged.refunded(failed, Way.CURVE, charged.terms)
    if failed.squared is None:
        assert found.squared == math.inf  # and stays so
        found, straight = (
            replace(each, squared=0.0, total=replace(each.total, squared=0.0))
            for each in (found, straight)
        )
    assert same(found, straight)


def _admitted(account: Account, cost: Cost) -> Account:
    admitted = account.admit(cost)
    assert admitted is not None
    return admitted[0]


def test_what_was_set_aside_when_the_terms_were_fixed_is_gone_for_good() -> None:
    """It bounds what may be released, which no outcome of a run may raise."""
    alone = Cost(Relation.ADD_REMOVE, 0.1, 2e-5, {})
    early = Account(LIMIT).charged(alone, Way.ALONE)
    assert early.terms is None
    back = early.refunded(alone, Way.ALONE, None)
    assert back.aside == back.divergence == 0.0
    assert back.total.charges == 0
    later = _admitted(early, gaussian(0.001))
    found = later.refunded(alone, Way.ALONE, None)
    assert (found.terms, found.gone) == (later.terms, alone.delta)
    assert found.aside == later.aside
    assert found.divergence == pytest.approx(later.divergence - 0.1)
    assert found.squared == math.inf
    under = later.charged(alone, Way.ALONE)  # one that was charged under the terms is given back
    assert under.refunded(alone, Way.ALONE, later.terms).aside == pytest.approx(later.aside)


# -- the ledger ------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.open(tmp_path / "ledger.db")
    made.set_limit("people", LIMIT)
    return made


def test_a_refund_is_a_line_that_names_the_one_it_takes_back(
    ledger: Ledger, capemix: Capemix
) -> None:
    people = ledger.lineage("people")
    people.charge("upload", gaussian(0.01), run="one")
    before = people.account()
    people.charge("upload", gaussian(0.02), run="two")
    assert people.charged("two")
    people.refund("two")
    assert not people.charged("two")
    for known in (people.account(), Ledger.open(ledger.path).lineage("people").account()):
        assert same(known, before)
    line = ledger.lines()[-1]
    assert {name: line.entry[name] for name in ("kind", "line", "run", "of")} == {
        "kind": "refund",
        "line": 4,
        "run": "two",
        "of": 3,
    }
    assert same(line.account, before)
    assert ledger.verify().lines == 4
    place = ("--ledger", ledger.path)
    assert capemix("ledger", "verify", *place).code == 0
    assert "refund of line 3" in capemix("ledger", "show", "people", *place).out
    shown = capemix("ledger", "show", *place, "--json").json["lines"]
    assert shown[-1]["used"] == pytest.approx(shown[1]["used"])
    assert capemix("ledger", "refund", "people", "two", *place).code == 2  # nobody can type it
    with pytest.raises(BudgetError, match="was charged already"):
        people.charge("upload", gaussian(0.02), run="two")
    assert people.knows("two")


@pytest.mark.parametrize("run", ["two", "joined", "never", "others"])
def test_nothing_is_refunded_twice_or_for_nothing(ledger: Ledger, run: str) -> None:
    people = ledger.lineage("people")
    people.charge("upload", gaussian(0.01), run="two")
    people.join("joined", 10)
    ledger.set_limit("strangers", LIMIT)
    ledger.charge("strangers", "upload", gaussian(0.01), run="others")
    people.refund("two")
    before = ledger.head()
    with pytest.raises(BudgetError, match="was not charged, or was refunded already"):
        people.refund(run)
    assert ledger.head() == before


@pytest.mark.parametrize(
    "forged",
    [
        {"run": "two", "of": 2},  # of another run's line
        {"run": "one", "of": 1},  # of a limit
        {"run": "one", "of": 2, "lineage": "strangers"},
        {"run": "refunded", "of": 4},  # a second time
        {"run": "one"},
    ],
)
def test_a_refund_that_was_written_by_hand_is_seen(ledger: Ledger, forged: dict[str, Any]) -> None:
    """With right hashes, which only say that nothing was edited after they were made."""
    people = ledger.lineage("people")
    for run in ("one", "two", "refunded"):
        people.charge("upload", gaussian(0.01), run=run)
    people.refund("refunded")
    ledger.set_limit("strangers", LIMIT)
    with closing(sqlite3.connect(ledger.path)) as database, database:
        number, before = database.execute(
            "SELECT line, hash FROM entries ORDER BY line DESC"
        ).fetchone()
        entry = {"kind": "refund", "lineage": "people", "line": number + 1, "previous": before}
        text = chain.text_of({**entry, "time": "2026-01-01T00:00:00+00:00", **forged})
        row = (number + 1, text, chain.hash_of(text))
        database.execute("INSERT INTO entries VALUES (?, ?, ?)", row)
    for use in (ledger.verify, ledger.lines, ledger.accounts, Ledger.open(ledger.path).accounts):
        with pytest.raises(InputError, match="cannot be read"):
            use()


# -- agents ----------------------------------------------------------------------------------------


def some_rows() -> LabeledRows:
    rng = np.random.default_rng(0)
    return LabeledRows(
        features=rng.random((200, 2)),
        labels=(np.arange(200) % 2).astype(np.int64),
        classes=("no", "yes"),
        feature_names=("a", "b"),
        label_name="y",
    )


def a_plan(method: Any = None, **changed: Any) -> Plan:
    """With everything declared it is one sum; ``sizes`` None has opening sums first."""
    asked: dict[str, Any] = {"class_sizes": (100, 100), "normalise": PublicMap(), **changed}
    facts = Facts.of(some_rows(), **asked)
    who = {"scheme": "cape", "sites": SITES, "colluding": 1, "dropouts": 1}
    return make_plan(facts, method or Mixing(samples=20, mixture=8), **who).calibrate(1.0)


def an_engine(folder: Path, plan: Plan, **changed: Any) -> AgentsEngine:
    parts = partition(some_rows(), SITES, "stratified", seed=0)
    return AgentsEngine(folder, allowing(plan, **changed), parts)


def losing(engine: AgentsEngine, round_: str, *sites: int, name: str | None = None) -> None:
    """These sites are silent in that round (of the sum with that name), and in no other."""
    steps: dict[str, str] = {}

    def carry(site: int, raw: bytes) -> bytes:
        asked = wire.parse(raw)
        if asked.round == "plan":
            steps[asked.run] = asked.body["step"]["sum"]
        if asked.round == round_ and site in sites and name in (None, steps[asked.run]):
            raise ProtocolError("silence")
        return engine.agents[site].answer(raw)

    engine.carry = carry


def used(engine: AgentsEngine) -> list[float]:
    return [lineage.account().used for lineage in engine.lineages]


@pytest.mark.parametrize("round_", ["upload", "chunk", "agree", "unmask"])
def test_a_run_that_failed_before_it_was_unmasked_costs_nobody_anything(
    tmp_path: Path, round_: str
) -> None:
    plan = a_plan()
    engine = an_engine(tmp_path / "agents", plan)
    lost = (0, 1, 2) if round_ == "unmask" else (1, 2)
    losing(engine, round_, *lost)
    with pytest.raises(ProtocolError):
        carry_out(plan, engine)
    # With one of four to reveal, the other three are enough; who revealed has paid.
    paid = [3] if round_ == "unmask" else []
    assert engine.refunded == tuple(site for site in range(SITES) if site not in paid)
    assert [site for site, part in enumerate(used(engine)) if part > 0] == paid
    kinds = [line.entry["kind"] for line in engine.lineages[0].ledger.lines()]
    uploaded = 0 not in lost or round_ != "upload"
    assert kinds == ["limit", *(["charge", "refund"] if uploaded else [])]
    events = [e["event"] for e in Journal.beside(engine.lineages[0].ledger.path).events()]
    assert events == ["accepted", *(["charged", "refunded"] if uploaded else [])]
    engine.carry = lambda site, raw: engine.agents[site].answer(raw)
    if not paid:  # the limit is one release: it fits again
        carry_out(plan, engine)
        assert min(used(engine)) > 0.9


def test_too_few_erasures_give_nothing_back(tmp_path: Path) -> None:
    """Two of four have revealed, and a third may lie: what is masked could come out."""
    plan = a_plan()
    engine = an_engine(tmp_path / "agents", plan)
    losing(engine, "unmask", 1, 2)
    with pytest.raises(ProtocolError, match="2 sites revealed; 3 are needed"):
        carry_out(plan, engine)
    assert engine.refunded == ()
    other = an_engine(tmp_path / "others", plan)
    losing(other, "agree", 1, 2)
    carry = other.carry

    def but_two(site: int, raw: bytes) -> bytes:
        if wire.parse(raw).round == "erase" and site in (1, 2):
            raise ProtocolError("silence")
        return carry(site, raw)

    other.carry = but_two
    with pytest.raises(ProtocolError, match="2 sites agreed"):
        carry_out(plan, other)
    assert other.refunded == ()
    assert min(used(engine) + used(other)) > 0.9


class Failing:
    """A release whose first run has uploads in, and a coordinator that signs whatever it likes."""

    def __init__(self, folder: Path, plan: Plan, **changed: Any) -> None:
        self.plan, self.engine = plan, an_engine(folder, plan, **changed)
        self.run = self.upload(ReleaseStep(bytes(16), plan, plan.names[0], self.statistic()))

    def statistic(self) -> Any:
        """Of the release's first sum."""
        found: list[Any] = []

        class Asked(Exception):
            pass

        class Engine(AgentsEngine):
            def __init__(self) -> None: ...

            def check(self, plan: Plan) -> None: ...

            def sum(self, plan: Plan, query: Any) -> Any:  # noqa: ARG002
                found.append(query.summed)
                raise Asked

        engine = Engine()
        engine._seed = None
        with pytest.raises(Asked):
            carry_out(self.plan, engine)
        return found[0]

    def upload(self, step: ReleaseStep) -> Run:
        run = self.engine.run_of(step.plan, step.name, step.statistic)
        while run.round != "agree":
            for site, raw in list(run.requests()):
                run.receive(site, self.engine.agents[site].answer(raw))
            for site, index in list(run.wanted()):
                raw = run.chunk_request(site, index)
                run.receive_chunk(site, index, self.engine.agents[site].answer(raw))
            run.close()
        return run

    def unmask(self, run: Run) -> Any:
        while run.round is not None:
            for site, raw in list(run.requests()):
                run.receive(site, self.engine.agents[site].answer(raw))
            run.close()
        return run.release_sums()

    def erased(self, run: Run, *sites: int) -> dict[str, str]:
        raw = self.signed(run, "erase", {})
        replies = {site: self.engine.agents[site].answer(raw) for site in sites}
        return {str(site): wire.parse(raw).signature.hex() for site, raw in replies.items()}

    def signed(self, run: Run, round_: str, body: dict[str, Any]) -> bytes:
        message = Message(round_, COORDINATOR, body)
        return wire.seal(run._context, self.engine._coordinator, message)

    def refund(self, run: Run, site: int, erased: dict[str, str]) -> bytes:
        return self.engine.agents[site].answer(self.signed(run, "refund", {"erased": erased}))

    def charges(self, site: int = 0) -> int:
        return self.engine.lineages[site].account().total.charges


def test_a_forged_refund_or_one_of_too_few_is_refused(tmp_path: Path) -> None:
    failing = Failing(tmp_path / "agents", a_plan())
    run = failing.run
    with pytest.raises(ProtocolError, match="stays paid"):  # before it erased anything
        failing.refund(run, 0, {})
    signed = failing.erased(run, 0, 1, 2)
    stranger = identity("a stranger")
    forged = wire.seal(run._context, stranger, Message("refund", -1, {"erased": signed}))
    with pytest.raises(ProtocolError, match="signature"):
        failing.engine.agents[0].answer(forged)
    bad = wire.sign(run._context, stranger, Message("erased", 2, {}))
    for few in ({}, {"0": signed["0"]}, {**signed, "2": bad}, {**signed, "2": signed["1"]}):
        with pytest.raises(ProtocolError, match="stays paid"):
            failing.refund(run, 0, few)
    assert failing.charges() == 1
    failing.refund(run, 0, signed)
    assert failing.charges() == 0


def test_whoever_was_refunded_answers_that_run_never_again(tmp_path: Path) -> None:
    failing = Failing(tmp_path / "agents", a_plan())
    run, agents = failing.run, failing.engine.agents
    agree = dict(run.requests())[0]
    signed = failing.erased(run, 0, 1, 2)
    failing.refund(run, 0, signed)
    begun_anew = Agent(agents[0]._state)
    for agent in (agents[0], begun_anew):
        for raw in (agree, run.chunk_request(0, 0)):
            with pytest.raises(ProtocolError, match=r"left the run|no upload|been in that run"):
                agent.answer(raw)
    for round_ in ("erase", "refund"):
        with pytest.raises(ProtocolError, match="has been in that run already"):
            begun_anew.answer(failing.signed(run, round_, {"erased": signed}))
    lines = failing.engine.lineages[0].ledger.lines()
    assert [line.entry["kind"] for line in lines] == ["limit", "charge", "refund"]


def test_a_run_that_was_unmasked_is_never_refunded(tmp_path: Path) -> None:
    failing = Failing(tmp_path / "agents", a_plan())
    failing.unmask(failing.run)
    for site in range(SITES):
        with pytest.raises(ProtocolError, match="has revealed its shares"):
            failing.erased(failing.run, site)
        with pytest.raises(ProtocolError, match="stays paid"):
            failing.refund(failing.run, site, {})
    assert failing.charges() == 1


def test_a_refund_said_twice_is_answered_alike_and_written_once(tmp_path: Path) -> None:
    failing = Failing(tmp_path / "agents", a_plan())
    signed = failing.erased(failing.run, 0, 1, 2, 3)
    assert failing.refund(failing.run, 0, signed) == failing.refund(failing.run, 0, signed)
    lines = failing.engine.lineages[0].ledger.lines()
    assert [line.entry["kind"] for line in lines] == ["limit", "charge", "refund"]


@pytest.mark.parametrize("written", [False, True])
def test_an_agent_that_breaks_off_around_the_refund_line_can_be_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """Before the line, or after it and before the reply: either way it is written once."""
    failing = Failing(tmp_path / "agents", a_plan())
    signed = failing.erased(failing.run, 0, 1, 2, 3)
    ledger = failing.engine.lineages[0].ledger

    def breaks_off(lineage: str, run: str) -> None:
        if written:
            Ledger(ledger.path).refund(lineage, run)
        raise CapemixError("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "refund", breaks_off)
        with pytest.raises(CapemixError, match="the power is gone"):
            failing.refund(failing.run, 0, signed)
    assert failing.charges() == (not written)
    first = failing.refund(failing.run, 0, signed)
    assert wire.parse(first).round == "refunded"
    assert first == failing.refund(failing.run, 0, signed)
    assert failing.charges() == 0
    kinds = [line.entry["kind"] for line in ledger.lines()]
    assert kinds == ["limit", "charge", "refund"]


def of_several_sums() -> Plan:
    """Its opening sums are paid for with the first of them."""
    return a_plan(class_sizes=None, normalise=None)


def next_step(failing: Failing) -> ReleaseStep:
    """What the second sum of the release is, in truth."""
    plan = failing.plan
    made = failing.unmask(failing.run)
    found: list[ReleaseStep] = []

    class Stop(Exception):
        pass

    class Engine:
        def check(self, plan: Plan) -> None: ...

        def origin(self, plan: Plan) -> Any:
            return failing.engine.origin(plan)

        def list_classes(self, *_asked: object) -> dict[str, float]:
            raise AssertionError

        def sum(self, plan: Plan, query: Any) -> Any:
            if query.name == plan.names[0]:
                return made
            found.append(ReleaseStep(bytes(16), plan, query.name, query.summed))
            raise Stop

    with pytest.raises(Stop):
        carry_out(plan, Engine())
    return found[0]


def test_a_charge_that_paid_for_a_later_sum_is_not_given_back(tmp_path: Path) -> None:
    """A coordinator leaves the first sum masked, has the second one made, which the first one's
    charge paid for, and then asks for the first one's refund."""
    plan = of_several_sums()
    step = next_step(Failing(tmp_path / "true", plan))
    failing = Failing(tmp_path / "agents", plan)
    before = failing.engine.lineages[0].account()
    second = failing.upload(step)
    assert failing.engine.lineages[0].account().total.epsilon == before.total.epsilon
    signed = failing.erased(failing.run, 0, 1, 2, 3)
    with pytest.raises(ProtocolError, match="a later sum of the release was uploaded"):
        failing.refund(failing.run, 0, signed)
    assert failing.charges() == 2
    failing.unmask(second)


@pytest.mark.parametrize("whole", [False, True])
def test_a_release_is_over_at_a_site_that_took_back_what_it_paid(
    tmp_path: Path, whole: bool
) -> None:
    """Otherwise its later sums, which the first one's charge paid for, would cost nothing. The
    same where the release was charged as a whole."""
    plan = of_several_sums()
    step = next_step(Failing(tmp_path / "true", plan))
    failing = Failing(tmp_path / "agents", plan)
    agents = failing.engine.agents
    if whole:
        for agent in agents:
            run, last = agent._releases[bytes(16)]
            assert last is not None
            agent._releases[bytes(16)] = run, replace(last, paid=True)
    agreed = failing.engine.run_of(step.plan, step.name, step.statistic)
    while agreed.round != "upload":  # the second sum is agreed to before the refund
        for site, raw in list(agreed.requests()):
            agreed.receive(site, failing.engine.agents[site].answer(raw))
        agreed.close()
    signed = failing.erased(failing.run, 0, 1, 2, 3)
    for site, agent in enumerate(agents):
        failing.refund(failing.run, site, signed)
        assert failing.charges(site) == 0
        assert agent._releases[bytes(16)][1] is None
    with pytest.raises(ProtocolError, match="not in the release's earlier sums"):
        agents[0].answer(dict(agreed.requests())[0])
    assert "not in the release's earlier" in str(
        failing.engine.declined(step.plan, step.name, step.statistic)
    )
    again = failing.upload(failing_first(failing))
    assert failing.charges() == 1  # from the beginning it may be made, and is paid for
    assert again.round == "agree"


def failing_first(failing: Failing) -> ReleaseStep:
    plan = failing.plan
    return ReleaseStep(bytes(16), plan, plan.names[0], failing.statistic())


def test_of_a_release_of_several_sums_the_one_that_failed_is_given_back(tmp_path: Path) -> None:
    plan = a_plan(ClassGaussian(samples=20), class_sizes=None)
    engine = an_engine(tmp_path / "agents", plan)
    failing = plan.names[2]
    losing(engine, "agree", 1, 2, name=failing)
    with pytest.raises(ProtocolError, match="2 sites agreed"):
        carry_out(plan, engine)
    assert engine.refunded == (0, 1, 2, 3)
    for lineage in engine.lineages:
        entries = [line.entry for line in lineage.ledger.lines()]
        assert [entry["kind"] for entry in entries] == ["limit", *["charge"] * 3, "refund"]
        assert failing in entries[entries[-1]["of"] - 1]["what"]
        assert lineage.account().total.charges == 2


# -- a coordinator over Flower, which may die ------------------------------------------------------


class Sites:
    """Sites behind nodes of their own numbers. The coordinator dies at the ``last``-th message, and
    the sites ``lost`` leave the rounds ``rounds`` without an answer."""

    def __init__(self, world: World, last: int, rounds: str, lost: tuple[int, ...]) -> None:
        self.world, self.left, self.rounds, self.lost = world, last, rounds.split(), lost
        self.under_way: dict[str, tuple[int, bytes]] = {}
        self.sent: list[tuple[int, bytes]] = []

    def push_messages(self, messages: Any) -> Any:
        for message in messages:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            name = f"m{len(self.sent)}"
            self.under_way[name] = message.dst_node_id, unpack(message.content)
            self.sent.append(self.under_way[name])
            yield name

    def pull_messages(self, ids: Any) -> Any:
        for sent in ids:
            site, raw = self.under_way.pop(sent)
            asked = wire.parse(raw).round
            own = self.world.sites[site]
            try:
                if asked in self.rounds and site in self.lost:
                    raise ProtocolError("busy")
                content = pack(own.chunk(raw) if asked == "chunk" else own.answer(raw))
            except ProtocolError as error:
                content = pack_refusal(str(error))
            yield SimpleNamespace(content=content, has_error=lambda: False)


@pytest.fixture
def no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own messages can only be made inside one of its tasks."""
    monkeypatch.setattr(
        exchange_module, "Message", lambda content, **more: SimpleNamespace(content=content, **more)
    )
    monkeypatch.setattr(coordinator_app, "_say", lambda _text: None)


@pytest.fixture
def conduct(tmp_path: Path, no_task: None) -> Callable[..., tuple[Outcome, Any]]:  # noqa: ARG001
    """One sum by the coordinator's engine, begun or gone on with."""
    plan, out = counting_plan(4, 1, 1), tmp_path / "release"

    def conducted(grid: Any, *, give_up: bool = False) -> tuple[Outcome, Any]:
        wanted: Any = SimpleNamespace(
            out=out, chunk_bytes=LEAST_CHUNK, round_seconds=2.0, give_up=give_up
        )
        unfinished = Unfinished(out, plan, grid.world.roster)
        nodes, outcome = {site: site for site in range(4)}, Outcome()
        engine = FlowerEngine(
            grid, wanted, outcome, grid.world.roster, identity("coordinator"), nodes, unfinished
        )
        found: Any = None
        try:
            found = engine.sum(plan, mixtures_of(plan))
        except ProtocolError as error:
            outcome.reason = str(error)
        return outcome, found

    return conducted


def rounds_of(grid: Sites) -> list[str]:
    return [wire.parse(raw).round for _, raw in grid.sent]


def test_a_coordinator_asks_all_it_can_reach_and_says_who_took_it_back(
    tmp_path: Path, conduct: Callable[..., tuple[Outcome, Any]]
) -> None:
    grid = Sites(World(counting_plan(4, 1, 1), tmp_path / "unused"), 1000, "agree", (1, 2))
    outcome, _ = conduct(grid)
    assert outcome.reason == "2 sites agreed; 3 are needed"
    assert outcome.refunded == [0, 1, 2, 3]
    assert rounds_of(grid)[-8:] == ["erase"] * 4 + ["refund"] * 4
    assert all(site.refunded for site in grid.world.sites)


@pytest.mark.parametrize("last", range(24, 34))
def test_a_coordinator_that_dies_goes_on_with_the_refund(
    tmp_path: Path, conduct: Callable[..., tuple[Outcome, Any]], last: int
) -> None:
    """At each message after the uploads: what was said is said again to the byte, and no round of
    the run is opened any more."""
    world = World(counting_plan(4, 1, 1), tmp_path / "unused")
    first, second = (Sites(world, n, "agree", (1, 2)) for n in (last, 1000))
    with suppress(KeyboardInterrupt):
        conduct(first)
    assert len(first.sent) == last, "the run has other messages than this test thinks"
    outcome, _ = conduct(second)
    assert outcome.refunded == [0, 1, 2, 3]
    asked: dict[tuple[int, str, str], set[bytes]] = {}
    for site, raw in (*first.sent, *second.sent):
        message = wire.parse(raw)
        asked.setdefault((site, message.round, str(message.body.get("index"))), set()).add(raw)
    assert all(len(of) == 1 for of in asked.values())
    if "erase" in rounds_of(first):
        assert set(rounds_of(second)) <= {"erase", "refund"}
    if "refund" in rounds_of(first):
        assert set(rounds_of(second)) == {"refund"}


def test_a_release_that_is_given_up_is_refunded(
    tmp_path: Path, conduct: Callable[..., tuple[Outcome, Any]]
) -> None:
    """By a coordinator that died in the midst of it and was begun again for this."""
    world = World(counting_plan(4, 1, 1), tmp_path / "unused")
    first, second = (Sites(world, n, "none", ()) for n in (25, 1000))
    with pytest.raises(KeyboardInterrupt):
        conduct(first)
    outcome, _ = conduct(second, give_up=True)
    assert outcome.reason == "it was given up"
    assert outcome.refunded == [0, 1, 2, 3]
    assert set(rounds_of(second)) == {"erase", "refund"}


@pytest.mark.usefixtures("no_task")
def test_only_what_was_begun_is_given_up(tmp_path: Path) -> None:
    """Before any site is looked for."""
    plan = a_plan()
    engine = an_engine(tmp_path / "agents", plan)
    (tmp_path / "plan.json").write_text(plan_text(plan))
    (tmp_path / "roster.json").write_text(json.dumps(documents.as_json(engine.roster)))
    config = run_config(
        plan=tmp_path / "plan.json",
        roster=tmp_path / "roster.json",
        identity=tmp_path / "agents" / "coordinator.key",
        out=tmp_path / "release",
    )
    context: Any = SimpleNamespace(run_config={**config, "give-up": True})
    grid: Any = None
    with pytest.raises(InputError, match="has no unfinished release beside it"):
        coordinator_app.main(grid, context)
    assert not Unfinished.begun(tmp_path / "release")


@pytest.mark.parametrize("last", [0, 9])
def test_a_release_that_is_given_up_before_anyone_paid_asks_nobody(
    tmp_path: Path, conduct: Callable[..., tuple[Outcome, Any]], last: int
) -> None:
    world = World(counting_plan(4, 1, 1), tmp_path / "unused")
    first, second = (Sites(world, n, "none", ()) for n in (last, 1000))
    with pytest.raises(KeyboardInterrupt):
        conduct(first)
    outcome, _ = conduct(second, give_up=True)
    assert (outcome.reason, outcome.refunded, second.sent) == ("it was given up", [], [])
    assert outcome.paid == "nothing: no site was asked for an upload"


@pytest.mark.parametrize(
    ("rounds", "paid"),
    [
        ("agree", "nothing"),
        (
            "unmask",
            "all that was uploaded: 2 of 4 sites have revealed shares, and 3 must erase theirs",
        ),
        (
            "agree erase",
            "all that was uploaded: 2 of 4 sites signed that they erased their shares, 3 must;"
            " --give-up asks again",
        ),
        ("agree refund", "what the other sites uploaded"),
    ],
)
def test_an_outcome_says_what_stays_paid_and_why(
    tmp_path: Path, conduct: Callable[..., tuple[Outcome, Any]], rounds: str, paid: str
) -> None:
    world = World(counting_plan(4, 1, 1), tmp_path / "unused")
    outcome, _ = conduct(Sites(world, 1000, rounds, (1, 2)))
    assert outcome.paid == paid


def test_gaussian_masks_are_the_reason_why_nothing_is_given_back(
    tmp_path: Path,
) -> None:
    world = World(counting_plan(4, 1, 1, masks="gaussian"), tmp_path)
    while world.run.round != "agree":
        for site, raw in list(world.run.requests()):
            answer = world.ask(site, raw)
            assert answer is not None
            world.bring(site, answer)
        world.run.close()
    world.run.fail("it was given up")
    refund = world.run.refund()
    assert refund is not None
    assert "Gaussian masks" in str(refund.hindrance)
    assert (refund.erase_requests(), refund.refund_requests()) == ({}, {})


@pytest.mark.usefixtures("no_task")
def test_whoever_was_out_of_reach_can_be_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run fails because two sites of four are away, and so do the refunds. The coordinator keeps
    what it needs to ask them once they are back."""
    plan, out = counting_plan(4, 1, 1), tmp_path / "release"
    world = World(plan, tmp_path / "unused")
    for name, value in {
        "read_plan_file": lambda _path: plan,
        "load_identity": lambda _path: identity("coordinator"),
        "find_sites": lambda *_: {site: site for site in range(4)},
        "run": lambda plan, engine: engine.sum(plan, mixtures_of(plan)),
    }.items():
        monkeypatch.setattr(coordinator_app, name, value)
    (tmp_path / "roster.json").write_text(json.dumps(documents.as_json(world.roster)))
    paths = {name: tmp_path / name for name in ("plan", "identity")}
    config = run_config(**paths, roster=tmp_path / "roster.json", out=out, round_seconds=2.0)

    def ended(grid: Any, **more: Any) -> Outcome:
        context: Any = SimpleNamespace(run_config={**config, **more})
        with pytest.raises(ProtocolError):
            coordinator_app.main(grid, context)
        found = Outcome.read(out)
        assert found is not None
        assert (found.status, found.reason) == (ENDED, "2 sites agreed; 3 are needed")
        return found

    found = ended(Sites(world, 1000, "agree erase", (1, 2)))
    assert found.refunded == []
    assert "--give-up asks again" in str(found.paid)
    found = ended(Sites(world, 1000, "none", ()), **{"give-up": True})
    assert (found.refunded, found.paid) == ([0, 1, 2, 3], "nothing")
    assert not Unfinished.begun(out)


def test_a_sum_that_is_all_in_is_made_and_not_given_up(
    tmp_path: Path, conduct: Callable[..., tuple[Outcome, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(counting_plan(4, 1, 1), tmp_path / "unused")
    first, second = (Sites(world, 1000, "none", ()) for _ in range(2))

    def dies(_run: Run) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "release_sums", dies)
        with pytest.raises(KeyboardInterrupt):
            conduct(first)
    _, found = conduct(second, give_up=True)
    assert_sum(found, (0, 1, 2, 3))
    assert second.sent == []
