"""From noisy sums to images: clusters, a network that begins with their rows, rounds of noisy
gradients, its images, and labels by a teacher."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from capemix.collector import Collector
from capemix.methods.base import SyntheticRows
from capemix.methods.gaussians import apportioned
from capemix.methods.image_clusters.estimate import (
    LABELS,
    RIDGE,
    Estimated,
    drawn,
    estimated,
    finished,
    learned,
    soft_labels,
)
from capemix.methods.image_diffusion import training
from capemix.methods.image_diffusion.settings import GRADIENTS, between
from capemix.randomness.source import Source
from capemix.statistics.denoising import DenoisingGradients, Network
from capemix.statistics.head import Head
from capemix.statistics.projection import finite_rows
from capemix.statistics.scattering import channels, features_of, scattered
from capemix.sums.rows import denormalise_rows, normalise_rows
from capemix.sums.steps import PublicMap

if TYPE_CHECKING:
    from capemix.methods.image_diffusion import ImageDiffusion

Single = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64]

RATE: Final = 3e-4
"""Of Adam's steps on noisy gradients."""

TRUST: Final = (0.6, 0.8)
"""The teacher's part of a soft label of the network's rows, at epsilon 1 and at epsilon 10. Rows of
the clusters keep the class that they were drawn for: a teacher of sharp images knows them badly."""

BY_NETWORK: Final = (0.5, 0.9)
"""Of the rows, at epsilon 1 and at epsilon 10."""

_SEEN: Final = 6_000
"""Rows that the teacher's scales are told from."""

_CURVED: Final = 60_000
"""Rows that its curvature is told from, at most."""


def diffused_rows(method: ImageDiffusion, sums: Collector) -> SyntheticRows:
    """Rows of pixels in the data's own units, their labels and soft ones."""
    found = estimated(method.clusters, sums)
    source, network = sums.source(), method.network(sums.plan)
    wanted = method.samples if method.samples is not None else 2 * round(found.records)
    by_network = round(wanted * between(sums.plan, *BY_NETWORK))
    rows, labels = _of_clusters(found, wanted - by_network, source.child("released"))
    begun, of = _of_clusters(found, max(round(found.records), 1), source.child("begun"))
    normalised = normalise_rows(begun, found.frame.normalise).astype(np.float32)
    start = training.first_weights(network, source)
    warm = training.warmed(network, start, normalised, of, method.warm_steps, source)
    weights = refined(sums, network, warm, found)
    own = np.repeat(np.arange(len(found.sizes)), apportioned(by_network, found.sizes))
    images = training.drawn(network, weights, own, sums.source())
    denormalise_rows(images, found.frame.normalise)
    head, lattice = teacher(found, images), sums.lattice(f"{LABELS} 1")
    trust = between(sums.plan, *TRUST)
    soft = soft_labels(head, head.units(images, lattice), own, lattice, trust)
    sure = np.eye(len(found.sizes), dtype=np.float32)[labels]
    found.taking.warn_of_norms()
    return SyntheticRows(
        np.concatenate([images, rows]), np.concatenate([own, labels]), np.concatenate([soft, sure])
    )


def _of_clusters(found: Estimated, count: int, source: Source) -> tuple[Single, Codes]:
    """Rows of the clusters, with texture."""
    rows, labels = drawn(found, apportioned(count, found.sizes), source)
    return finished(found, rows, np.arange(len(labels)), source), labels


def refined(
    sums: Collector, network: Network, warm: Single, found: Estimated
) -> npt.NDArray[np.float64]:
    """The average of the network's weights on their way through all rounds."""
    (line,) = (line for line in sums.plan.body if line.name == GRADIENTS)
    (group,) = line.draws
    way = training.Descent(warm, RATE, line.repeats)
    normalise = found.frame.normalise
    if not isinstance(normalise, PublicMap):
        raise ValueError("the pixels' range is declared")
    for name in line.names:
        seed = sums.source().key("round", name).hex()
        asked = DenoisingGradients(network, normalise, way.now, line.l2_norm_bound, seed)
        noisy = sums.ask(name, asked)[0].astype(np.float64)
        way.step(noisy / (group.probability * found.records))
    return way.average


def teacher(found: Estimated, images: Single) -> Head:
    """A head that private gradients have trained to label ``images``, as sharp as they are: its
    scales and its curvature are theirs, which are public by now."""
    taking, records = found.taking, found.records
    frame = taking.projection(centre=found.centre)
    lattice = taking.sums.lattice(f"{LABELS} 1")
    zeros = np.zeros((features_of(taking.shape) + 1, len(found.sizes)))
    ones = np.ones(channels())
    some = np.ascontiguousarray(images[:: max(1, len(images) // _SEEN)])
    plain = Head(frame, taking.shape, frame.columns, 0.0 * ones, ones, zeros)
    seen = frame.seen_rows(some)(slice(None))
    about = finite_rows(frame.about(seen, np.zeros(len(some), dtype=np.int64)))
    features = scattered(plain.smoothed(about)).reshape(len(some), channels(), -1)
    mean = features.mean(axis=(0, 2), dtype=np.float64)
    deviation = np.maximum(features.std(axis=(0, 2), dtype=np.float64), 1e-6)
    like = replace(plain, mean=mean, deviation=deviation)
    ridge = RIDGE * max(taking.sums.noise_multiplier(f"{LABELS} 1"), 1e-3) / records
    curved = np.ascontiguousarray(images[:: max(1, -(-len(images) // _CURVED))])
    newton = like.curvature(like.units(curved, lattice), lattice, ridge)
    return replace(like, weights=learned(taking, like, newton, records))
