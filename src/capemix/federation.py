"""Who takes part, what each site's noise is, and what each observer is left facing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from capemix.accounting.joint_view import (
    MOST_PROPOSALS,
    complete_view_variance,
    graph_failure_probability,
    sparse_degree,
)
from capemix.errors import InputError, member
from capemix.guarantee import Adversary

MOST_SITES: Final = 1000
"""Beyond, working out what a peer graph may cost would take minutes."""


class Scheme(StrEnum):
    CENTRAL = "central"  # one trusted curator
    CONVENTIONAL = "conventional"  # every site noises for itself; uploads are averaged
    CAPE = "cape"  # zero-sum noise across sites


class Form(StrEnum):
    JOINT = "joint"  # one Poisson draw over all sites' records; shares add up to the mixture
    ALGORITHM1 = "algorithm1"  # as published: every site mixes l of its own rows; averaged


class MaskKind(StrEnum):
    RING = "ring"
    GAUSSIAN = "gaussian"


class SiteNoise(StrEnum):
    """How much noise a site adds to its own mixture when mixtures are averaged.

    TAU* is what Theorem 1 (or the sound accountant) asks of a released mixture. The first two are
    readings of the paper's "sqrt(S) more noise" for the conventional scheme, the last two of
    CAPE's own noise in Algorithm 1.
    """

    SQRT_SITES = "sqrt-sites"  # sqrt(S) TAU*: averaged, exactly the central variance
    SITES = "sites"  # S TAU*: averaged, sqrt(S) times the central deviation (Table 1(b))
    SOUND = "sound"  # calibrated at the site's own sampling rate
    MATCHED = "matched"  # sqrt(S) TAU*: the released variance is the pooled one
    APPENDIX = "appendix"  # TAU*, as the appendix sets it: the released variance is TAU*^2 / S


def default_colluding(sites: int) -> int:
    """max(1, ceil(S/3) - 1), CAPE's own tolerance; nobody when there is one site."""
    return 0 if sites < 2 else max(1, math.ceil(sites / 3) - 1)


@dataclass(frozen=True)
class Federation:
    """The scheme and the adversary it is planned against.

    ``pair_ratio`` is the variance of a pair's Gaussian noise over that of a site's own noise:
    1 is CAPE's published split; 100 leaves the server's view within 1% of the public one.
    ``peers`` is the degree of a sparse circulant peer graph; None is the complete graph.
    """

    scheme: Scheme = Scheme.CAPE
    form: Form = Form.JOINT
    sites: int = 1
    colluding: int = 0
    dropouts: int = 0
    masks: MaskKind = MaskKind.RING
    site_noise: SiteNoise = SiteNoise.MATCHED
    pair_ratio: float = 100.0
    peers: int | None = None

    def __post_init__(self) -> None:
        s, m, d = self.sites, self.colluding, self.dropouts
        for name, count in (("sites", s), ("colluding", m), ("dropouts", d)):
            if type(count) is not int:
                raise InputError(name, "must be a whole number", value=count, fix="give 3, say")
        if s < 1:
            raise InputError("sites", "must be at least 1", value=s, fix="give a number of sites")
        if s > MOST_SITES:
            raise InputError(
                "sites", f"must be at most {MOST_SITES}", value=s, fix="group some of them"
            )
        if m < 0 or d < 0:
            raise InputError(
                "colluding and dropouts",
                "cannot be negative",
                value=f"{m} and {d}",
                fix="give 0 or more",
            )
        if self.scheme is Scheme.CENTRAL and s != 1:
            raise InputError(
                "sites",
                "must be 1 for the central scheme",
                value=s,
                fix="leave it out, or choose the scheme cape",
            )
        if s >= 2 and m < 1:
            raise InputError(
                "colluding",
                "must be at least 1 with two or more sites",
                value=m,
                fix="every participant knows its own noise; leave it out for the default",
            )
        if s - m - d < 1:
            raise InputError(
                "sites, colluding and dropouts",
                "leave no honest site",
                value=f"S={s}, M={m}, D={d}",
                fix="lower 'colluding' or 'dropouts': what is left of the sites must be at least 1",
            )
        if self.masked and s >= 2 and self.agreement > s - d:
            raise InputError(
                "sites, colluding and dropouts",
                f"cannot agree on who is included: {self.agreement} signatures are needed and "
                f"{s - d} sites may be left",
                value=f"S={s}, M={m}, D={d}",
                fix="lower 'colluding' or 'dropouts', or add sites",
            )
        if self.peers is not None and self.masks is MaskKind.GAUSSIAN:
            raise InputError(
                "peers",
                "needs ring masks",
                value=self.peers,
                fix="use ring masks, or the complete graph",
            )
        if self.peers is not None and (self.peers % 2 or not max(1, d) < self.peers < s):
            raise InputError(
                "peers",
                f"must be even, above the drop-outs ({d}) and below the sites ({s})",
                value=self.peers,
                fix="leave it out for the degree that the adversary asks for",
            )
        if not 1e-6 <= self.pair_ratio <= 1e12:
            raise InputError(
                "pair_ratio",
                "must be a positive number: pair masks over own noise, in variance",
                value=self.pair_ratio,
                fix="leave it out",
            )
        if self.averaged and self.scheme is Scheme.CAPE and self.masks is MaskKind.RING:
            raise InputError(
                "masks",
                "must be gaussian for Algorithm 1",
                value=self.masks,
                fix="use Gaussian masks, or the joint form",
            )

    @property
    def adversary(self) -> Adversary:
        return Adversary(self.sites, self.colluding, self.dropouts)

    @property
    def masked(self) -> bool:
        return self.scheme is Scheme.CAPE

    @property
    def averaged(self) -> bool:
        """Whether every site makes a whole mixture and the release is their average."""
        return self.scheme is Scheme.CONVENTIONAL or (
            self.scheme is Scheme.CAPE and self.form is Form.ALGORITHM1
        )

    @property
    def agreement(self) -> int:
        """Matching signatures on the included set before anyone reveals a key."""
        return (self.sites + self.colluding) // 2 + 1

    @property
    def share_threshold(self) -> int:
        """How many holders of its shares put a site's secret together: among all sites, or among
        the neighbours of a sparse graph, of whom ``dropouts`` may be missing."""
        return self.agreement if self.peers is None else self.peers - self.dropouts

    @property
    def theorem_factor(self) -> float:
        """The released noise TAU over the noise that Theorem 1 asks for."""
        if self.averaged and self.site_noise is SiteNoise.SITES:
            return math.sqrt(self.sites)
        if self.averaged and self.site_noise is SiteNoise.APPENDIX:
            return 1.0 / math.sqrt(self.sites)
        return 1.0

    def view_factors(self) -> dict[str, float]:
        """For each view the noise that a record faces, over one site's own noise.

        In public, colluders subtract their own noise and the missing added none. The server sees
        every upload: as they are in the conventional scheme, the honest sum only under ring masks,
        and the joint view of `accounting.joint_view` under Gaussian ones.
        """
        honest = self.adversary.honest
        public = math.sqrt(honest)
        if self.scheme is Scheme.CENTRAL:
            return {"public": public}
        if not self.masked:
            return {"public": public, "server": 1.0}
        if self.masks is MaskKind.RING:
            return {"public": public, "server": public}
        server = math.sqrt(complete_view_variance(1.0, self.pair_ratio, honest))
        return {"public": public, "server": server}

    def graph_failure(self) -> float:
        """The chance that the peer graph leaves an honest site without the others' noise, or its
        secrets to colluding neighbours, in any of as many runs as a server may break off and
        propose again to have another graph drawn."""
        if self.peers is None:
            return 0.0
        once = graph_failure_probability(self.sites, self.peers, self.colluding, self.dropouts)
        return min(1.0, MOST_PROPOSALS * once)


CENTRAL: Final = Federation(scheme=Scheme.CENTRAL)
"""One curator, who is trusted."""


def peers_for(sites: int, colluding: int, dropouts: int, failure: float) -> int | None:
    """Complete up to 50 sites; beyond, the smallest degree that keeps the failure bound."""
    if not 50 < sites <= MOST_SITES:
        return None
    return sparse_degree(sites, colluding, dropouts, failure / MOST_PROPOSALS)


def _site_noise(
    asked: SiteNoise | str | None, *, averaged: bool, algorithm1: bool, published: bool
) -> SiteNoise:
    """How a site's noise is scaled, if the scheme and the accountant leave a choice."""
    if algorithm1:
        known = [SiteNoise.MATCHED, *([SiteNoise.APPENDIX] if published else [])]
    elif averaged:
        known = [SiteNoise.SITES, SiteNoise.SQRT_SITES] if published else [SiteNoise.SOUND]
    else:
        known = [SiteNoise.MATCHED]
    if asked is None:
        return known[0]
    if asked not in known or not averaged:
        raise InputError(
            "site_noise",
            "does not fit the scheme and the accountant",
            value=asked,
            fix=f"use one of {', '.join(known)}" if averaged else "leave it out",
        )
    return SiteNoise(asked)


def make_federation(
    *,
    scheme: Scheme | str = Scheme.CENTRAL,
    form: Form | str = Form.JOINT,
    sites: int = 1,
    colluding: int | None = None,
    dropouts: int = 0,
    masks: MaskKind | str | None = None,
    peers: int | None = None,
    site_noise: SiteNoise | str | None = None,
    delta: float = 1e-5,
    published: bool = False,
) -> Federation:
    """Who takes part, with the defaults that go with the scheme. ``published``: a published theorem
    stands in for sound accounting."""
    scheme, form = member(Scheme, scheme, "scheme"), member(Form, form, "form")
    masks = None if masks is None else member(MaskKind, masks, "masks")
    cape = scheme is Scheme.CAPE
    said: tuple[tuple[str, object, bool], ...] = (
        ("form", form, cape or form is Form.JOINT),
        ("masks", masks, cape or masks in (None, MaskKind.RING)),
        ("peers", peers, cape or peers is None),
        ("sites", sites, scheme is not Scheme.CENTRAL or sites == 1),
        ("colluding", colluding, scheme is not Scheme.CENTRAL or not colluding),
        ("dropouts", dropouts, scheme is not Scheme.CENTRAL or not dropouts),
    )
    for field, value, has_meaning in said:
        if not has_meaning:
            raise InputError(
                field,
                f"has no meaning for the scheme {scheme}",
                value=value,
                fix="leave it out, or use the scheme cape",
            )
    algorithm1 = cape and form is Form.ALGORITHM1
    averaged = algorithm1 or scheme is Scheme.CONVENTIONAL
    if scheme is Scheme.CENTRAL:
        colluding, dropouts, masks = 0, 0, MaskKind.RING
    if masks is None:
        masks = MaskKind.GAUSSIAN if algorithm1 else MaskKind.RING
    if colluding is None:
        colluding = default_colluding(sites)
    if peers is None and cape and masks == MaskKind.RING and sites > 50:
        peers = peers_for(sites, colluding, dropouts, delta * 1e-3)
    return Federation(
        scheme=scheme,
        form=form,
        sites=sites,
        colluding=colluding,
        dropouts=dropouts,
        masks=masks,
        site_noise=_site_noise(
            site_noise, averaged=averaged, algorithm1=algorithm1, published=published
        ),
        pair_ratio=1.0 if algorithm1 else 100.0,
        peers=peers,
    )
