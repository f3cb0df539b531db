"""The federation's release is the central curator's, in law, for any sites and any split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from capemix.accounting.joint_view import complete_view_variance
from capemix.api import config_of, synthesize
from capemix.data import LabeledRows, partition
from capemix.data.columns import Category, Number
from capemix.data.schema import Table
from capemix.engines.local import LocalEngine
from capemix.facts import Facts
from capemix.methods.mixing.planning import mixture_sum, plan_mixtures
from capemix.plan import Plan, make_plan
from capemix.queries import Participation
from capemix.randomness.source import SeededSource
from capemix.run import run
from capemix.sums.aggregate import Aggregate
from capemix.sums.query import Block, SumQuery, blocks
from capemix.sums.select import Selected, select
from capemix.sums.share import SourceDraws, masks_of, prepare_site, site_share
from capemix.zerosum.graph import PeerGraph
from capemix.zerosum.masks import deal_keys, remove_own_mask
from releasing import by_class

ACCEPT = 1e-6
REJECT = 1e-12
CLASSES, WIDTH = 3, 6


def some_rows(count: int = 300) -> LabeledRows:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, count)
    features = rng.normal(size=(count, WIDTH)) / 3 + np.eye(CLASSES, WIDTH)[labels]
    return LabeledRows(
        features=features,
        labels=labels.astype(np.int64),
        classes=tuple(range(CLASSES)),
        feature_names=tuple("abcdef"),
    )


def a_plan(sites: int, *, noise: float, mixture: int = 10, samples: int = 60) -> Plan:
    return plan_mixtures(
        width=WIDTH,
        class_sizes=(100,) * CLASSES,
        samples=samples,
        mixture=mixture,
        scheme="central" if sites == 0 else "cape",
        sites=max(1, sites),
        noise=noise,
    )


def split_rows(rows: LabeledRows, sites: int, how: str) -> tuple[LabeledRows, ...]:
    return partition(rows, sites, how, alpha=0.1, seed=1)  # type: ignore[arg-type]


class SharedDraws:
    """Tests only: one selection over all sites' records; the first site adds all the noise."""

    def __init__(self, query: SumQuery, offsets: np.ndarray, sizes: np.ndarray, site: int) -> None:
        self.query, self.offsets, self.sizes, self.site = query, offsets, sizes, site

    def select(self, block: Block, participation: Participation, population: int) -> list[Selected]:
        total = int(self.sizes[block.group])
        stream = SeededSource(7).stream("select", *block.label)
        [whole] = select(participation, total, block.stop - block.start, stream)
        low = int(self.offsets[block.group])
        starts, mine = [0], []
        for a, b in zip(whole.starts, whole.starts[1:], strict=False):
            chosen = whole.indices[a:b]
            own = chosen[(chosen >= low) & (chosen < low + population)] - low
            mine.append(own)
            starts.append(starts[-1] + len(own))
        return [Selected(np.array(starts), np.concatenate(mine).astype(np.int32))]

    def add_noise(self, block: Block, out: np.ndarray) -> None:
        if self.site == 0:
            SourceDraws(self.query, SeededSource(8)).add_noise(block, out)


def shared_release(
    query: SumQuery, parts: tuple[LabeledRows, ...], central: SumQuery
) -> np.ndarray:
    """The released sums when selection and noise are the central curator's."""
    coordinator = Aggregate(query)
    keys = deal_keys(PeerGraph.complete(len(parts)), SeededSource(9)) if len(parts) > 1 else None
    sizes = sum(part.class_counts() for part in parts)
    offsets = np.zeros(CLASSES, dtype=np.int64)
    for site, part in enumerate(parts):
        # The central plan's lattice and noise, so that equal bits can be asked for.
        prepared = prepare_site(central, part.features, part.labels)
        draws = SharedDraws(central, offsets.copy(), np.asarray(sizes), site)
        share = site_share(query, site, prepared, draws, keys[site] if keys else None)
        coordinator.add(share)
        offsets += part.class_counts()
    if keys:
        coordinator.unmask({k.site: k.own for k in keys}, {})
    total = coordinator._total()
    return total.copy()


@pytest.mark.parametrize("how", ["iid", "dirichlet"])
@pytest.mark.parametrize("sites", [1, 5, 10, 50])
def test_with_shared_selection_and_noise_the_joint_form_is_central_bit_for_bit(
    sites: int, how: str
) -> None:
    rows = some_rows()
    parts = split_rows(rows, sites, how)
    order = LabeledRows(
        features=np.vstack([part.features for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        classes=rows.classes,
        feature_names=rows.feature_names,
    )
    noise = 0.003  # so little that both plans use the finest lattice, hence the same one
    central = mixture_sum(a_plan(0, noise=noise))
    expected = shared_release(central, (order,), central)
    found = shared_release(mixture_sum(a_plan(sites, noise=noise)), parts, central)
    assert found.dtype == expected.dtype
    assert (found == expected).all()


class Gathered(LocalEngine):
    """Tests only: one curator's plan, its sums gathered over any number of sites, behind masks; the
    first site adds all the noise."""

    def check(self, plan: Plan) -> None:
        """There are more sites than the plan says."""

    def sum(self, plan: Plan, query: SumQuery) -> np.ndarray:  # noqa: ARG002
        count, source = len(self._sites), self._source.child("round", query.name)
        noise, keys = SourceDraws(query, source.child("noise")), {}
        if count > 1:
            graph = PeerGraph.circulant(count, 4, source.stream("graph"))
            keys = {one.site: one for one in deal_keys(graph, source)}
        coordinator = Aggregate(query)
        for site, rows in enumerate(self._sites):
            prepared = prepare_site(query, rows.features, rows.labels)
            draws = SharedNoise(noise if site == 0 else None)
            coordinator.add(site_share(query, site, prepared, draws, keys.get(site)))
        if keys:
            coordinator.unmask({site: one.own for site, one in keys.items()}, {})
        return coordinator.release_sums()


class SharedNoise:
    def __init__(self, draws: SourceDraws | None) -> None:
        self._draws = draws

    def select(self, *_asked: object) -> list[Selected]:
        raise AssertionError("every record takes part")

    def add_noise(self, block: Block, out: np.ndarray) -> None:
        if self._draws is not None:
            self._draws.add_noise(block, out)


def a_table(count: int = 2000) -> LabeledRows:
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 2, count)
    table = Table(
        (
            Number("age", 18, 90, type="integer"),
            Number("size", 0.0, 9.0),
            Category("job", ("a", "b")),
        ),
        Category("pays", ("no", "yes")),
    )
    job = (rng.random(count) < 0.3 + 0.4 * labels).astype(np.int64)
    age, size = rng.integers(18, 60, count) + 20.0 * labels, rng.exponential(1.0 + job, count)
    return table.coded([age, np.minimum(size, 9.0), job], labels.astype(np.int64))


def by_age(rows: LabeledRows, sites: int) -> tuple[LabeledRows, ...]:
    """The oldest at one site, the youngest at another."""
    order = np.argsort(rows.features[:, 0], kind="stable")
    return tuple(rows.take(part) for part in np.array_split(order, sites))


@pytest.mark.parametrize(("pairs", "counts"), [(1, (5, 25, 100)), (0, (25,))])
def test_a_table_has_the_same_rows_bit_for_bit_however_many_sites_it_comes_from(
    pairs: int, counts: tuple[int, ...]
) -> None:
    """Whatever is chosen on the way: pairs, or Gaussians."""
    rows = a_table()
    sizes = tuple(rows.class_counts().tolist())
    method = config_of("tables", samples=400)
    plan = make_plan(Facts.of(rows, class_sizes=sizes), method).calibrate(30.0 if pairs else 0.3)
    parts = {("one", 1): (rows,)}
    for sites in counts:
        parts["dealt out", sites] = split_rows(rows, sites, "iid")
        parts["by age", sites] = by_age(rows, sites)
    found = {key: run(plan, Gathered(some, SeededSource(3))) for key, some in parts.items()}
    expected = found["one", 1]
    assert (expected.plan.chosen or {})["pairs"] == pairs
    for key, made in found.items():
        assert made.features.tobytes() == expected.features.tobytes(), key
        assert (made.labels == expected.labels).all(), key
        assert made.statistics.keys() == expected.statistics.keys() >= {"columns"}
        for name, table in expected.statistics.items():
            for column, figures in table.items():
                assert (made.statistics[name][column] == figures).all(), (key, name)


def released(plan: Plan, parts: tuple[LabeledRows, ...], seed: int) -> np.ndarray:
    return np.asarray(by_class(plan, parts, SeededSource(seed)).features)


@pytest.mark.parametrize("how", ["iid", "dirichlet"])
@pytest.mark.parametrize("sites", [1, 5, 10, 50])
def test_at_equal_released_noise_the_joint_form_has_the_central_law(sites: int, how: str) -> None:
    """Two-sample test on many released mixtures; a 20% wrong noise scale is rejected."""
    rows = some_rows()
    noise, samples = 0.3, 60_000
    central = released(a_plan(0, noise=noise, samples=samples), (rows,), 1)
    parts = split_rows(rows, sites, how)
    joint = released(a_plan(sites, noise=noise, samples=samples), parts, 2)
    wrong = released(a_plan(sites, noise=noise * 1.2, samples=samples), parts, 3)
    third = samples // CLASSES
    for k in range(CLASSES):
        here = slice(k * third, (k + 1) * third)
        for column in range(WIDTH):
            same = stats.ks_2samp(central[here, column], joint[here, column])
            assert same.pvalue > ACCEPT
        worst = min(
            stats.ks_2samp(central[here, column], wrong[here, column]).pvalue
            for column in range(WIDTH)
        )
        assert worst < REJECT
        # The law is joint over columns: compare covariances too.
        a, b = np.cov(central[here].T), np.cov(joint[here].T)
        assert np.abs(a - b).max() < 8 * a.max() * np.sqrt(2 / third)


def test_a_site_without_a_class_or_without_rows_uploads_noise_and_stops_nobody() -> None:
    rows = some_rows()
    only_zero = rows.take(rows.labels == 0)
    rest = rows.take(rows.labels != 0)
    empty = rows.take(np.array([], dtype=np.int64))
    release = synthesize(
        a_plan(5, noise=0.1), (only_zero, rest, empty, empty, empty), source=SeededSource(1)
    )
    assert np.isfinite(release.features).all()
    assert np.bincount(release.labels).tolist() == [60 // CLASSES] * CLASSES


def test_the_noise_in_a_release_is_the_plans_and_not_10_percent_more() -> None:
    """Rows of zeros: what is released is noise alone, and each site's is TAU / sqrt(S)."""
    zeros = LabeledRows(
        features=np.zeros((50, WIDTH)),
        labels=np.arange(50, dtype=np.int64) % CLASSES,
        classes=tuple(range(CLASSES)),
        feature_names=tuple("abcdef"),
    )
    for sites in (0, 4):
        plan = a_plan(sites, noise=0.25, samples=30_000)
        noise = released(plan, split_rows(zeros, max(1, sites), "iid"), 5).reshape(-1)
        assert stats.kstest(noise, "norm", (0, 0.25)).pvalue > ACCEPT
        assert stats.kstest(noise, "norm", (0, 0.25 * 1.1)).pvalue < REJECT


def test_gaussian_masks_give_the_same_law_as_ring_masks() -> None:
    rows = some_rows()
    parts = split_rows(rows, 5, "iid")
    asked = {
        "width": WIDTH,
        "class_sizes": (100,) * CLASSES,
        "samples": 30_000,
        "mixture": 10,
        "scheme": "cape",
        "sites": 5,
        "noise": 0.3,
    }
    ring = released(plan_mixtures(**asked, masks="ring"), parts, 1)
    gaussian = released(plan_mixtures(**asked, masks="gaussian"), parts, 2)
    for column in range(WIDTH):
        assert stats.ks_2samp(ring[:, column], gaussian[:, column]).pvalue > ACCEPT


def test_gaussian_uploads_hide_as_much_as_the_plan_claims() -> None:
    """Rows of zeros: the covariance of the uploads, self masks off, against the view's factor."""
    sites = 4
    plan = plan_mixtures(
        width=WIDTH,
        class_sizes=(100,),
        samples=20_000,
        mixture=10,
        scheme="cape",
        sites=sites,
        colluding=1,
        masks="gaussian",
        noise=0.5,
    )
    query = mixture_sum(replace(plan, federation=replace(plan.federation, pair_ratio=3.0)))
    keys = deal_keys(PeerGraph.complete(sites), SeededSource(1))
    nothing = prepare_site(query, np.zeros((0, WIDTH)), np.zeros(0, dtype=np.int64))
    uploads = []
    for site in range(sites):
        draws = SourceDraws(query, SeededSource(2).child(site))
        share = site_share(query, site, nothing, draws, keys[site])
        for block in blocks(query):
            part = share.values[block.start : block.stop]
            hidden = part.std()
            remove_own_mask(part, keys[site].own, masks_of(query), block.label)
            # A self mask of at least (h - 1) times the own variance was on.
            assert hidden**2 - part.var() > (sites - 2) * query.site_deviation**2 * 0.95
        uploads.append(share.values.reshape(-1))
    left = 1 / np.diag(np.linalg.inv(np.cov(uploads)))
    everyone = complete_view_variance(1.0, 3.0, sites) * query.site_deviation**2
    np.testing.assert_allclose(left, everyone, rtol=0.03)
    honest = query.federation.view_factors()["server"] ** 2
    assert honest == pytest.approx(complete_view_variance(1.0, 3.0, sites - 1))


@pytest.mark.parametrize("kernels", ["fast", "plain"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_seeded_release_is_the_same_bits_on_every_path(
    monkeypatch: pytest.MonkeyPatch, kernels: str, threads: int
) -> None:
    rows = some_rows()
    plan = a_plan(4, noise=0.1, samples=3000)
    parts = split_rows(rows, 4, "iid")
    expected = synthesize(plan, parts, source=SeededSource(3), threads=2).features.tobytes()
    monkeypatch.setenv("CAPEMIX_KERNELS", kernels)
    found = synthesize(plan, parts, source=SeededSource(3), threads=threads).features.tobytes()
    assert found == expected


def test_rows_clipped_for_another_plan_are_refused() -> None:
    asked = {"width": WIDTH, "class_sizes": (100,) * CLASSES, "samples": 30, "mixture": 10}
    asked |= {"scheme": "cape", "sites": 4, "masks": "gaussian", "noise": 0.3}
    loose, strict = (mixture_sum(plan_mixtures(**asked, clip=clip)) for clip in (5.0, 1.0))
    rows = some_rows()
    prepared = prepare_site(loose, rows.features, rows.labels)
    with pytest.raises(ValueError, match="larger norm"):
        site_share(strict, 0, prepared, SourceDraws(strict, SeededSource(1)))
