"""What the server is left facing: formulas against brute force and against simulation."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from capemix.accounting.joint_view import (
    complete_view_variance,
    component_sizes,
    disconnection_probability,
    exposure_probability,
    graph_failure_probability,
    graph_view_variances,
    ring_view_variances,
    sparse_degree,
)
from capemix.federation import Federation, MaskKind
from capemix.randomness.source import SeededSource
from capemix.zerosum.graph import PeerGraph


def upload_covariance(adjacency: np.ndarray, own: float, pair: float) -> np.ndarray:
    """Covariance of all uploads, edge by edge: +n at one end, -n at the other."""
    sites = len(adjacency)
    covariance = own * np.eye(sites)
    for i, j in combinations(range(sites), 2):
        if adjacency[i, j]:
            edge = np.zeros(sites)
            edge[i], edge[j] = 1, -1
            covariance += pair * np.outer(edge, edge)
    return covariance


def residual_variance(covariance: np.ndarray, site: int) -> float:
    """The variance left on a site's upload by the best linear estimate from all the others."""
    others = [i for i in range(len(covariance)) if i != site]
    cross = covariance[site, others]
    return float(
        covariance[site, site] - cross @ np.linalg.solve(covariance[np.ix_(others, others)], cross)
    )


@pytest.mark.parametrize("sites", [1, 2, 5, 10])
@pytest.mark.parametrize("pair", [0.3, 1.0, 100.0])
def test_the_complete_graphs_formula_is_the_brute_force_inverse(sites: int, pair: float) -> None:
    adjacency = PeerGraph.complete(sites).adjacency()
    covariance = upload_covariance(adjacency, 0.7, pair)
    for site in range(sites):
        exact = residual_variance(covariance, site) if sites > 1 else 0.7
        assert complete_view_variance(0.7, pair, sites) == pytest.approx(exact, rel=1e-9)


def test_colluders_leave_the_formula_of_the_honest_alone() -> None:
    # Colluders know their pair noises: what is left among the honest is a complete graph on them.
    adjacency = PeerGraph.complete(9).adjacency()
    for colluding in range(8):
        honest = np.arange(9) >= colluding
        variances = graph_view_variances(0.7, 2.0, adjacency, honest)
        expected = complete_view_variance(0.7, 2.0, 9 - colluding)
        np.testing.assert_allclose(variances, expected, rtol=1e-9)


def test_sparse_graphs_formula_is_the_brute_force_inverse() -> None:
    graph = PeerGraph.circulant(12, 4, SeededSource(1).stream("graph"))
    adjacency = graph.adjacency()
    rng = np.random.default_rng(2)
    for _ in range(20):
        honest = rng.random(12) < 0.7
        if honest.sum() < 2:
            continue
        inner = adjacency[np.ix_(honest, honest)]
        covariance = upload_covariance(inner, 0.5, 3.0)
        brute = [residual_variance(covariance, s) for s in range(int(honest.sum()))]
        np.testing.assert_allclose(
            graph_view_variances(0.5, 3.0, adjacency, honest), brute, rtol=1e-9
        )


@pytest.mark.parametrize("degree", [None, 4])
def test_the_formula_is_what_a_simulated_server_is_left_with(degree: int | None) -> None:
    sites, own, pair, trials = 8, 1.0, 1.5, 200_000
    graph = (
        PeerGraph.complete(sites)
        if degree is None
        else PeerGraph.circulant(sites, degree, SeededSource(3).stream("graph"))
    )
    adjacency = graph.adjacency()
    honest = np.array([False, False, True, True, True, True, True, True])
    rng = np.random.default_rng(4)
    uploads = rng.normal(0, math.sqrt(own), (trials, sites))
    for i, j in combinations(range(sites), 2):
        if adjacency[i, j] and honest[i] and honest[j]:  # the others' pair noise is known
            noise = rng.normal(0, math.sqrt(pair), trials)
            uploads[:, i] += noise
            uploads[:, j] -= noise
    seen = uploads[:, honest]
    claimed = graph_view_variances(own, pair, adjacency, honest)
    for site in range(seen.shape[1]):
        others = np.delete(seen, site, axis=1)
        estimate, *_ = np.linalg.lstsq(others, seen[:, site], rcond=None)
        left = (seen[:, site] - others @ estimate).var()
        # The estimate of a variance has relative deviation sqrt(2/trials) = 0.32%.
        assert left == pytest.approx(claimed[site], rel=0.02)
        assert left != pytest.approx(claimed[site] * 1.05, rel=0.02)


def test_the_published_split_leaves_about_half_of_what_is_claimed() -> None:
    # CAPE's split: tau_g^2 = tau_s^2 / S, pair variance tau_g^2; left: tau_s^2 (S+1) / 2S.
    for sites in (2, 5, 10, 50):
        left = complete_view_variance(1 / sites, 1 / sites, sites)
        assert left == pytest.approx((sites + 1) / (2 * sites), rel=1e-12)
    assert complete_view_variance(0.1, 0.1, 10) == pytest.approx(0.55)


def test_ring_masks_leave_the_noise_of_the_honest_component() -> None:
    path = np.zeros((5, 5), dtype=bool)
    for i, j in ((0, 1), (1, 2), (3, 4)):
        path[i, j] = path[j, i] = True
    everyone = np.ones(5, dtype=bool)
    assert ring_view_variances(0.5, path, everyone).tolist() == [1.5, 1.5, 1.5, 1.0, 1.0]
    cut = np.array([True, False, True, True, True])
    assert ring_view_variances(0.5, path, cut).tolist() == [0.5, 0.5, 1.0, 1.0]
    complete = PeerGraph.complete(7).adjacency()
    honest = np.arange(7) < 4
    assert ring_view_variances(2.0, complete, honest).tolist() == [8.0] * 4


def test_a_sparse_graph_can_leave_a_site_alone() -> None:
    # 50 sites, degree 6: someone draws a bad order sooner or later.
    rng = np.random.default_rng(5)
    worst = 50
    for trial in range(200):
        graph = PeerGraph.circulant(50, 6, SeededSource(trial).stream("graph"))
        honest = np.isin(np.arange(50), rng.choice(50, 30, replace=False))
        sizes = component_sizes(graph.adjacency()[np.ix_(honest, honest)])
        worst = min(worst, int(sizes.min()))
    assert worst == 1


def falls_apart(order_bad: np.ndarray, degree: int) -> bool:
    sites = len(order_bad)
    good = np.flatnonzero(~order_bad)
    adjacency = np.zeros((sites, sites), dtype=bool)
    for step in range(1, degree // 2 + 1):
        for place in range(sites):
            adjacency[place, (place + step) % sites] = True
    adjacency |= adjacency.T
    inner = adjacency[np.ix_(good, good)]
    return bool(len(good) and component_sizes(inner).min() < len(good))


@pytest.mark.parametrize(("sites", "degree", "colluding"), [(9, 2, 3), (10, 4, 4), (11, 4, 5)])
def test_the_disconnection_bound_covers_every_order(
    sites: int, degree: int, colluding: int
) -> None:
    places = list(combinations(range(sites), colluding))
    apart = sum(falls_apart(np.isin(np.arange(sites), bad), degree) for bad in places) / len(places)
    bound = disconnection_probability(sites, degree, colluding, 0)
    assert 0 < apart <= bound


@pytest.mark.parametrize(("sites", "degree", "colluding"), [(9, 4, 2), (10, 4, 3)])
def test_the_disconnection_bound_covers_drop_outs_chosen_after_the_order(
    sites: int, degree: int, colluding: int
) -> None:
    dropouts = 2
    places = list(combinations(range(sites), colluding))
    apart = 0
    for bad in places:
        rest = [p for p in range(sites) if p not in bad]
        apart += any(
            falls_apart(np.isin(np.arange(sites), (*bad, *gone)), degree)
            for gone in combinations(rest, dropouts)
        )
    assert 0 < apart / len(places) <= disconnection_probability(sites, degree, colluding, dropouts)


def test_the_exposure_bound_covers_every_order() -> None:
    sites, degree, colluding = 9, 4, 3
    places = list(combinations(range(sites), colluding))
    for threshold in (2, 3):
        exposed = 0
        for bad in places:
            near = [
                sum((site + step) % sites in bad for step in (-2, -1, 1, 2))
                for site in range(sites)
                if site not in bad
            ]
            exposed += max(near) >= threshold
        assert (
            0 < exposed / len(places) <= exposure_probability(sites, degree, colluding, threshold)
        )


def test_the_chosen_degree_keeps_the_failure_and_the_next_smaller_does_not() -> None:
    for dropouts in (0, 3, 10):
        degree = sparse_degree(200, 66, dropouts, 1e-8)
        assert degree is not None
        assert degree < 199
        assert graph_failure_probability(200, degree, 66, dropouts) <= 1e-8
        assert graph_failure_probability(200, degree - 2, 66, dropouts) > 1e-8


def test_a_server_that_may_draw_again_costs_every_draw() -> None:
    once = disconnection_probability(60, 30, 15, 2) + exposure_probability(60, 30, 15, 28)
    draws = 1 + 60 + 60 * 59 // 2
    assert graph_failure_probability(60, 30, 15, 2) == pytest.approx(draws * once)


def test_the_federations_views_are_those_of_the_joint_view() -> None:
    ring = Federation(sites=10, colluding=3, dropouts=1).view_factors()
    assert ring == {"public": pytest.approx(math.sqrt(6)), "server": pytest.approx(math.sqrt(6))}
    gaussian = Federation(
        sites=10, colluding=3, dropouts=1, masks=MaskKind.GAUSSIAN, pair_ratio=2.0
    ).view_factors()
    assert gaussian["public"] == pytest.approx(math.sqrt(6))
    assert gaussian["server"] ** 2 == pytest.approx(complete_view_variance(1.0, 2.0, 6))
    nearly = Federation(sites=10, colluding=3, masks=MaskKind.GAUSSIAN).view_factors()
    assert nearly["server"] ** 2 == pytest.approx(7, rel=0.01)
