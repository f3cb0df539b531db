"""The one place that mints a Guarantee: from a query, the noise each view leaves, and delta; or,
where every record is released by itself, from the noise on its row and label."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from capemix.accounting.gaussian import gaussian_epsilon, gaussian_multiplier
from capemix.accounting.sampled import (
    epsilon_pld,
    epsilon_rdp,
    lattice_sum_epsilon,
    sampler_delta,
)
from capemix.accounting.theorem1 import Theorem1
from capemix.guarantee import SEAL, Adversary, Guarantee, Status, ViewCost
from capemix.queries import QueryShape, Relation

SAMPLER_ERROR: Final = 2.0**-100
"""Total-variation error per draw that a noise sampler may have; `randomness.tables` keeps it."""

LATTICE: Final = "integer lattice, discrete Gaussian"
ROUNDED: Final = "integer lattice, rounded Gaussian"
REAL: Final = "floating point, Gaussian"

COMMON_ASSUMPTIONS: Final = (
    "one record per person, across all sites",
    "the operating system's randomness is unpredictable",
    "everything declared (columns, classes, ranges, class sizes) is public knowledge",
    "no best-of-n reruns that are not counted",
    "that a run was refused, in front of the data's owner, is not made known",
    "no timing side channel",
)
FEDERATED_ASSUMPTIONS: Final = (
    "honest sites draw and add noise as told",
    "the roster of sites was verified out of band: puppets count as colluders",
    "whether a site drops out does not depend on its rows",
)
RING_ASSUMPTION: Final = "AES-256 and X25519 are hard to break (against the server)"
ONE_PROCESS: Final = (
    "all sites ran in one process, which saw every row: the server's view is what a federation"
    " carrying out this plan would show, with the rows split over sites as they were"
)
GRAPH_ASSUMPTION: Final = "the peer graph was drawn from all sites' randomness"
FIXED_SIZE_ASSUMPTION: Final = (
    "declared class sizes are lower bounds at every site, and a record's class is public"
)
FIXED_POOL_ASSUMPTION: Final = "the declared number of records is a lower bound at every site"
RECORDWISE_ASSUMPTIONS: Final = (
    "the number of records, at every site, is public",
    "a record's own site draws and adds its noise as told; nobody else need be trusted",
)


CONFIRMED_DRAFT: Final = (
    "the schema was drafted from the rows, and their owner confirmed that all of it is public"
    " knowledge"
)
FOREIGN: Final = "the method {} is of the package {}: it keeps the bounds that it says"
NOT_DECLARED: Final = (
    "{} was read from the rows, neither declared nor paid for: this is no guarantee"
)

_SAMPLERS_SHARE: Final = 1e-6
"""The part of delta that is kept for the samplers' distance from their exact laws."""


_LEAST_MULTIPLIER: Final = 1e-3
"""With less noise than this, over the norm bound, epsilon is above a million: nothing is proved."""

_MOST_PLD: Final = 200.0
"""Losses are not laid out on a grid where Rényi accounting gives more than this: it would take
minutes and gigabytes for a figure that nobody can use."""


@dataclass(frozen=True)
class NoisedSum:
    """A query as it is carried out: what accounting must know of its noise.

    ``view_multipliers``: for each view the noise that a record faces, over ``l2_norm_bound``.
    ``site_sigma``: one site's noise in lattice units (None in real arithmetic); ``summands`` such
    noises face a record. ``replacement_factor``: the largest change when a record is replaced,
    over the norm bound.
    """

    query: QueryShape
    view_multipliers: Mapping[str, float]
    arithmetic: str
    site_sigma: float | None
    summands: int
    replacement_factor: float = 2.0
    graph_failure: float = 0.0
    list_failure: float = 0.0

    @property
    def failure(self) -> float:
        """What delta pays for first: a peer graph that falls apart, and a list of values found by a
        threshold that one record alone passes."""
        return self.graph_failure + self.list_failure

    @property
    def strongest(self) -> str:
        return min(self.view_multipliers, key=self.view_multipliers.__getitem__)

    @property
    def numbers_drawn(self) -> int:
        """By one site: a row's coordinates, a subset size, and indices at 2^-97 each."""
        query = self.query
        per_row = query.width + 1 + 16 * max(64 + p.selected for p in query.participation)
        return query.rows * per_row

    @property
    def lattice_extra(self) -> float:
        """What it adds to epsilon that a sum of discrete Gaussians is not quite one; delta grows by
        the factor e^(half of it), and the divergence of order α by (2α-1)/(2α-2) of it."""
        if self.arithmetic != LATTICE or self.site_sigma is None:
            return 0.0
        coordinates = self.query.rows * self.query.width
        return lattice_sum_epsilon(self.site_sigma, self.summands, coordinates)


def sound_epsilon(noised: NoisedSum, multiplier: float, delta: float, relation: Relation) -> float:
    """The bound that the sound accountant proves for one view; infinite where it proves none.

    Delta first pays for the peer graph falling apart and for the samplers' distance from their
    exact laws; integer-order RDP (or, for the rounded Gaussian, PLD) takes the rest.
    """
    if multiplier < _LEAST_MULTIPLIER:
        return math.inf
    if noised.arithmetic == REAL:
        left = delta - noised.failure
        return _epsilon(noised, multiplier, left, relation) if left > 0 else math.inf
    drawn, extra = noised.numbers_drawn, noised.lattice_extra
    # The sum's law is within e^(extra/2) of one discrete Gaussian's, so delta grows by as much.
    left = (delta - noised.failure) * (1 - _SAMPLERS_SHARE) * math.exp(-extra / 2)
    if left <= 0:
        return math.inf
    epsilon = _epsilon(noised, multiplier, left, relation) + extra
    if sampler_delta(epsilon, drawn, noised.summands, SAMPLER_ERROR) <= _SAMPLERS_SHARE * left:
        return epsilon
    # The samplers' part is not negligible: grant it half of delta, or prove nothing.
    epsilon = _epsilon(noised, multiplier, left / 2, relation) + extra
    within = sampler_delta(epsilon, drawn, noised.summands, SAMPLER_ERROR) <= left / 2
    return epsilon if within else math.inf


def _epsilon(noised: NoisedSum, multiplier: float, delta: float, relation: Relation) -> float:
    participation = noised.query.participation
    renyi = epsilon_rdp(
        participation,
        multiplier,
        delta,
        relation,
        replacement_factor=noised.replacement_factor,
    )
    if noised.arithmetic == ROUNDED and renyi <= _MOST_PLD:
        exact = epsilon_pld(participation, multiplier, delta, relation)
        if exact is not None:
            return exact
    return renyi


def mint_sound(
    noised: NoisedSum,
    *,
    unit: float,
    delta: float,
    relation: Relation,
    adversary: Adversary,
    seeded: bool,
    assumptions: tuple[str, ...] = (),
    read_from_rows: tuple[str, ...] = (),
    earlier: Guarantee | None = None,
    reference: bool = True,
) -> Guarantee:
    """The sound guarantee of one noised sum; ``unit`` is the norm bound in released units.

    ``read_from_rows`` names public facts that were neither declared nor paid for: with one of them
    there is no guarantee.

    ``reference``: with the PLD figure of the continuous Gaussian beside it.

    ``earlier`` is a release that this one was planned after: epsilons and deltas add (basic
    composition holds for plans that depend on earlier outputs), and the weaker status counts.
    """
    if earlier is not None:
        if earlier.relation is not relation:
            raise ValueError(f"{earlier.relation} and {relation} do not compose")
        if earlier.adversary != adversary:
            raise ValueError("guarantees against different adversaries do not compose")
    strongest = noised.strongest
    base = noised.view_multipliers[strongest]
    views = {
        name: ViewCost(
            noise=multiplier * unit,
            noise_multiplier=multiplier,
            epsilon=_plus(sound_epsilon(noised, multiplier, delta, relation), earlier),
        )
        for name, multiplier in noised.view_multipliers.items()
    }
    epsilon = views[strongest].epsilon
    hockey_stick: float | None = math.inf if reference else None
    modest = base >= _LEAST_MULTIPLIER and _epsilon(noised, base, delta, relation) <= _MOST_PLD
    if reference and modest:
        hockey_stick = epsilon_pld(noised.query.participation, base, delta, relation)
    parts = {earlier.status} if earlier is not None else set()
    if seeded or Status.SEEDED in parts:
        status = Status.SEEDED
    elif epsilon is None:
        status = Status.NO_PRIVACY
    elif read_from_rows:
        status = Status.FROM_ROWS
    elif noised.arithmetic == REAL or Status.REAL_ARITHMETIC in parts:
        status = Status.REAL_ARITHMETIC
    else:
        status = Status.GUARANTEE
    return Guarantee(
        epsilon=epsilon,
        delta=delta + (earlier.delta if earlier else 0.0),
        relation=relation,
        adversary=adversary,
        view=strongest,
        views=views,
        accountant="sound",
        arithmetic=noised.arithmetic,
        status=status,
        epsilon_pld=None if hockey_stick is None else _plus(hockey_stick, earlier, pld=True),
        assumptions=COMMON_ASSUMPTIONS
        + (FEDERATED_ASSUMPTIONS if adversary.sites > 1 else ())
        + assumptions
        + undeclared(read_from_rows),
        seal=SEAL,
    )


def undeclared(read_from_rows: tuple[str, ...]) -> tuple[str, ...]:
    """What a guarantee says of facts that were read from the rows."""
    return tuple(NOT_DECLARED.format(fact) for fact in read_from_rows)


@dataclass(frozen=True)
class NoisedRecord:
    """A record released by itself: a row of ``columns`` numbers, moved by at most ``sensitivity``
    when the record is replaced, with a rounded Gaussian of deviation ``noise`` on each; and its
    label by randomised response at ``label_epsilon``."""

    columns: int
    sensitivity: float
    noise: float
    label_epsilon: float


def row_epsilon(noise: float, sensitivity: float, delta: float) -> float:
    """What the row alone costs: a rounded Gaussian is post-processing of a continuous one, so the
    analytic Gaussian mechanism is exact."""
    return gaussian_epsilon(noise / sensitivity, delta * (1 - _SAMPLERS_SHARE))


def row_noise(epsilon: float, sensitivity: float, delta: float) -> float:
    """The least noise at which the row alone costs ``epsilon``."""
    multiplier = gaussian_multiplier(epsilon, delta * (1 - _SAMPLERS_SHARE))
    return multiplier * sensitivity * (1 + 1e-12)


def most_recordwise(columns: int, delta: float) -> float:
    """The largest epsilon that `recordwise_epsilon` proves, whatever the noise."""
    return math.log(_SAMPLERS_SHARE * delta / ((columns + 1) * SAMPLER_ERROR))


def recordwise_epsilon(noised: NoisedRecord, delta: float) -> float:
    """Row and label of one record: their epsilons add, and the label needs no delta."""
    total = row_epsilon(noised.noise, noised.sensitivity, delta) + noised.label_epsilon
    drawn = noised.columns + 1
    within = sampler_delta(total, drawn, 1, SAMPLER_ERROR) <= _SAMPLERS_SHARE * delta
    return total if within else math.inf


def mint_recordwise(
    noised: NoisedRecord,
    *,
    row_bound: float,
    delta: float,
    sites: int,
    seeded: bool,
    read_from_rows: tuple[str, ...] = (),
) -> Guarantee:
    """The guarantee of a release in which a record is one row, noised at its own site: replace-one,
    and the same against everybody, all the other sites included."""
    epsilon = _plus(recordwise_epsilon(noised, delta), None)
    cost = ViewCost(noised.noise, noised.noise / row_bound, epsilon)
    status = Status.FROM_ROWS if read_from_rows else Status.GUARANTEE
    if epsilon is None:
        status = Status.NO_PRIVACY
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        relation=Relation.REPLACE_ONE,
        adversary=Adversary(sites, colluding=sites - 1, dropouts=0),
        view="public",
        views={"public": cost} if sites == 1 else {"public": cost, "server": cost},
        accountant="analytic Gaussian",
        arithmetic=ROUNDED,
        status=Status.SEEDED if seeded else status,
        epsilon_pld=None,
        assumptions=COMMON_ASSUMPTIONS + RECORDWISE_ASSUMPTIONS + undeclared(read_from_rows),
        seal=SEAL,
    )


@dataclass(frozen=True)
class PublishedClaim:
    """What a published theorem claims of a release. ``noise`` is the deviation on a released
    number, ``theorem_noise`` what of it the theorem speaks of, ``multiplier`` the noise over what
    one record adds."""

    theorem: Theorem1
    noise: float
    theorem_noise: float
    multiplier: float


def mint_paper(
    claim: PublishedClaim,
    *,
    delta: float,
    adversary: Adversary,
    arithmetic: str,
    seeded: bool,
) -> Guarantee:
    """What Theorem 1 claims for the release; it says nothing of the server or of colluders."""
    epsilon = _plus(claim.theorem.epsilon(claim.theorem_noise, delta), None)
    views = {"public": ViewCost(claim.noise, claim.multiplier, epsilon)}
    if adversary.sites > 1:
        views["server"] = ViewCost(claim.noise, claim.multiplier, None)
    status = Status.SEEDED if seeded else Status.NO_PRIVACY if epsilon is None else Status.PAPER
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        relation=Relation.REPLACE_ONE,
        adversary=adversary,
        view="public",
        views=views,
        accountant="paper",
        arithmetic=arithmetic,
        status=status,
        epsilon_pld=None,
        assumptions=("Theorem 1 as published: see docs/theory/errata.md for what it leaves out",),
        seal=SEAL,
    )


def _plus(epsilon: float, earlier: Guarantee | None, *, pld: bool = False) -> float | None:
    if not math.isfinite(epsilon):
        return None
    if earlier is None:
        return epsilon
    spent = earlier.epsilon_pld if pld and earlier.epsilon_pld is not None else earlier.epsilon
    return None if spent is None else epsilon + spent
