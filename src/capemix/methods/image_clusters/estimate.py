"""What images are drawn from, by noisy sums; and the images, with texture and soft labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from scipy import linalg

from capemix.collector import Collector
from capemix.kernels.machine import in_parallel
from capemix.methods.base import SyntheticRows
from capemix.methods.gaussians import (
    CLIPPED_AT,
    apportioned,
    cleaned_spread,
    shrunk_centres,
    strengths,
    wigner_edge,
)
from capemix.methods.image_clusters import clusters as rule
from capemix.methods.projected import ProjectedSums
from capemix.randomness.gaussian import add_gaussian, draw_normals
from capemix.randomness.source import Source
from capemix.statistics.head import Head, Units, softmax
from capemix.statistics.moments import Moments, Spreads
from capemix.statistics.pixels import leaned, smooth_directions
from capemix.statistics.projection import Projection, pieces
from capemix.statistics.scattering import channels, features_of, scattered
from capemix.sums.rows import denormalise_rows

if TYPE_CHECKING:
    from capemix.methods.image_clusters import ImageClusters

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Single = npt.NDArray[np.float32]

CENTRE: Final = "centre"
CENTRES: Final = "class centres"
SPREAD: Final = "spread"
TEXTURE: Final = "texture"
NEAREST: Final = "nearest points"
CLUSTERS: Final = "clusters"
CLUSTER_SPREADS: Final = "cluster spreads"
LABELS: Final = "labels"

REPEATS: Final = {NEAREST: 4, LABELS: 30}
"""How often points are moved, and the head's weights."""

SLANT_SCALE: Final = 8.0
"""Of a slant beside pixels of -1 to 1: so that its variance is near theirs in a large direction."""

SLANT_VARIANCE: Final = 2.0
"""What is expected of it, so scaled."""

RATE, MOMENTUM, RIDGE = 0.03, 0.5, 2.3
"""Of the teacher's steps; what is added to the curvature is as many times the noise over the
records."""

WEIGHTS: Final = {NEAREST: (0.5**0.5, 0.5**0.5), CLUSTERS: (0.5, 0.75**0.5)}


def image_rows(method: ImageClusters, sums: Collector) -> SyntheticRows:
    """Rows of pixels in the data's own units, their labels, and if they are asked for soft ones."""
    found = estimated(method, sums)
    taking, records, sizes, source = found.taking, found.records, found.sizes, sums.source()
    most = rule.SMOOTH_A_RECORD * round(records)
    wanted = method.samples if method.samples is not None else rule.TEXTURES * most
    counts = apportioned(wanted, sizes)
    own = np.maximum(apportioned(min(wanted, most), sizes), -(-counts // rule.TEXTURES))
    rows, labels = drawn(found, np.minimum(counts, own), source)
    soft = _taught(taking, found.centre, records, rows, labels) if method.soft_labels else None
    each = [np.resize(np.flatnonzero(labels == k), count) for k, count in enumerate(counts)]
    smooth = np.concatenate(each)
    pixels = finished(found, rows, smooth, source)
    taking.warn_of_norms()
    return SyntheticRows(pixels, labels[smooth], None if soft is None else soft[smooth])


@dataclass(frozen=True, eq=False)
class Estimated:
    """What images are drawn from, by noisy sums: ``points`` and clusters about them as ``frame``
    sees them, and what smooth rows lack."""

    taking: Taking
    sizes: Real
    records: float
    centre: Real
    frame: Projection
    points: Real
    clusters: rule.Clusters
    texture: rule.Texture


def estimated(method: ImageClusters, sums: Collector) -> Estimated:
    """Ask for every sum but those of the teacher."""
    plan = sums.plan
    taking = Taking(sums, method.upright(plan), method=method)
    sizes = taking.sizes()
    records = float(sizes.sum())
    sums.choose(**method.chosen(plan, records))
    centre = taking.first(CENTRE, taking.projection(), rule.FIRST_AT, apart=False)[0] / records
    offsets, deviation = taking.first(
        CENTRES, taking.projection(centre=centre), rule.FIRST_AT, apart=True
    )
    centres = centre + shrunk_centres(offsets / sizes[:, None], (deviation / sizes) ** 2)
    basis, variances = _directions(taking, centres, records)
    texture = _texture(taking, centres, records, basis)
    frame, points, found = _clusters(taking, centres, basis, variances)
    return Estimated(taking, sizes, records, centre, frame, points, found, texture)


@dataclass(eq=False, kw_only=True)
class Taking(ProjectedSums):
    """Sums of images, by a config."""

    method: ImageClusters

    @property
    def shape(self) -> tuple[int, int]:
        return self.method.shape(self.sums.plan)

    @property
    def smooth(self) -> int:
        return self.method.smooth(self.sums.plan)

    @property
    def width(self) -> int:
        return self.sums.plan.known.width

    def chosen(self, name: str) -> int:
        return (self.sums.plan.chosen or {})[name]


def _directions(taking: Taking, centres: Real, records: float) -> tuple[Real, Real]:
    """The largest directions of the spread within classes, and their variances."""
    smooth = np.zeros((centres.shape[1], taking.smooth))
    smooth[: taking.width] = smooth_directions(taking.shape, taking.smooth)
    frame = taking.projection(centre=centres, basis=smooth)
    asked = Spreads(frame, taking.clip(SPREAD, frame, CLIPPED_AT), apart=False)
    spread, deviation = taking.second(SPREAD, asked)
    edge = wigner_edge(deviation / records, taking.smooth)
    variances, turned, _ = cleaned_spread(spread[0] / records, edge)
    rank = taking.chosen("rank")
    basis, variances = smooth @ turned[:, -rank:], variances[-rank:]
    if taking.upright is not None:
        slant = np.zeros((centres.shape[1], 1))
        slant[-1] = SLANT_SCALE
        basis, variances = np.hstack([basis, slant]), np.append(variances, SLANT_VARIANCE)
    return basis, variances


def _texture(taking: Taking, centres: Real, records: float, basis: Real) -> rule.Texture:
    """Of what the directions kept leave of each image. It is short, and so is the noise on it."""
    width, rank = taking.width, taking.chosen("rank")
    count = taking.method.textured(taking.sums.plan)
    kept = basis[:, :rank]
    if taking.upright is not None:
        kept = np.hstack([kept, np.eye(len(basis))[:, -1:]])
    seen = np.eye(width) if count is None else smooth_directions(taking.shape, count)
    padded = None if count is None else np.pad(seen, ((0, len(basis) - width), (0, 0)))
    frame = taking.projection(centre=centres, without=kept, basis=padded)
    asked = Spreads(frame, taking.clip(TEXTURE, frame, rule.FIRST_AT), apart=False)
    spread, deviation = taking.second(TEXTURE, asked)
    own = spread[0][: seen.shape[1], : seen.shape[1]] / records  # a slant has no texture
    edge = wigner_edge(deviation / records, len(own))
    return rule.cleaned_texture(own, edge, seen, taking.shape)


def _clusters(
    taking: Taking, centres: Real, basis: Real, variances: Real
) -> tuple[Projection, Real, rule.Clusters]:
    """The frame of the points, the points, and the clusters about them."""
    classes, each, r = len(centres), taking.chosen("clusters"), len(variances)
    frame = taking.projection(centre=centres, basis=basis)
    points = np.zeros((classes, each, r))
    if each > 1:
        scattered_by = 0.7 * np.sqrt(variances)
        source = taking.sums.source()
        points = scattered_by * _normals(points.shape, source, "points", 0)
        clip = taking.clip(NEAREST, replace(frame, points=points), CLIPPED_AT)
        for turn in range(1, REPEATS[NEAREST] + 1):
            asked = Moments(replace(frame, points=points), clip, WEIGHTS[NEAREST])
            sums = taking.sums.ask(f"{NEAREST} {turn}", asked)
            anew = scattered_by * _normals(points.shape, source, "points", turn)
            points = rule.moved_points(
                points,
                asked.counts(sums).reshape(classes, each),
                asked.totals(sums).reshape(points.shape),
                anew,
            )
    about = replace(frame, points=points, scale=variances**-0.5)
    clip = taking.clip(CLUSTERS, about, CLIPPED_AT)
    asked = Moments(about, clip, WEIGHTS[CLUSTERS])
    sums = taking.sums.ask(CLUSTERS, asked)
    seconds, _ = taking.second(CLUSTER_SPREADS, Spreads(about, clip))
    found = rule.found_clusters(
        asked.counts(sums).reshape(classes, each),
        asked.totals(sums).reshape(points.shape),
        seconds.reshape(classes, each, r, r),
        taking.sums.noise_on(CLUSTERS) * clip / WEIGHTS[CLUSTERS][1],
    )
    return about, points, found


def drawn(estimated: Estimated, counts: Codes, source: Source) -> tuple[Single, Codes]:
    """Smooth rows as the frame sees them (upright, with their slant), and their labels."""
    frame, points, found = estimated.frame, estimated.points, estimated.clusters
    if frame.centre is None or frame.basis is None or frame.scale is None:
        raise ValueError("clusters are drawn in directions about centres")
    back = frame.basis.T.copy()
    if frame.upright is not None:
        back[-1, -1] = 1.0 / SLANT_SCALE
    rows = np.empty((int(counts.sum()), frame.seen), dtype=np.float32)
    ends = np.cumsum(counts)
    keys = [source.stream("normals", k) for k in range(len(counts))]
    centre, scale = frame.centre, frame.scale

    def fill(k: int) -> None:
        count = int(counts[k])
        normals = np.zeros((count, len(back)))
        add_gaussian(normals.reshape(-1), 1.0, keys[k])
        part = np.cumsum(found.counts[k]) / found.counts[k].sum()
        cluster = np.searchsorted(part, (np.arange(count) + 0.5) / count).clip(0, len(part) - 1)
        for j in range(len(part)):
            mine = cluster == j
            normals[mine] = found.means[k, j] + normals[mine] @ found.roots[k, j].T
        normals = normals / scale + points[k][cluster]
        rows[ends[k] - count : ends[k]] = centre[k] + normals @ back

    in_parallel(fill, range(len(counts)), None)
    return rows, np.repeat(np.arange(len(counts)), counts)


def _taught(taking: Taking, centre: Real, records: float, rows: Single, labels: Codes) -> Single:
    """Soft labels of the smooth rows, by a head that private gradients have trained."""
    width = taking.width
    upright = taking.projection(centre=centre)
    plain = replace(upright, upright=None, centre=centre[:, :width])
    zeros = np.zeros((features_of(taking.shape) + 1, len(taking.sums.plan.known.listed)))
    ones = np.ones(channels())
    head = Head(upright, taking.shape, taking.smooth, 0.0 * ones, ones, zeros)
    # The channels' means and deviations are those of the rows drawn, and so is the curvature of
    # what is minimised: they cost nothing.
    some = rows[:: max(1, len(rows) // 6_000), :width]
    blank, full = plain.shades
    about = np.clip(some, blank, full) - centre[:, :width]
    found = scattered(head.smoothed(about)).reshape(len(some), channels(), -1)
    mean = found.mean(axis=(0, 2), dtype=np.float64)
    deviation = np.maximum(found.std(axis=(0, 2), dtype=np.float64), 1e-6)
    lattice = taking.sums.lattice(f"{LABELS} 1")
    pixels = np.clip(some, blank, full)
    denormalise_rows(pixels, plain.normalise)
    ridge = RIDGE * max(taking.sums.noise_multiplier(f"{LABELS} 1"), 1e-3) / records
    head = Head(plain, taking.shape, taking.smooth, mean, deviation, zeros)
    newton = head.curvature(head.units(pixels, lattice), lattice, ridge)
    averaged = learned(taking, replace(head, frame=upright), newton, records)
    # The rows are upright already.
    head = Head(plain, taking.shape, taking.smooth, mean, deviation, averaged)
    pixels = np.clip(rows[:, :width], blank, full)
    denormalise_rows(pixels, plain.normalise)
    return soft_labels(head, head.units(pixels, lattice), labels, lattice)


def learned(taking: Taking, like: Head, newton: Any, records: float) -> Real:
    """The weights of a head that noisy sums of gradients have taught."""
    lattice = taking.sums.lattice(f"{LABELS} 1")
    zeros = np.zeros_like(like.weights)
    weights, speed, averaged = zeros.copy(), zeros.copy(), zeros.copy()
    steps = REPEATS[LABELS]
    for turn in range(1, steps + 1):
        head = replace(like, weights=weights)
        gradient = head.gradient(taking.sums.ask(f"{LABELS} {turn}", head), lattice) / records
        speed = MOMENTUM * speed + linalg.cho_solve(newton, gradient, check_finite=False)
        weights = weights - RATE * speed
        if turn > steps // 2:
            averaged += weights / (steps - steps // 2)
    return averaged


def soft_labels(
    head: Head, units: Units, labels: Codes, lattice: int | None, trust: float = rule.TRUST
) -> Single:
    """What the head says of features, and with the rest of its trust the class itself."""
    said = softmax(head.logits(units, lattice))
    said *= trust
    said[np.arange(len(labels)), labels] += 1.0 - trust
    return said.astype(np.float32)


def finished(found: Estimated, rows: Single, smooth: Codes, source: Source) -> Single:
    """The ``smooth`` ones of the rows with texture, leaning again, in the data's own units."""
    frame, texture, shape = found.frame, found.texture, found.taking.shape
    blank, full = frame.shades
    deep = texture.root.shape[1]
    root = texture.root.T.astype(np.float32)
    white = np.sqrt(texture.white).astype(np.float32)
    out = np.empty((len(smooth), frame.columns), dtype=np.float32)
    strength = strengths(source.stream("strength").words(len(smooth)), rule.STRENGTH)
    keys = {piece.start: source.stream("texture", piece.start) for piece in pieces(len(smooth))}

    def fill(piece: slice) -> None:
        some = rows[smooth[piece]]
        normals = np.empty((len(some), deep + frame.columns), dtype=np.float32)
        draw_normals(normals.reshape(-1), keys[piece.start])
        own = normals[:, deep:]
        own *= white
        own += normals[:, :deep] @ root
        own *= strength[piece, None]
        own += np.clip(some[:, : frame.columns], blank, full)
        pixels = np.clip(own, blank, full)
        if frame.upright is not None:
            shades = (pixels.reshape(-1, *shape) - blank) / (full - blank)
            by = np.clip(some[:, -1].astype(np.float64), -1.0, 1.0)
            pixels = leaned(shades, by).reshape(len(some), -1) * (full - blank) + blank
        denormalise_rows(pixels, frame.normalise)
        out[piece] = pixels

    in_parallel(fill, pieces(len(smooth)), None)
    return out


def _normals(shape: tuple[int, ...], source: Source, name: str, turn: int) -> Real:
    out = np.zeros(shape)
    add_gaussian(out.reshape(-1), 1.0, source.stream(name, turn))
    return out
