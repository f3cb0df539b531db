"""Plans: what they refuse, what they calibrate to, and that only accounting mints a guarantee."""

from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

import capemix
from capemix.accounting import mint
from capemix.accounting.joint_view import complete_view_variance
from capemix.accounting.sampled import lattice_sum_epsilon
from capemix.data.schema import Category, Number, Table
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.federation import Federation, SiteNoise, default_colluding
from capemix.guarantee import Guarantee, Status
from capemix.methods import methods
from capemix.methods.mixing import Accountant, Mixing, Pool
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import Plan, make_plan
from capemix.queries import Selection
from capemix.randomness import tables
from capemix.sums.steps import Coverage, PublicMap, SiteZScore

MNIST: dict[str, Any] = {
    "width": 784,
    "class_sizes": (6000,) * 10,
    "samples": 60_000,
    "mixture": 64,
}


def a_plan(**asked: Any) -> Plan:
    return plan_mixtures(**{**MNIST, **asked})


def noise(plan: Plan) -> float:
    """On a released mixture."""
    return plan.query("mixtures").deviation


def site_noise(plan: Plan) -> float:
    """One site's own noise on a mixture (the paper's tau_g)."""
    query = plan.query("mixtures")
    assert isinstance(plan.method, Mixing)
    return query.site_multiplier * query.l2_norm_bound / plan.method.mixture


# -- the adversary -----------------------------------------------------------------------------


def test_the_default_tolerance_is_capes() -> None:
    assert [default_colluding(s) for s in (1, 2, 3, 4, 9, 10, 50)] == [0, 1, 1, 1, 2, 3, 16]


@pytest.mark.parametrize(
    ("sites", "colluding", "dropouts"),
    [(2, 2, 0), (2, 1, 1), (3, 1, 1), (5, 3, 2), (4, 4, 0), (10, 0, 0), (0, 0, 0), (4, 1, -1)],
)
def test_an_adversary_that_leaves_nobody_honest_is_refused(
    sites: int, colluding: int, dropouts: int
) -> None:
    with pytest.raises(InputError):
        Federation(sites=sites, colluding=colluding, dropouts=dropouts)


def test_three_sites_with_one_colluding_and_one_missing_is_infeasible_and_four_work() -> None:
    with pytest.raises(InputError, match="agree"):
        Federation(sites=3, colluding=1, dropouts=1)
    assert Federation(sites=4, colluding=1, dropouts=1).adversary.honest == 2


def test_the_price_of_trusting_nobody_is_s_over_h() -> None:
    central = a_plan().calibrate(10.0)
    joint = a_plan(scheme="cape", sites=10, colluding=3, dropouts=2).calibrate(10.0)
    assert joint.federation.adversary.price == 2.0
    assert (noise(joint) / noise(central)) ** 2 == pytest.approx(2.0, rel=1e-3)
    assert site_noise(joint) == pytest.approx(noise(joint) / math.sqrt(10))


def test_a_missing_and_a_colluding_site_cost_the_same_in_public() -> None:
    one = a_plan(scheme="cape", sites=10, colluding=3, dropouts=1, noise=0.02).guarantee()
    two = a_plan(scheme="cape", sites=10, colluding=4, dropouts=0, noise=0.02).guarantee()
    assert one.epsilon == pytest.approx(two.epsilon)


def test_gaussian_masks_cost_what_the_joint_view_says() -> None:
    ring = a_plan(scheme="cape", sites=10, colluding=3).calibrate(10.0)
    gaussian = a_plan(scheme="cape", sites=10, colluding=3, masks="gaussian").calibrate(10.0)
    ratio = complete_view_variance(1.0, 100.0, 7) / 7
    assert (noise(ring) / noise(gaussian)) ** 2 == pytest.approx(ratio, rel=1e-3)
    assert gaussian.guarantee().view == "server"
    assert gaussian.guarantee().status is Status.REAL_ARITHMETIC


# -- calibration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"accountant": "paper", "mixture": 4},
        {"scheme": "cape", "sites": 10},
        {"scheme": "cape", "sites": 10, "masks": "gaussian"},
        {"scheme": "cape", "sites": 4, "form": "algorithm1", "accountant": "paper", "mixture": 4},
        {"scheme": "conventional", "sites": 4},
        {"law": "rounded", "samples": 2000, "mixture": 256},
        {"relation": "replace-one", "samples": 2000},
        {"selection": "fixed-size", "samples": 2000},
        {"scheme": "cape", "sites": 120},
    ],
)
def test_account_and_calibrate_invert_each_other(asked: dict[str, Any]) -> None:
    plan = a_plan(**asked).calibrate(8.0)
    guarantee = plan.guarantee()
    assert guarantee.epsilon is not None
    assert 8.0 * 0.999 <= guarantee.epsilon <= 8.0
    assert noise(plan.calibrate(guarantee.epsilon)) == pytest.approx(noise(plan), rel=1e-3)


@pytest.mark.parametrize("scheme", ["central", "conventional", "cape"])
@pytest.mark.parametrize("accountant", ["sound", "paper"])
def test_an_infinite_budget_is_no_noise_and_no_privacy(scheme: str, accountant: str) -> None:
    sites = 1 if scheme == "central" else 4
    plan = a_plan(scheme=scheme, sites=sites, accountant=accountant)
    guarantee = plan.calibrate(math.inf).guarantee()
    assert guarantee.epsilon is None
    assert guarantee.status is Status.NO_PRIVACY


@pytest.mark.parametrize("asked", [{"scheme": "cape"}, {"scheme": "conventional"}])
def test_the_public_views_noise_is_that_of_the_release_less_the_colluders(
    asked: dict[str, Any],
) -> None:
    plan = a_plan(sites=10, colluding=4, noise=0.02, **asked)
    assert plan.guarantee().views["public"].noise == pytest.approx(0.02 * math.sqrt(0.6))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_a_budget_must_be_positive(epsilon: float) -> None:
    with pytest.raises(InputError, match="epsilon"):
        a_plan().calibrate(epsilon)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_delta_must_be_a_probability(delta: float) -> None:
    with pytest.raises(InputError, match="delta"):
        a_plan(delta=delta)


def test_an_uncalibrated_plan_cannot_be_used() -> None:
    with pytest.raises(InputError, match="calibrate"):
        a_plan().query("mixtures")


def test_the_conventional_noises_are_the_three_readings() -> None:
    theorem = noise(a_plan(accountant="paper", mixture=4).calibrate(10.0))
    asked = {"accountant": "paper", "mixture": 4, "scheme": "conventional", "sites": 10}
    central_variance = a_plan(**asked, site_noise="sqrt-sites").calibrate(10.0)
    assert noise(central_variance) == pytest.approx(theorem)
    assert site_noise(central_variance) == pytest.approx(theorem * math.sqrt(10))
    table = a_plan(**asked, site_noise="sites").calibrate(10.0)
    assert noise(table) == pytest.approx(theorem * math.sqrt(10))
    assert site_noise(table) == pytest.approx(theorem * 10)
    sound = a_plan(mixture=4, scheme="conventional", sites=10).calibrate(10.0)
    alone = a_plan(mixture=4, class_sizes=(600,) * 10).calibrate(10.0)
    assert sound.federation.site_noise is SiteNoise.SOUND
    assert site_noise(sound) == pytest.approx(noise(alone), rel=1e-3)  # one site's own rate
    for wrong in ("sound", "matched", "appendix"):
        with pytest.raises(InputError, match="site_noise"):
            a_plan(**asked, site_noise=wrong)
    with pytest.raises(InputError, match="site_noise"):
        a_plan(scheme="cape", sites=10, site_noise="appendix")


def test_algorithm_1_splits_its_noise_as_published() -> None:
    theorem = noise(a_plan(accountant="paper", mixture=4).calibrate(10.0))
    asked = {
        "accountant": "paper",
        "mixture": 4,
        "scheme": "cape",
        "form": "algorithm1",
        "sites": 10,
    }
    matched = a_plan(**asked).calibrate(10.0)
    assert noise(matched) == pytest.approx(theorem)
    assert site_noise(matched) == pytest.approx(theorem * math.sqrt(10))
    assert matched.federation.pair_ratio == 1.0
    appendix = a_plan(**asked, site_noise="appendix").calibrate(10.0)
    assert site_noise(appendix) == pytest.approx(theorem)
    assert noise(appendix) == pytest.approx(theorem / math.sqrt(10))


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {"mixture": 6001},
        {"mixture": 0},
        {"clip": 0.0},
        {"clip": math.inf},
        {"samples": 0},
        {"scheme": "cape", "sites": 10, "selection": "fixed-size"},
        {"selection": "fixed-size", "relation": "add-or-remove-one"},
        {"normalise": SiteZScore()},
        {"scheme": "cape", "sites": 10, "law": "rounded"},
        {"scheme": "cape", "sites": 10, "law": "gaussian"},
        {"scheme": "cape", "sites": 10, "masks": "gaussian", "law": "discrete"},
        {"scheme": "cape", "sites": 10, "form": "algorithm1", "masks": "ring"},
        {"scheme": "cape", "sites": 10, "masks": "gaussian", "peers": 4},
        {"scheme": "magic"},
        {"classes": (0, 1)},
        {"classes": (0,) * 10},
        {"mixture": 2.5},
        {"samples": 10.5},
        {"noise": 1e4},
        {"relation": "cousins"},
        {"scheme": "cape", "sites": 100, "form": "algorithm1"},  # 60 rows a class and site
    ],
)
def test_plans_that_cannot_keep_their_promise_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        _ = a_plan(**{"noise": 0.1, **asked}).query("mixtures").lattice_norm_bound


def test_sizes_that_nobody_paid_for_have_no_place_in_a_sound_plan() -> None:
    sound, paper = a_plan(), a_plan(accountant="paper", mixture=4)
    unpaid = replace(sound, facts=replace(sound.facts, unpaid=("class sizes",)))
    with pytest.raises(InputError, match="class sizes is not covered"):
        unpaid.calibrate(10.0)
    assert unpaid.calibrate(math.inf).guarantee().status is Status.NO_PRIVACY
    claimed = replace(paper, facts=replace(paper.facts, unpaid=("class sizes",))).calibrate(10.0)
    assert claimed.guarantee().status is Status.PAPER
    assert Coverage.NOT_COVERED in {step.coverage for step in claimed.steps}


def test_any_fact_that_nobody_paid_for_leaves_no_guarantee() -> None:
    plan = a_plan(noise=0.1)
    read = replace(plan, facts=replace(plan.facts, unpaid=("the range",)))
    assert read.guarantee().status is Status.FROM_ROWS
    assert "the range was read from the rows" in " ".join(read.guarantee().assumptions)


def test_a_published_claim_pays_for_no_measured_fact() -> None:
    facts = replace(a_plan().facts, class_sizes=None)
    assert make_plan(facts, Mixing()).opening
    with pytest.raises(InputError, match="cannot pay for class sizes"):
        make_plan(facts, Mixing(accountant=Accountant.PAPER, label_noise=True)).calibrate(10.0)


def test_the_words_of_a_config_are_its_enums() -> None:
    words: dict[str, Any] = {"pool": "all", "selection": "fixed-size", "accountant": "paper"}
    made = Mixing(**words, label_noise=True)
    assert made == Mixing(
        pool=Pool.ALL, selection=Selection.FIXED, accountant=Accountant.PAPER, label_noise=True
    )
    assert made.claimed
    for name in words:
        with pytest.raises(InputError, match=f"{name} is unknown"):
            Mixing(**{name: "magic"})


def test_rows_that_a_schema_codes_are_not_mixed() -> None:
    table = Table((Number("a", 0, 1),), Category("y", ("u", "v")))
    facts = Facts(table.names, "y", table.classes, normalise=PublicMap(), table=table)
    with pytest.raises(InputError, match="schema needs a method that restores categories"):
        make_plan(facts, Mixing())


def test_the_paper_keeps_its_own_form_as_a_paper_claim() -> None:
    plan = a_plan(accountant="paper", normalise=SiteZScore(), mixture=4).calibrate(10.0)
    assert isinstance(plan.method, Mixing)
    assert plan.method.label_noise
    assert plan.guarantee().status is Status.PAPER
    assert next(step.coverage for step in plan.steps) is Coverage.NOT_COVERED


def test_no_plan_has_a_place_for_a_seed() -> None:
    kinds: list[Any] = [Plan, Federation, Facts, *methods().values()]
    names = {f.name for kind in kinds for f in fields(kind)}
    assert not any("seed" in name or "source" in name for name in names)
    with pytest.raises(FrozenInstanceError):
        a_plan().delta = 0.5  # type: ignore[misc]


# -- the lattice ----------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [1e-4, 0.05, 0.7, 3.0, 50.0, 3000.0])
@pytest.mark.parametrize("sites", [1, 50])
def test_the_lattice_fits_16_bit_rows_the_tables_and_the_ring(
    multiplier: float, sites: int
) -> None:
    query = a_plan(scheme="cape", sites=sites, noise=multiplier / 64).query("mixtures")
    assert query.lattice_norm_bound is not None
    assert 1 <= query.lattice_norm_bound <= 32_767
    assert query.site_deviation <= 40_000
    reach = (64 + 14 * 8 + 100) * query.lattice_norm_bound + 13 * sites * (query.site_deviation + 1)
    assert reach < 2 ** (query.ring_bits - 1)
    # What the noise is in released units does not depend on the lattice.
    released = query.site_deviation * math.sqrt(sites) / query.lattice_scale / 64
    assert released == pytest.approx(query.deviation)


def test_counts_of_all_records_use_the_wide_ring() -> None:
    counts = plan_mixtures(width=3, class_sizes=(1,), samples=1, mixture=1, noise=1.0)
    assert counts.query("mixtures").ring_bits == 64


# -- guarantees ------------------------------------------------------------------------------------


def test_a_guarantee_cannot_be_made_or_altered_by_hand() -> None:
    guarantee = a_plan().calibrate(1.0).guarantee()
    with pytest.raises(TypeError, match="minted"):
        replace(guarantee, epsilon=0.1)
    values = {f.name: getattr(guarantee, f.name) for f in fields(Guarantee) if f.name != "seal"}
    with pytest.raises(TypeError, match="minted"):
        Guarantee(**values)


def test_only_one_module_holds_the_seal() -> None:
    root = Path(capemix.__file__).parent
    holders = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(r"\bSEAL\b", path.read_text())
    }
    assert holders == {"guarantee.py", "accounting/mint.py"}


def test_a_seeded_guarantee_says_that_it_is_none() -> None:
    assert a_plan(noise=0.1).guarantee(seeded=True).status is Status.SEEDED


def test_a_guarantee_lists_what_it_assumes() -> None:
    assumed = " ".join(a_plan(scheme="cape", sites=10, noise=0.1).guarantee().assumptions)
    for phrase in (
        "one record per person",
        "honest sites",
        "roster",
        "everything declared (columns, classes, ranges, class sizes)",
        "timing",
        "AES",
    ):
        assert phrase in assumed
    alone = " ".join(a_plan(noise=0.1).guarantee().assumptions)
    assert "roster" not in alone


def minted(plan: Plan, *, seeded: bool = False, earlier: Guarantee | None = None) -> Guarantee:
    """Of a plan's one sum, after a release that it depends on."""
    return mint.mint_sound(
        plan.query("mixtures").noised(),
        unit=1.0,
        delta=plan.delta,
        relation=plan.relation,
        adversary=plan.federation.adversary,
        seeded=seeded,
        earlier=earlier,
    )


def test_an_earlier_release_adds_to_the_guarantee() -> None:
    first = a_plan(samples=100).calibrate(1.0).guarantee()
    both = minted(a_plan(delta=2e-5).calibrate(2.0), earlier=first)
    assert both.epsilon == pytest.approx(3.0, rel=1e-3)
    assert both.delta == pytest.approx(3e-5)


def test_guarantees_of_different_relations_do_not_compose() -> None:
    first = a_plan(samples=100).calibrate(1.0).guarantee()
    with pytest.raises(ValueError, match="compose"):
        minted(a_plan(relation="replace-one", noise=0.1), earlier=first)
    with pytest.raises(ValueError, match="adversaries"):
        minted(a_plan(scheme="cape", sites=9, colluding=5, noise=0.1), earlier=first)


def test_the_weaker_status_of_two_releases_counts() -> None:
    seeded = a_plan(samples=100, noise=0.1).guarantee(seeded=True)
    assert minted(a_plan(noise=0.1), earlier=seeded).status is Status.SEEDED
    masks = {"scheme": "cape", "sites": 4}
    real = a_plan(samples=100, noise=0.1, masks="gaussian", **masks).guarantee()
    later = minted(a_plan(noise=0.1, **masks), earlier=real)
    assert later.status is Status.REAL_ARITHMETIC


def test_fixed_size_selection_costs_what_an_independent_accountant_says() -> None:
    """Replace-one: a row changes by 2c, and with its noised one-hot label by sqrt(4c^2 + 2)."""
    import dp_accounting
    from dp_accounting import rdp

    tau, mixture, draws, clip = 0.05, 64, 100, 1.5
    for label_noise, change in ((False, 2 * clip), (True, math.sqrt(4 * clip**2 + 2))):
        plan = a_plan(
            selection="fixed-size",
            samples=10 * draws,
            clip=clip,
            label_noise=label_noise,
            noise=tau,
        )
        accountant = rdp.RdpAccountant(
            orders=[*range(2, 65)],
            neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
        )
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            6000, mixture, dp_accounting.GaussianDpEvent(mixture * tau / change)
        )
        accountant.compose(event, draws)
        assert plan.guarantee().epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-4)


def test_a_coarse_lattice_pays_for_the_sum_of_discrete_gaussians() -> None:
    plan = a_plan(scheme="cape", sites=4, samples=100, noise=0.1)
    fine = plan.query("mixtures").noised()
    coarse = replace(fine, site_sigma=1.2)
    extra = lattice_sum_epsilon(1.2, 3, 100 * 784)
    assert 0.1 < extra < 5
    # Epsilon grows by the allowance, and delta by the factor e^(allowance/2).
    paid = mint.sound_epsilon(coarse, 2.0, 1e-5, plan.relation)
    less = mint.sound_epsilon(fine, 2.0, 1e-5 * math.exp(-extra / 2), plan.relation)
    assert paid == pytest.approx(less + extra)
    assert paid > mint.sound_epsilon(fine, 2.0, 1e-5, plan.relation) + extra


def test_very_large_mixtures_use_the_wide_ring() -> None:
    wide = plan_mixtures(width=2, class_sizes=(10**7,), samples=1, mixture=10**6, noise=1e-8)
    narrow = plan_mixtures(width=2, class_sizes=(10**7,), samples=1, mixture=1000, noise=1e-3)
    assert [plan.query("mixtures").ring_bits for plan in (wide, narrow)] == [64, 32]


def test_accounting_allows_the_error_that_the_tables_keep() -> None:
    assert mint.SAMPLER_ERROR == tables.TOTAL_VARIATION


def test_an_epsilon_beyond_what_the_samplers_prove_is_none() -> None:
    assert a_plan(noise=1e-4).guarantee().epsilon is None


def test_a_public_map_is_sound() -> None:
    assert a_plan(normalise=PublicMap.of_range(0, 255), noise=0.1).guarantee().epsilon is not None


@pytest.mark.parametrize("asked", [{"colluding": 1.5}, {"dropouts": 0.5}, {"sites": 5.5}])
def test_sites_are_counted_in_whole_numbers(asked: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(asked))} must be a whole number"):
        plan_mixtures(**{**MNIST, "scheme": "cape", "sites": 5, **asked})
