"""What a curious server and its colluders are left with, measured on runs of the protocol.

The server keeps every upload it is sent, calls honest sites lost although their uploads came or
come late, collects whatever the others then reveal, and is given all that the colluders hold:
their keys and the shares that others entrusted to them. It takes off every mask that it can work
out. What is left on the honest uploads is noise, since their rows are zero; its law must be the
one that the guarantee is computed from. Every test that accepts this law is shown to reject a
slightly wrong one. Seeds are fixed; the level is one in a million.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from capemix.accounting.joint_view import complete_view_variance, graph_view_variances
from capemix.data import LabeledRows
from capemix.methods.mixing.planning import mixture_sum, plan_mixtures
from capemix.plan import Plan
from capemix.protocol import group, shamir
from capemix.protocol.agreement import own_mask_key, pair_key
from capemix.sums import share as share_module
from capemix.sums.query import blocks
from capemix.sums.share import masks_of, share_dtype
from capemix.zerosum.masks import (
    GaussianMasks,
    Masks,
    SiteKeys,
    add_masks,
    remove_own_mask,
    remove_pair_noise,
)
from world import ASKED, World

LEVEL = 1e-6
SAMPLES, WIDTH = 15_000, 2

# (sites, colluding, dropouts), and who is called lost: nobody, or as many as may be.
CASES = [
    ((4, 1, 1), ()),
    ((4, 1, 1), (2,)),
    ((5, 2, 1), (4,)),
    ((6, 1, 2), (1, 4)),
    ((7, 2, 2), (3, 5)),
]


def noisy_plan(federation: tuple[int, int, int], masks: str) -> Plan:
    sites, colluding, dropouts = federation
    asked = {**ASKED, "sites": sites, "colluding": colluding, "dropouts": dropouts}
    asked |= {"width": WIDTH, "samples": SAMPLES, "mixture": 10, "class_sizes": (100,)}
    return plan_mixtures(**asked, masks=masks, noise=0.5)


def zero_row() -> LabeledRows:
    return LabeledRows(
        features=np.zeros((1, WIDTH)),
        labels=np.zeros(1, dtype=np.int64),
        classes=(0,),
        feature_names=("a", "b"),
    )


@dataclass
class CuriousServer:
    """Holds what came over the wire, and the colluders' own states; nothing else."""

    world: World
    colluding: tuple[int, ...]
    called_lost: tuple[int, ...] = ()
    late: bool = False

    def __post_init__(self) -> None:
        self.plan, self.query = self.world.plan, self.world.query
        self.seen: dict[int, np.ndarray] = {}
        for site in self.colluding:  # who colludes erases nothing
            colluder: Any = self.world.sites[site]
            colluder._erase_secrets = colluder._erase_shares = lambda: None

    def listen(self) -> CuriousServer:
        world, run = self.world, self.world.run
        while (round_ := run.round) is not None:
            for site, raw in list(run.requests()):
                answer = world.ask(site, raw)
                assert answer is not None
                if round_ == "upload" and site in self.called_lost:
                    if not self.late:
                        self.keep(site)
                    continue  # it did come; the server says that it did not
                world.bring(site, answer)
                if round_ == "upload":
                    self.keep(site)
            run.close()
        for site in self.called_lost:
            if self.late:
                self.keep(site)
        return self

    def keep(self, site: int) -> None:
        run = self.world.run
        parts = []
        for index in range(run._spool.cut.chunks):
            part = self.world.chunk(site, run.chunk_request(site, index))
            assert part is not None
            parts.append(part)
        words = np.frombuffer(b"".join(parts), dtype=share_dtype(self.query))
        self.seen[site] = words.reshape(self.query.shape)

    # -- what it can work out --------------------------------------------------------------------

    def secret(self, kind: str, site: int) -> bytes | None:
        """A site's secret: a colluder's own, or put together from all shares within reach."""
        if site in self.colluding:
            colluder = self.world.sites[site]
            return colluder._own_mask if kind == "own" else colluder._mask_secret
        shares = {
            holder: self.world.sites[holder]._held[site][kind == "pair"]
            for holder in self.colluding
            if site in self.world.sites[holder]._held
        }
        for holder, message in self.world.run._replies["unmask"].items():
            if str(site) in message.body[kind]:
                shares[holder] = bytes.fromhex(message.body[kind][str(site)])
        threshold = self.plan.federation.share_threshold
        if len(shares) < threshold:
            return None
        return shamir.combine(dict(list(shares.items())[:threshold]))

    def shared_key(self, site: int, peer: int) -> bytes | None:
        """The key of a pair's noise, if either side's secret is known."""
        keys = self.world.run._replies["keys"]
        for one, other in ((site, peer), (peer, site)):
            secret = self.secret("pair", one)
            if secret is not None:
                assert group.point_of(secret).hex() == keys[one].body["mask"]
                public = bytes.fromhex(keys[other].body["mask"])
                return pair_key(self.world.run._context, secret, public, one, other)
        return None

    def stripped(self, site: int) -> np.ndarray:
        """A site's upload without every mask that can be taken off it, in one row."""
        values, masks = self.seen[site].copy(), masks_of(self.query)
        secret = self.secret("own", site)
        own = None if secret is None else own_mask_key(self.world.run._context, secret)
        pairs = {
            peer: key
            for peer in range(self.plan.federation.sites)
            if peer != site and (key := self.shared_key(site, peer)) is not None
        }
        for block in blocks(self.query):
            part = values[block.start : block.stop]
            if own is not None:
                remove_own_mask(part, own, masks, block.label)
            for peer, key in pairs.items():
                remove_pair_noise(part, key, masks, block.label, included=site, missing=peer)
        return values.reshape(-1)

    @property
    def honest(self) -> list[int]:
        """The honest sites in the sum."""
        return [site for site in self.world.run.included if site not in self.colluding]


def a_server(
    federation: tuple[int, int, int],
    masks: str,
    folder: Path,
    called_lost: tuple[int, ...],
    *,
    late: bool = False,
    noise_factor: float = 1.0,
) -> CuriousServer:
    plan = noisy_plan(federation, masks)
    rows = [zero_row()] * federation[0]
    world = World(plan, folder / "spool", seed=3, rows=rows, noise_factor=noise_factor)
    colluding = tuple(s for s in range(federation[0]) if s not in called_lost)[: federation[1]]
    return CuriousServer(world, colluding, called_lost, late).listen()


def claimed_variance(plan: Plan) -> float:
    """The noise that the guarantee's server view states, in the units of an upload."""
    query = mixture_sum(plan)
    noise = plan.guarantee().views["server"].noise * query.line.divisor
    return float(noise * query.lattice_scale) ** 2


def without_self_mask(
    block: np.ndarray, keys: SiteKeys, masks: Masks, label: tuple[Any, ...]
) -> None:
    add_masks(block, keys, masks, label)
    remove_own_mask(block, keys.own, masks, label)


# -- Gaussian masks --------------------------------------------------------------------------------


def covariance_p_value(found: np.ndarray, covariance: np.ndarray) -> float:
    """The likelihood ratio test that rows of normal numbers have this covariance, mean zero."""
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), found)
    sites, numbers = found.shape
    sample = whitened @ whitened.T / numbers
    ratio = numbers * (np.trace(sample) - np.linalg.slogdet(sample)[1] - sites)
    return float(stats.chi2.sf(ratio, sites * (sites + 1) / 2))


def law_of_uploads(plan: Plan, included: int, lost: int) -> np.ndarray:
    """g I + p (h I - 11') on the honest included; g + b alone on each one called lost."""
    query = mixture_sum(plan)
    masks = masks_of(query)
    assert isinstance(masks, GaussianMasks)
    own, pair, self_mask = (
        deviation**2
        for deviation in (query.site_deviation, masks.pair_deviation, masks.own_deviation)
    )
    law = np.zeros((included + lost, included + lost))
    law[:included, :included] = (own + included * pair) * np.eye(included) - pair
    law[included:, included:] = (own + self_mask) * np.eye(lost)
    return law


@pytest.mark.parametrize(("federation", "called_lost"), CASES)
@pytest.mark.parametrize("late", [False, True])
def test_gaussian_masks_leave_the_law_that_the_guarantee_assumes(
    tmp_path: Path, federation: tuple[int, int, int], called_lost: tuple[int, ...], late: bool
) -> None:
    server = a_server(federation, "gaussian", tmp_path, called_lost, late=late)
    plan, honest = server.plan, server.honest
    assert len(honest) == federation[0] - federation[1] - len(called_lost)
    left = np.array([server.stripped(site) for site in (*honest, *called_lost)])
    law = law_of_uploads(plan, len(honest), len(called_lost))
    assert covariance_p_value(left, law) > LEVEL
    # The best that a linear estimate can do against each honest row, and what is claimed of it.
    best = 1 / np.diag(np.linalg.inv(left @ left.T / left.shape[1]))
    claim = claimed_variance(plan)
    assert (best > claim * (1 - 5 * np.sqrt(2 / left.shape[1]))).all()
    if len(called_lost) == federation[2]:  # as few honest ones as the plan permits: no slack
        np.testing.assert_allclose(best[: len(honest)], claim, rtol=0.05)
    # Colluders, the missing and self masks that came off play no part: the formula of the honest.
    adjacency = ~np.eye(len(honest), dtype=bool)
    everyone = np.ones(len(honest), dtype=bool)
    own = server.query.site_deviation**2
    pair = own * plan.federation.pair_ratio
    of_graph = graph_view_variances(own, pair, adjacency, everyone)
    np.testing.assert_allclose(best[: len(honest)], of_graph, rtol=0.05)
    # The same numbers do not pass for slightly wrong laws.
    assert covariance_p_value(left, law - 0.1 * own * np.eye(len(law))) < LEVEL
    edge = np.zeros(len(law))
    edge[:2] = 1, -1
    assert covariance_p_value(left, law - 0.2 * pair * np.outer(edge, edge)) < LEVEL
    if called_lost:
        bare = law.copy()
        bare[-1, -1] = own
        assert covariance_p_value(left, bare) < LEVEL


def test_sites_that_add_a_tenth_less_noise_are_noticed(tmp_path: Path) -> None:
    server = a_server((5, 2, 1), "gaussian", tmp_path, (4,), noise_factor=0.9)
    left = np.array([server.stripped(site) for site in server.honest])
    assert covariance_p_value(left, law_of_uploads(server.plan, len(left), 0)) < LEVEL
    best = 1 / np.diag(np.linalg.inv(left @ left.T / left.shape[1]))
    assert (best < claimed_variance(server.plan)).all()


def test_without_a_self_mask_a_site_called_lost_has_its_own_noise_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_module, "add_masks", without_self_mask)
    server = a_server((5, 2, 1), "gaussian", tmp_path, (4,))
    left = server.stripped(4)[None]
    assert covariance_p_value(left, law_of_uploads(server.plan, 0, 1)) < LEVEL
    own = server.query.site_deviation**2
    assert covariance_p_value(left, np.array([[own]])) > LEVEL
    assert own < claimed_variance(server.plan) / 1.9


def test_the_self_mask_is_at_least_the_other_honest_sites_noise() -> None:
    for federation, _ in CASES:
        plan = noisy_plan(federation, "gaussian")
        honest = plan.federation.adversary.honest
        hidden = law_of_uploads(plan, 0, 1)[0, 0]
        own = mixture_sum(plan).site_deviation ** 2
        assert hidden >= honest * own
        assert hidden > complete_view_variance(own, own * plan.federation.pair_ratio, honest)


# -- ring masks ------------------------------------------------------------------------------------


def uniform_p_value(words: np.ndarray) -> float:
    """That every byte of the words is uniform: the least p-value, times their number."""
    columns = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1).T
    values = [stats.chisquare(np.bincount(byte, minlength=256)).pvalue for byte in columns]
    return min(1.0, float(min(values)) * len(values))


def independence_p_value(one: np.ndarray, two: np.ndarray) -> float:
    """That the top four bits of one upload say nothing about those of another."""
    shift = one.dtype.type(8 * one.itemsize - 4)
    table, *_ = np.histogram2d(one >> shift, two >> shift, bins=(16, 16))
    return float(stats.chi2_contingency(table).pvalue)


def variance_p_value(noise: np.ndarray, variance: float) -> float:
    found = float((noise**2).sum() / variance)
    return 2 * min(stats.chi2.sf(found, noise.size), stats.chi2.cdf(found, noise.size))


def signed(words: np.ndarray) -> np.ndarray:
    return words.view(words.dtype.str.replace("u", "i")).astype(np.float64)


@pytest.mark.parametrize(("federation", "called_lost"), CASES)
@pytest.mark.parametrize("late", [False, True])
def test_ring_masks_leave_the_honest_sum_and_nothing_else(
    tmp_path: Path, federation: tuple[int, int, int], called_lost: tuple[int, ...], late: bool
) -> None:
    server = a_server(federation, "ring", tmp_path, called_lost, late=late)
    plan, honest = server.plan, server.honest
    left = {site: server.stripped(site) for site in (*honest, *called_lost)}
    for one, two in combinations(left, 2):
        if len(honest) > 2 or not {one, two} <= set(honest):  # of two, each is minus the other
            assert independence_p_value(left[one], left[two]) > LEVEL
    # Any sum or difference but the whole sum is uniform, those called lost among them or not.
    for signs in product((-1, 0, 1), repeat=len(honest)):
        if len(set(signs)) == 1:
            continue
        total = np.zeros_like(left[honest[0]])
        for sign, site in zip(signs, honest, strict=True):
            if sign:
                total = total + left[site] if sign > 0 else total - left[site]
        assert uniform_p_value(total) > LEVEL, signs
    whole = np.sum([left[site] for site in honest], axis=0, dtype=left[honest[0]].dtype)
    for site in called_lost:
        assert uniform_p_value(left[site]) > LEVEL
        assert uniform_p_value(left[site] + whole) > LEVEL
    # The whole sum carries the honest sites' noise.
    variance = len(honest) * server.query.site_deviation**2
    noise = signed(whole)
    assert variance_p_value(noise, variance) > LEVEL
    claim = claimed_variance(plan)
    assert variance >= claim * (1 - 1e-9)
    if len(called_lost) == federation[2]:
        assert variance == pytest.approx(claim, rel=1e-9)
    assert noise.var() > claim * (1 - 5 * np.sqrt(2 / noise.size))
    # The tests have teeth.
    assert uniform_p_value(whole) < LEVEL
    assert variance_p_value(noise, 1.1 * variance) < LEVEL
    assert independence_p_value(left[honest[0]], left[honest[0]] + whole) < LEVEL


def test_without_a_self_mask_a_site_called_lost_is_not_uniform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_module, "add_masks", without_self_mask)
    server = a_server((5, 2, 1), "ring", tmp_path, (4,))
    left = server.stripped(4)
    assert uniform_p_value(left) < LEVEL
    assert variance_p_value(signed(left), server.query.site_deviation**2) > LEVEL
    assert server.query.site_deviation**2 < claimed_variance(server.plan) / 1.9


def test_ring_sites_that_add_a_tenth_less_noise_are_noticed(tmp_path: Path) -> None:
    server = a_server((5, 2, 1), "ring", tmp_path, (4,), noise_factor=0.9)
    whole = np.sum(
        [server.stripped(site) for site in server.honest],
        axis=0,
        dtype=share_dtype(server.query),
    )
    assert variance_p_value(signed(whole), claimed_variance(server.plan)) < LEVEL


@pytest.mark.parametrize("masks", ["ring", "gaussian"])
def test_the_server_has_one_secret_of_every_honest_site_and_no_more(
    tmp_path: Path, masks: str
) -> None:
    server = a_server((5, 2, 1), masks, tmp_path, (4,))
    for site in server.honest:
        assert server.secret("own", site) is not None
        assert server.secret("pair", site) is None
    assert server.secret("own", 4) is None
    assert server.secret("pair", 4) is not None
