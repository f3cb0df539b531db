"""The one place that mints a Guarantee: from a query, the noise each view leaves, and delta; or,
where every record is released by itself, from the noise on its row and label."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from capemix.accounting.gaussian import gaussian_epsilon, gaussian_multiplier
from capemix.accounting.lattice import rounding_ratio
from capemix.accounting.sampled import epsilon_pld, epsilon_rdp, sampler_delta
from capemix.accounting.theorem1 import Theorem1
from capemix.guarantee import SEAL, Adversary, Guarantee, Status, ViewCost, unit_of
from capemix.queries import QueryShape, Relation

SAMPLER_ERROR: Final = 2.0**-100
"""Total-variation error per draw that a noise sampler may have; `randomness.tables` keeps it."""

ROUNDED: Final = "integer lattice, rounded Gaussian"
REAL: Final = "floating point, Gaussian"

ONE_RECORD: Final = "one record per person, across all sites"
PERSON_ASSUMPTIONS: Final = (
    "a row is of the person that its cell in the column of persons says; of one person no more rows"
    " count than are said",
)
ONE_SITE: Final = "all rows of a person are at one site, under one name"
COMMON_ASSUMPTIONS: Final = (
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


LEAST_MULTIPLIER: Final = 1e-3
"""With less noise than this, over the norm bound, epsilon is above a million: nothing is proved."""

_MOST_PLD: Final = 1e5
"""Losses are not laid out on a grid where Rényi accounting gives more than this. For rare draws
with little noise it gives fifty times what they cost, and more; beyond this the grid would be for a
figure that nobody can use."""


@dataclass(frozen=True)
class NoisedSum:
    """A query as it is carried out: what accounting must know of its noise.

    ``view_multipliers``: for each view the noise that a record faces, over ``l2_norm_bound``.
    ``site_sigma``: one site's noise in lattice units (None in real arithmetic); ``summands`` such
    noises face a record. ``beside``, where records are drawn, is the one Gaussian that all sums
    cost in which every record takes part: it is composed with the draws.
    """

    query: QueryShape
    view_multipliers: Mapping[str, float]
    arithmetic: str
    site_sigma: float | None
    summands: int
    graph_failure: float = 0.0
    list_failure: float = 0.0
    beside: NoisedSum | None = None

    @property
    def failure(self) -> float:
        """What delta pays for first: a peer graph that falls apart, and a list of values found by a
        threshold that one record alone passes."""
        own = self.graph_failure + self.list_failure
        return own if self.beside is None else own + self.beside.failure

    @property
    def strongest(self) -> str:
        return min(self.view_multipliers, key=self.view_multipliers.__getitem__)

    @property
    def numbers_drawn(self) -> int:
        """By one site: a row's coordinates, a subset size, and indices at 2^-97 each."""
        query = self.query
        per_row = query.width + 1 + 16 * max(64 + p.selected for p in query.participation)
        return query.rows * per_row + (0 if self.beside is None else self.beside.numbers_drawn)

    @property
    def rounding_growth(self) -> float:
        """The logarithm of what rounding may multiply any probability by: N log(1 + rho) / (1 -
        rho) for all N numbers (docs/theory/proofs/lattice.md). 0 off the lattice and at one site;
        infinite where a site's noise is too little for it."""
        if self.site_sigma is None:
            return 0.0
        ratio = rounding_ratio(self.site_sigma, self.summands)
        if ratio >= 1.0:
            return math.inf
        own = self.query.rows * self.query.width * (math.log1p(ratio) - math.log1p(-ratio))
        return own if self.beside is None else own + self.beside.rounding_growth

    def noise_beside(self, multiplier: float, relation: Relation) -> float:
        """The noise of the Gaussian that is made beside draws of this multiplier, over how far
        neighbours move it; infinite where there is none. All sums lose as much to a view."""
        if self.beside is None:
            return math.inf
        view = self.strongest
        own = self.beside.view_multipliers[view] / self.beside.query.moves(relation)
        return own * (multiplier / self.view_multipliers[view])


def sound_epsilon(noised: NoisedSum, multiplier: float, delta: float, relation: Relation) -> float:
    """The bound that the sound accountant proves for one view; infinite where it proves none.

    Delta first pays for the peer graph falling apart, for rounding and for the samplers' distance
    from their exact laws; the continuous Gaussian's own figure takes the rest.
    """
    if multiplier < LEAST_MULTIPLIER:
        return math.inf
    growth = noised.rounding_growth
    left = (delta - noised.failure) * math.exp(-growth)
    if left <= 0:
        return math.inf
    if noised.arithmetic == REAL:
        return tight_epsilon(noised, multiplier, left, relation)
    for samplers in (_SAMPLERS_SHARE, 0.5):  # a millionth of delta, or if that will not do half
        epsilon = tight_epsilon(noised, multiplier, left * (1 - samplers), relation) + growth
        if _samplers_delta(epsilon, noised) <= samplers * left:
            return epsilon
    return math.inf


def less_samplers(delta: float) -> float:
    """What is left of delta once a part is kept for the samplers, twice: for them and for
    rounding."""
    return delta * (1 - 2 * _SAMPLERS_SHARE)


def samplers_fit(epsilon: float, delta: float, *noised: NoisedSum) -> bool:
    """Whether the samplers' distance from their exact laws costs no more than is kept for it."""
    on_lattice = [each for each in noised if each.arithmetic != REAL]
    return _samplers_delta(epsilon, *on_lattice) <= _SAMPLERS_SHARE * delta


def most_fitting(delta: float, *noised: NoisedSum) -> float:
    """The largest epsilon at which `samplers_fit`, whatever the noise."""
    drawn = sum(each.numbers_drawn * each.summands for each in noised if each.arithmetic != REAL)
    if drawn == 0:
        return math.inf
    return math.log(_SAMPLERS_SHARE * delta / (drawn * SAMPLER_ERROR)) - 1e-9


def _samplers_delta(epsilon: float, *noised: NoisedSum) -> float:
    return sum(
        sampler_delta(epsilon, each.numbers_drawn, each.summands, SAMPLER_ERROR) for each in noised
    )


def tight_epsilon(noised: NoisedSum, multiplier: float, delta: float, relation: Relation) -> float:
    """What the continuous Gaussian costs at this delta: exactly where every record takes part, by
    privacy losses where records are drawn, and by Rényi orders where neither is known."""
    participation, replaced = noised.query.participation, noised.query.replacement_factor
    if not noised.query.always:
        renyi = renyi_epsilon(noised, multiplier, delta, relation)
        if renyi > _MOST_PLD:
            return renyi
    exact = epsilon_pld(
        participation,
        multiplier,
        delta,
        relation,
        replacement_factor=replaced,
        beside=noised.noise_beside(multiplier, relation),
    )
    return renyi_epsilon(noised, multiplier, delta, relation) if exact is None else exact


def renyi_epsilon(noised: NoisedSum, multiplier: float, delta: float, relation: Relation) -> float:
    """The same by the best Rényi order: never less than `tight_epsilon`."""
    return epsilon_rdp(
        noised.query.participation,
        multiplier,
        delta,
        relation,
        replacement_factor=noised.query.replacement_factor,
        beside=noised.noise_beside(multiplier, relation),
    )


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
    proved: float | None = None,
    rows_per_person: int | None = None,
) -> Guarantee:
    """The sound guarantee of one noised sum; ``unit`` is the norm bound in released units.
    ``rows_per_person``: of the rows of a person, of whom so many count; None: of a record.

    ``read_from_rows`` names public facts that were neither declared nor paid for: with one of them
    there is no guarantee. ``proved`` is what is proved of the sum together with those before it,
    against the strongest view and so against every view; None: it is alone.
    """
    strongest = noised.strongest

    def of_view(multiplier: float) -> float:
        return sound_epsilon(noised, multiplier, delta, relation) if proved is None else proved

    views = {
        name: ViewCost(
            noise=multiplier * unit,
            noise_multiplier=multiplier / noised.query.moves(relation),
            epsilon=_finite(of_view(multiplier)),
        )
        for name, multiplier in noised.view_multipliers.items()
    }
    epsilon = views[strongest].epsilon
    if seeded:
        status = Status.SEEDED
    elif epsilon is None:
        status = Status.NO_PRIVACY
    elif read_from_rows:
        status = Status.FROM_ROWS
    elif noised.arithmetic == REAL:
        status = Status.REAL_ARITHMETIC
    else:
        status = Status.GUARANTEE
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        adversary=adversary,
        view=strongest,
        views=views,
        accountant="sound",
        arithmetic=noised.arithmetic,
        status=status,
        assumptions=_of_unit(rows_per_person, adversary.sites)
        + COMMON_ASSUMPTIONS
        + (FEDERATED_ASSUMPTIONS if adversary.sites > 1 else ())
        + assumptions
        + undeclared(read_from_rows),
        unit=unit_of(rows_per_person),
        seal=SEAL,
    )


def _of_unit(rows_per_person: int | None, sites: int) -> tuple[str, ...]:
    """What is assumed of whose a record is."""
    if rows_per_person is None:
        return (ONE_RECORD,)
    return (*PERSON_ASSUMPTIONS, ONE_SITE) if sites > 1 else PERSON_ASSUMPTIONS


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
    epsilon = _finite(recordwise_epsilon(noised, delta))
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
        assumptions=(
            ONE_RECORD,
            *COMMON_ASSUMPTIONS,
            *RECORDWISE_ASSUMPTIONS,
            *undeclared(read_from_rows),
        ),
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
    epsilon = _finite(claim.theorem.epsilon(claim.theorem_noise, delta))
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
        assumptions=("Theorem 1 as published: see docs/theory/errata.md for what it leaves out",),
        seal=SEAL,
    )


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
