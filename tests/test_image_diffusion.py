"""Images by a network that private sums of gradients teach: what a record adds, what all of it
costs and that it is the same release however it is carried out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from capemix import run as run_module
from capemix.accounting.sampled import epsilon_pld, epsilon_rdp
from capemix.audit.measure import measure
from capemix.audit.programs import Program
from capemix.collector import Collector
from capemix.data import LabeledRows
from capemix.data.partition import partition
from capemix.data.rows import pixel_names
from capemix.engines.flower.local import run_on_loopback
from capemix.engines.in_process import InProcessEngine
from capemix.engines.local import LocalEngine
from capemix.errors import InputError
from capemix.facts import CLASS_SIZES, Facts
from capemix.ledger import Account, Limit
from capemix.methods.base import Method, SyntheticRows
from capemix.methods.image_clusters.estimate import LABELS
from capemix.methods.image_diffusion import ImageDiffusion, training
from capemix.methods.image_diffusion.settings import GRADIENTS, RATE
from capemix.methods.measured import counts_of
from capemix.plan import Plan, make_plan
from capemix.protocol.demands import demands_of
from capemix.protocol.policy import Policy
from capemix.queries import COUNTED, Participation, QueryShape, Relation
from capemix.randomness.source import SeededSource
from capemix.run import run
from capemix.statistics.check import added, check_records
from capemix.statistics.denoiser import Floating, Whole, said, told_of
from capemix.statistics.denoising import DenoisingGradients, Network, noise_of, tables_on
from capemix.sums.share import share_bytes
from capemix.sums.steps import PublicMap

SIDE = 8
WAY = PublicMap.of_range(0, 255)
NETWORK = Network((SIDE, SIDE), 2, channels=4, about=8, noises=2)
SMALL = ImageDiffusion(samples=40, rounds=2, channels=4, noises=1, warm_steps=2)
OF_IMAGES = Facts(pixel_names((SIDE, SIDE)), "y", (0, 1), normalise=WAY, image_shape=(SIDE, SIDE))
THREE = {"scheme": "cape", "sites": 3, "colluding": 1}


def images(count: int, seed: int = 0, side: int = SIDE) -> LabeledRows:
    """A bar that lies, higher or lower."""
    rng = np.random.default_rng(seed)
    pixels, labels = rng.integers(0, 60, (count, side, side)), np.arange(count) % 2
    for image, label in zip(pixels, labels, strict=True):
        image[2 + 3 * label] = 250
    return LabeledRows(
        pixels.reshape(count, -1).astype(np.uint8),
        labels.astype(np.int64),
        (0, 1),
        pixel_names((side, side)),
        "y",
        (side, side),
    )


def weights(size: float, network: Network = NETWORK) -> npt.NDArray[np.float64]:
    with np.errstate(all="ignore"):
        return np.asarray(np.random.default_rng(1).normal(size=network.weights) * size)


def asked(size: float = 0.3, network: Network = NETWORK, clip: float = 0.1) -> DenoisingGradients:
    return DenoisingGradients(network, WAY, weights(size, network), clip, "a round")


# -- what a record adds ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0.0, 1e-20, 0.1, 1.0, 30.0, 1e300, math.nan, math.inf])
@pytest.mark.parametrize("lattice", [None, 1, 500, 32_767])
def test_no_image_adds_more_than_the_bound_whatever_the_weights_are(
    size: float, lattice: int | None
) -> None:
    rng = np.random.default_rng(2)
    rows = rng.uniform(-300, 600, size=(24, SIDE**2))
    rows[0], rows[1, 3], rows[2], rows[3] = math.nan, math.nan, math.inf, 1e300
    rows[4], rows[5], rows[6] = -1e308, 5e-324, rows[7]
    check_records(asked(size), rows, rng.integers(-1, 2, 24), lattice)


@pytest.mark.parametrize("place", [0, 1_000, -1])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1e38, 1e3])
def test_one_hostile_weight_makes_no_record_longer(place: int, value: float) -> None:
    given = weights(0.3)
    given[place] = value
    found = added(replace(asked(), weights=given), *_of(images(6)), 32_767)
    assert np.isfinite(found).all()
    check_records(replace(asked(), weights=given), *_of(images(6)), 32_767)


def test_gradients_are_shortened_to_nearly_the_bound_and_short_ones_are_left() -> None:
    one = _of(images(1))
    long, short = added(asked(), *one, 32_767), added(asked(clip=1e4), *one, 32_767)
    assert 0.99 * 32_767 < np.linalg.norm(long) <= 32_767
    assert 1_000 < np.linalg.norm(short) < 10_000
    assert long.ravel() @ short.ravel() > 0.99 * np.linalg.norm(long) * np.linalg.norm(short)


def test_a_gradient_in_whole_numbers_is_that_in_floating_point() -> None:
    network = replace(NETWORK, channels=8, about=16)
    given = torch.from_numpy(weights(0.1, network).astype(np.float32))
    features, labels = _of(images(3))
    statistic = asked(0.1, network)
    rows, keys = statistic._rows(features, labels)
    how = Whole(network, given.numpy(), "cpu")
    found = statistic._gradients(how, rows, labels, keys, "cpu")
    whole = torch.cat([part * unit[:, None] for part, unit in found], 1)
    tables = tables_on("cpu")
    levels, normals = noise_of(torch.from_numpy(keys), network, tables)
    x = torch.from_numpy(rows).repeat_interleave(2, 0)
    inner, skip, outer, deviation = (part[levels][:, None] for part in tables[:4])
    noisy = x + deviation * normals
    told = told_of(network, levels, torch.tensor(labels).repeat_interleave(2), tables[4])
    for record in range(3):
        own, some = given.clone().requires_grad_(), slice(2 * record, 2 * record + 2)
        seen = (inner * noisy)[some].reshape(-1, SIDE, SIDE)
        error = said(network, Floating(network, own), seen, told[some]).reshape(2, -1)
        (error - ((x - skip * noisy) / outer)[some]).square().mean().backward()
        assert own.grad is not None
        assert (whole[record] - own.grad).norm() < 0.05 * own.grad.norm()


@pytest.mark.parametrize("threads", [1, 3])
def test_what_records_add_does_not_depend_on_whom_they_are_drawn_with(threads: int) -> None:
    """To the last bit: in any order and any split, and more than are gone through at once."""
    network = Network((12, 8), 2, channels=12, about=20, noises=3)
    features, labels = _of(images(41, side=12))
    features, statistic = features[:, :96], asked(0.2, network)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = added(statistic, features, labels, 32_767)
        for cuts in ([0, 1, 17, 41], [0, 20, 21, 41]):
            parts = [slice(a, b) for a, b in pairwise(cuts)]
            each = [added(statistic, features[part], labels[part], 32_767) for part in parts]
            assert (sum(each) == whole).all()
        order = np.random.default_rng(0).permutation(41)
        assert (added(statistic, features[order], labels[order], 32_767) == whole).all()
    finally:
        torch.set_num_threads(before)


def test_noises_are_a_records_own_and_new_in_every_round() -> None:
    features, labels = _of(images(2))
    (_, first), (_, again) = (asked()._rows(features[::way], labels[::way]) for way in (1, -1))
    assert (first == again[::-1]).all()
    (_, other) = replace(asked(), seed="another")._rows(features, labels)
    assert not set(first.tolist()) & set(other.tolist())
    keys = torch.from_numpy(np.arange(400) * 7919)
    levels, normals = noise_of(keys, NETWORK, tables_on("cpu"))
    assert abs(float(normals.mean())) < 0.02
    assert float(normals.var()) == pytest.approx(1.0, abs=0.03)
    assert np.histogram(levels.numpy(), 4, (0, 1024))[0] == pytest.approx(200, abs=45)


def _of(rows: LabeledRows) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    return rows.features.astype(np.float64), rows.labels


# -- what all of it costs --------------------------------------------------------------------------


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("who", [{}, THREE])
def test_all_sums_together_cost_what_was_asked(relation: Relation, who: dict[str, Any]) -> None:
    plan = make_plan(OF_IMAGES, SMALL, relation=relation, **who).calibrate(3.0)
    assert plan.mixed
    assert not plan.drawn
    epsilon = plan.guarantee().epsilon
    assert epsilon is not None
    assert 3.0 * (1 - 2e-3) < epsilon <= 3.0
    assert plan.conservative_epsilon() >= epsilon
    *_, last = plan.budget()
    assert last.epsilon_composed == pytest.approx(epsilon, rel=1e-9)
    louder = replace(plan, multiplier=(plan.multiplier or 0.0) / 1.1)
    assert (louder.guarantee().epsilon or math.inf) > 3.0


@pytest.mark.parametrize(("rounds", "epsilon"), [(3, 6.0), (120, 1.0)])
def test_the_composition_is_that_of_privacy_losses_worked_out_by_others(
    rounds: int, epsilon: float
) -> None:
    plan = make_plan(OF_IMAGES, replace(SMALL, rounds=rounds), **THREE).calibrate(epsilon)
    accountant, moved = PLDAccountant(), 0.0
    for line in plan.body:
        noised = plan.query(line.names[0]).noised()
        noise = noised.view_multipliers[noised.strongest]
        if line.drawn:
            draw = PoissonSampledDpEvent(RATE.probability, GaussianDpEvent(noise))
            accountant.compose(SelfComposedDpEvent(draw, line.repeats))
        else:
            moved += line.repeats / noise**2
    accountant.compose(GaussianDpEvent(moved**-0.5))
    assert accountant.get_epsilon(plan.delta) == pytest.approx(epsilon, rel=5e-3)
    assert {GRADIENTS, LABELS} < {line.name for line in plan.body}


@pytest.mark.parametrize("relation", list(Relation))
def test_a_gaussian_beside_draws_costs_more_than_either_and_less_than_both(
    relation: Relation,
) -> None:
    groups = [Participation(30, 1, 16)]
    for epsilon_of in (epsilon_pld, epsilon_rdp):
        alone = epsilon_of(groups, 2.0, 1e-5, relation)
        both = epsilon_of(groups, 2.0, 1e-5, relation, beside=2.5)
        assert epsilon_of(groups, 2.0, 1e-5, relation, beside=1e9) == pytest.approx(alone, rel=1e-3)
        gaussian = epsilon_of([Participation(1, 1, 1)], 2.5, 1e-5, Relation.ADD_REMOVE)
        assert max(alone or 0.0, gaussian or 0.0) < (both or 0.0) < (alone or 0.0) + (gaussian or 0)
    # Where every record is drawn it is one Gaussian.
    sure = epsilon_pld([Participation(4, 1, 1)], 4.0, 1e-5, Relation.ADD_REMOVE, beside=2.0)
    one = epsilon_pld([Participation(1, 1, 1)], 2.0**0.5, 1e-5, Relation.ADD_REMOVE)
    assert sure == pytest.approx(one)


def test_a_release_whose_own_epsilon_is_the_limit_is_charged_whole_and_once() -> None:
    plan = make_plan(OF_IMAGES, SMALL).calibrate(2.0)
    costs, instead = plan.costs(), plan.cost_alone(plan.relation)
    assert len(costs) == 1
    after = Account(Limit(2.0, plan.delta)).after(costs, instead=instead)
    assert after is not None
    assert after.after(costs, instead=instead) is None


def test_a_plan_for_usual_images_is_within_a_policy_as_it_comes() -> None:
    facts = Facts(pixel_names((28, 28)), "y", tuple(range(10)), normalise=WAY, image_shape=(28, 28))
    who = {"scheme": "cape", "sites": 10, "colluding": 3}
    plan = make_plan(facts, ImageDiffusion(rounds=600), epsilon=None, **who)
    plan = replace(plan, epsilon=10.0, multiplier=0.6)
    assert not list(Policy().exceeded(demands_of(plan)))
    assert share_bytes(plan.query(f"{GRADIENTS} 1")) == 4 * 1_329_600


@dataclass(frozen=True)
class Taught(Method):
    """Counts, and gradients of a network that stays as it is."""

    rounds: int = 8
    kind: Literal["taught"] = "taught"

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        rates = plan.known.class_sizes if plan.known.class_sizes else (16,)
        draws = (RATE if self.rounds < 100 else Participation(1, 1, rates[0]),)
        return (
            QueryShape("counts", "labels", "class counts", 1, 2, replacement_factor=COUNTED),
            QueryShape(
                GRADIENTS, "gradients", "denoising gradients", NETWORK.weights, l2_norm_bound=0.1,
                share=2.0, repeats=self.rounds, draws=draws,
            ),
        )  # fmt: skip

    def release(self, sums: Collector) -> SyntheticRows:
        sums.ask("counts", counts_of(sums.plan.known))
        (line,) = (line for line in sums.plan.body if line.drawn)
        for name in line.names:
            sums.ask(name, asked())
        return SyntheticRows(np.zeros((1, 64)), np.zeros(1, dtype=np.int64))


def test_rates_that_wait_for_what_is_found_are_refused_beside_other_sums() -> None:
    @dataclass(frozen=True)
    class Waiting(Taught):
        def measures(self, facts: Facts) -> tuple[str, ...]:
            return facts.undeclared(sizes=True)

    plan = make_plan(OF_IMAGES, Waiting(rounds=100)).calibrate(2.0)
    assert plan.opening[0].name == CLASS_SIZES
    replace(plan, measured=replace(OF_IMAGES, class_sizes=(16, 9)))
    with pytest.raises(InputError, match="draws records otherwise"):
        replace(plan, measured=replace(OF_IMAGES, class_sizes=(9, 9)))


def audited(runs: int) -> Any:
    plan = make_plan(OF_IMAGES, Taught()).calibrate(4.0)
    setting = Program.with_canary("gradients beside counts", plan, images(1))
    return measure(setting, setting.scores(runs, source=SeededSource(3)))


def test_what_an_audit_of_draws_beside_counts_finds_is_no_more_than_claimed() -> None:
    found = audited(16)
    assert 0.0 < found.epsilon_ratio <= found.claimed == pytest.approx(4.0, rel=2e-3)


@pytest.mark.long
def test_a_long_audit_of_draws_beside_counts_finds_much_of_what_is_claimed_and_no_more() -> None:
    found = audited(500)
    assert 0.5 * found.claimed < found.epsilon_ratio <= found.claimed
    assert found.epsilon <= found.claimed


# -- the release -----------------------------------------------------------------------------------


def test_one_process_and_every_message_make_the_same_release_of_a_test_seed() -> None:
    sites = list(partition(images(120), 3, "iid", seed=1))
    plan = make_plan(OF_IMAGES, SMALL, **THREE).calibrate(20.0)
    ours = run(plan, LocalEngine(sites, SeededSource(5)))
    theirs = run(plan, InProcessEngine(sites, SeededSource(5)))
    for name in ("features", "labels", "soft_labels"):
        assert getattr(ours, name).tobytes() == getattr(theirs, name).tobytes()
    assert ours.features.shape == (40, 64)
    assert 0.0 <= ours.features.min() <= ours.features.max() <= 255.0
    assert np.allclose(ours.soft_labels.sum(axis=1), 1.0, atol=1e-5)  # type: ignore[union-attr]
    assert "seeded" in ours.guarantee.status


@pytest.mark.long
def test_images_by_a_network_through_flower_give_the_bytes_of_one_process(tmp_path: Path) -> None:
    sites = partition(images(90), 3, "iid", seed=1)
    plan = make_plan(OF_IMAGES, SMALL, **THREE).calibrate(8.0)
    outcome = run_on_loopback(
        plan, sites, tmp_path / "out", engine="simulation", test_seed=5, round_seconds=60.0
    )
    assert outcome.included == [0, 1, 2]
    run(plan, LocalEngine(sites, SeededSource(5))).save(tmp_path / "local")
    for name in ("synthetic.parquet", "synthetic.npz"):
        ours, theirs = (tmp_path / folder / name for folder in ("out", "local"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_sums_of_gradients_teach_the_network_what_images_look_like() -> None:
    network = replace(NETWORK, channels=8, about=16)
    features, labels = _of(images(24))
    way = training.Descent(training.first_weights(network, SeededSource(1)), 3e-3, 40)
    tables = tables_on("cpu")
    x = torch.from_numpy((features / 127.5 - 1).astype(np.float32))
    levels, codes = torch.full((24,), 500), torch.tensor(labels)
    inner, skip, outer, deviation = (part[levels][:, None] for part in tables[:4])
    noisy = x + deviation * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))

    def error(own: npt.NDArray[np.float64]) -> float:
        how = Floating(network, torch.from_numpy(own.astype(np.float32)))
        told = told_of(network, levels, codes, tables[4])
        found = said(network, how, (inner * noisy).reshape(-1, SIDE, SIDE), told)
        return float((found.reshape(24, -1) - (x - skip * noisy) / outer).square().mean())

    before = error(way.average)
    for turn in range(40):
        at = DenoisingGradients(network, WAY, way.now, 10.0, f"round {turn}")
        way.step(added(at, features, labels, None)[0] / 24)
    assert error(way.now) < 0.7 * before
    assert error(way.average) < 0.9 * before


def test_images_are_drawn_as_the_rows_were_that_the_network_saw() -> None:
    network, source = Network((SIDE, SIDE), 2, channels=8, about=16), SeededSource(4)
    rows = (images(64).features / 127.5 - 1).astype(np.float32)
    first = training.first_weights(network, source)
    own = training.warmed(network, first, rows, images(64).labels, 500, source)
    found = training.drawn(network, own, images(40).labels, source).reshape(-1, SIDE, SIDE)
    bars = np.stack([found[:, 2].mean(axis=1), found[:, 5].mean(axis=1)], axis=1)
    assert (bars.argmax(axis=1) == images(40).labels).mean() > 0.8


def test_without_torch_it_is_refused_before_anything_is_charged_and_sites_decline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = make_plan(OF_IMAGES, SMALL).calibrate(3.0)
    monkeypatch.setattr("capemix.methods.base.find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"needs torch, which is not installed.*capemix\[torch\]"):
        run_module.check_installed(plan)
