"""What the server and its colluders leave on an honest record: the joint view of all uploads.

Site s uploads v_s + g_s + e_s + b_s: its sum, its own noise, its zero-sum noise, its self mask.
Variances here are per coordinate and in the units of the share.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

Adjacency = npt.NDArray[np.bool_]


def complete_view_variance(own_variance: float, pair_variance: float, honest: int) -> float:
    """Gaussian zero-sum noise on a complete graph, server plus colluders against ``honest`` sites.

    The honest uploads have covariance g I + p (h I - 11^T); the noise that a change in one of them
    faces is 1 / [covariance^-1]_ss = 1 / [(1/h)/g + (1 - 1/h)/(g + h p)].
    """
    h = honest
    return 1.0 / ((1 / h) / own_variance + (1 - 1 / h) / (own_variance + h * pair_variance))


def graph_view_variances(
    own_variance: float, pair_variance: float, adjacency: Adjacency, honest: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """The same on any graph: 1 / [(g I + p L_H)^-1]_ss, L_H the Laplacian on honest sites."""
    among = adjacency[np.ix_(honest, honest)].astype(np.float64)
    laplacian = np.diag(among.sum(axis=1)) - among
    precision = np.linalg.inv(own_variance * np.eye(len(laplacian)) + pair_variance * laplacian)
    return np.asarray(1.0 / np.diag(precision))


def ring_view_variances(
    own_variance: float, adjacency: Adjacency, honest: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Uniform masks: only the sum over a connected honest component can be seen, so a record faces
    the component's noise together."""
    sizes = component_sizes(adjacency[np.ix_(honest, honest)])
    return np.asarray(own_variance * sizes.astype(np.float64))


def component_sizes(adjacency: Adjacency) -> npt.NDArray[np.int64]:
    """For every node the number of nodes connected with it, itself included."""
    unseen, sizes = set(range(len(adjacency))), np.zeros(len(adjacency), dtype=np.int64)
    while unseen:
        component: set[int] = set()
        frontier = {min(unseen)}
        while frontier:
            component |= frontier
            reached = np.flatnonzero(adjacency[sorted(frontier)].any(axis=0))
            frontier = set(reached.tolist()) - component
        sizes[sorted(component)] = len(component)
        unseen -= component
    return sizes


def disconnection_probability(sites: int, degree: int, colluding: int, dropouts: int) -> float:
    """Bound on the chance that a random circulant graph falls apart on its honest, included sites.

    The circle is cut only by two gaps of degree/2 neighbouring sites each that are all colluding
    or missing. Colluders are chosen before the order is drawn; who goes missing may be chosen
    after it. So at least degree - dropouts of the 2 (degree/2) places of some pair of gaps hold
    colluders: a union bound over pairs, each a hypergeometric tail.
    """
    if degree >= sites - 1:
        return 0.0
    pairs = sites * max(0, sites - degree + 1) / 2
    return min(1.0, pairs * _colluders_tail(sites, colluding, degree, max(0, degree - dropouts)))


def exposure_probability(sites: int, degree: int, colluding: int, threshold: int) -> float:
    """Bound on the chance that some site has ``threshold`` colluders among its neighbours, who
    could then put its secrets together."""
    return min(1.0, sites * _colluders_tail(sites - 1, colluding, degree, threshold))


MOST_PROPOSALS: Final = 1000
"""Runs on sparse graphs that a site joins for one lineage of rows, however often its agent is
started anew. A server may break a run off once it knows the graph and propose another, so the
chance of a bad graph counts as often. Graphs that cannot be bad are not counted."""


def graph_failure_probability(sites: int, degree: int, colluding: int, dropouts: int) -> float:
    """What a sparse graph adds to delta, its secrets shared so that any degree - dropouts
    neighbours can put them together.

    The order is drawn from the randomness of the sites that take part; a server can choose which
    ``dropouts`` or fewer of them do not, and so draw again: the bound is for all its choices.
    """
    choices = sum(math.comb(sites, lost) for lost in range(dropouts + 1))
    apart = disconnection_probability(sites, degree, colluding, dropouts)
    exposed = exposure_probability(sites, degree, colluding, degree - dropouts)
    return min(1.0, choices * (apart + exposed))


def _colluders_tail(sites: int, colluding: int, places: int, at_least: int) -> float:
    """P(at least so many of ``colluding`` sites fall on ``places`` of ``sites`` places)."""
    return sum(
        math.comb(places, k) * math.comb(sites - places, colluding - k)
        for k in range(max(0, at_least), min(places, colluding) + 1)
        if colluding - k <= sites - places
    ) / math.comb(sites, colluding)


def sparse_degree(sites: int, colluding: int, dropouts: int, failure: float) -> int | None:
    """The smallest even degree whose failure bound is at most ``failure``, if there is one below
    the complete graph's."""
    for degree in range(2, sites - 1, 2):
        if graph_failure_probability(sites, degree, colluding, dropouts) <= failure:
            return degree
    return None
