"""Masks cancel for every set of included sites, and hide what accounting says they hide."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from capemix.accounting.joint_view import graph_view_variances
from capemix.errors import InputError
from capemix.randomness.source import SeededSource
from capemix.zerosum.graph import PeerGraph
from capemix.zerosum.masks import (
    GaussianMasks,
    Masks,
    RingMasks,
    SiteKeys,
    add_masks,
    deal_keys,
    remove_own_mask,
    remove_pair_noise,
)

LABEL = ("mixtures", 0)
ACCEPT = 1e-6


def graphs(sites: int) -> list[PeerGraph]:
    found = [PeerGraph.complete(sites)]
    if sites >= 5:
        found.append(PeerGraph.circulant(sites, 4, SeededSource(9).stream("graph")))
    return found


def unmasked_sum(
    uploads: list[np.ndarray], keys: tuple[SiteKeys, ...], masks: Masks, included: tuple[int, ...]
) -> np.ndarray:
    total = np.zeros_like(uploads[0])
    for site in included:
        total += uploads[site]
    for site in included:
        remove_own_mask(total, keys[site].own, masks, LABEL)
        for peer, key in keys[site].pair.items():
            if peer not in included:
                remove_pair_noise(total, key, masks, LABEL, included=site, missing=peer)
    return total


@pytest.mark.parametrize("sites", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_ring_masks_cancel_bit_for_bit_for_every_included_set(sites: int, dtype: type) -> None:
    for graph in graphs(sites):
        keys = deal_keys(graph, SeededSource(1))
        plain = [np.full((3, 5), (s + 1) * 10**8 * 7, dtype=dtype) for s in range(sites)]
        uploads = [values.copy() for values in plain]
        for site in range(sites):
            add_masks(uploads[site], keys[site], RingMasks(), LABEL)
            assert (uploads[site] != plain[site]).any()
        for size in range(1, sites + 1):
            for included in combinations(range(sites), size):
                expected = sum((plain[s] for s in included), np.zeros((3, 5), dtype=dtype))
                found = unmasked_sum(uploads, keys, RingMasks(), included)
                assert (found == expected).all()


@pytest.mark.parametrize("sites", [2, 3, 6])
def test_gaussian_masks_cancel_to_rounding_for_every_included_set(sites: int) -> None:
    masks = GaussianMasks(pair_deviation=100.0, own_deviation=50.0)
    for graph in graphs(sites):
        keys = deal_keys(graph, SeededSource(2))
        uploads = [np.full((3, 5), float(s + 1)) for s in range(sites)]
        for site in range(sites):
            add_masks(uploads[site], keys[site], masks, LABEL)
        for size in range(1, sites + 1):
            for included in combinations(range(sites), size):
                expected = float(sum(s + 1 for s in included))
                found = unmasked_sum(uploads, keys, masks, included)
                np.testing.assert_allclose(found, expected, atol=1e-10)


def test_a_forgotten_mask_is_noticed() -> None:
    keys = deal_keys(PeerGraph.complete(3), SeededSource(3))
    uploads = [np.zeros((2, 2), dtype=np.uint32) for _ in range(3)]
    for site in range(3):
        add_masks(uploads[site], keys[site], RingMasks(), LABEL)
    total = uploads[0] + uploads[1]  # site 2 is missing, nothing is taken off
    assert (total != 0).all()


@pytest.mark.parametrize("sparse", [False, True])
def test_for_every_colluding_subset_the_residual_is_what_accounting_assumed(sparse: bool) -> None:
    """Gaussian mode: colluders know their keys and take off all they can; the covariance of what
    is left of the honest uploads gives the noise on each."""
    sites, own, pair, numbers = 5, 1.0, 2.0, 120_000
    graph = (
        PeerGraph.circulant(sites, 2, SeededSource(8).stream("graph"))
        if sparse
        else PeerGraph.complete(sites)
    )
    keys = deal_keys(graph, SeededSource(4))
    masks = GaussianMasks(pair_deviation=np.sqrt(pair), own_deviation=3.0)
    rng = np.random.default_rng(5)
    uploads = [rng.normal(0, np.sqrt(own), (1, numbers)) for _ in range(sites)]
    for site in range(sites):
        add_masks(uploads[site], keys[site], masks, LABEL)
        remove_own_mask(uploads[site], keys[site].own, masks, LABEL)  # revealed: it is included
    for size in range(sites - 1):
        for colluding in combinations(range(sites), size):
            honest = [s for s in range(sites) if s not in colluding]
            left = []
            for site in honest:
                seen = uploads[site].copy()
                for peer, key in keys[site].pair.items():
                    if peer in colluding:
                        remove_pair_noise(seen, key, masks, LABEL, included=site, missing=peer)
                left.append(seen[0])
            measured = 1 / np.diag(np.linalg.inv(np.cov(np.array(left))))
            mask = np.isin(np.arange(sites), honest)
            claimed = graph_view_variances(own, pair, graph.adjacency(), mask)
            np.testing.assert_allclose(measured, claimed, rtol=0.03)
            assert (np.abs(measured / (1.1 * claimed) - 1) > 0.03).all()


def test_a_masked_ring_upload_is_uniform_whatever_it_hides() -> None:
    for hidden in (0, 123_456):
        keys = deal_keys(PeerGraph.complete(2), SeededSource(hidden))
        upload = np.full((1, 200_000), hidden, dtype=np.uint32)
        add_masks(upload, keys[0], RingMasks(), LABEL)
        for shift in (0, 12, 24):
            counts = np.bincount((upload[0] >> np.uint32(shift)) & np.uint32(255), minlength=256)
            assert stats.chisquare(counts).pvalue > ACCEPT


def test_masks_of_other_blocks_queries_and_keys_are_unrelated() -> None:
    key, other = bytes(32), bytes(31) + b"\x01"
    made = []
    for k, label in ((key, ("q", 0)), (key, ("q", 1)), (key, ("r", 0)), (other, ("q", 0))):
        block = np.zeros((1, 8), dtype=np.uint32)
        RingMasks().add(block, k, label, 1)
        made.append(block.tobytes())
    assert len(set(made)) == 4


def test_a_circulant_graph_is_regular_and_differs_with_the_randomness() -> None:
    one = PeerGraph.circulant(20, 6, SeededSource(1).stream("graph"))
    two = PeerGraph.circulant(20, 6, SeededSource(2).stream("graph"))
    assert one != two
    for graph in (one, two):
        adjacency = graph.adjacency()
        assert (adjacency == adjacency.T).all()
        assert not adjacency.diagonal().any()
        assert (adjacency.sum(axis=0) == 6).all()
    for degree in (3, 0, 20):
        with pytest.raises(InputError, match="peers"):
            PeerGraph.circulant(20, degree, SeededSource(1).stream("graph"))


def test_keys_never_show() -> None:
    keys = deal_keys(PeerGraph.complete(2), SeededSource(1))
    assert keys[0].own.hex() not in repr(keys[0])
    assert str(keys[0].own) not in repr(keys[0])
