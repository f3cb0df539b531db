"""Where records are looked at from, and how what is seen of one is kept free of the others.

A record's part in a sum must be a function of that record and of public numbers alone, to the last
bit: products here are exact, and rows become whole numbers one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError
from capemix.kernels.machine import in_parallel
from capemix.statistics.pixels import upright_rows
from capemix.statistics.remembered import key_of, remembered
from capemix.sums.rows import Real, centred_rows, normalise_rows
from capemix.sums.steps import ColumnMap, DeclaredMap, PublicMap

_CHUNK: Final = 2048

MOST_KEPT: Final = 1 << 30
"""Bytes of what is made of all records, of one kind, that are kept from one round to the next."""

Codes = npt.NDArray[np.int64]
Some = Codes | slice
"""Which records."""

RowsOf = Callable[[Some], npt.NDArray[Any]]
"""What was made of some records, a row for each."""


@dataclass(frozen=True, eq=False)
class Projection:
    """A record x of class k, normalised, is seen as
        v = scale * (basis^T (1 - without without^T) (x - centre_k) - point),
    where ``centre`` has a row for every class, or one for all; ``without`` has a column for every
    direction left out, and ``basis`` one for every direction kept (None: all as they are);
    ``points`` as many for every class, classes by points by directions, of which the nearest
    counts; ``scale`` a factor for each direction.

    ``upright`` is the shape of images that are set upright first, each by its own slant, which
    becomes one more column.
    """

    normalise: DeclaredMap
    columns: int
    classes: int
    centre: np.ndarray | None = None
    basis: np.ndarray | None = None
    points: np.ndarray | None = None
    scale: np.ndarray | None = None
    upright: tuple[int, int] | None = None
    without: np.ndarray | None = None

    def __post_init__(self) -> None:
        whole = type(self.columns) is int and type(self.classes) is int
        fits = whole and min(self.columns, self.classes) > 0
        if fits and isinstance(self.normalise, ColumnMap):
            fits = len(self.normalise.shift) == self.columns
        if fits and self.upright is not None:
            fits = len(self.upright) == 2 and all(type(n) is int and n > 0 for n in self.upright)
            fits = fits and math.prod(self.upright) == self.columns
            fits = fits and 0.0 < self.shades[1] - self.shades[0] < math.inf
        d = self.seen
        if fits and self.centre is not None:
            fits = self.centre.shape in ((1, d), (self.classes, d))
        for matrix in (self.basis, self.without):
            if fits and matrix is not None:
                fits = matrix.ndim == 2 and matrix.shape[0] == d and max(matrix.shape) <= MOST_EXACT
        if fits and self.points is not None:
            fits = self.points.ndim == 3
            fits = fits and self.points.shape[::2] == (self.classes, self.directions)
        if fits and self.scale is not None:
            fits = self.scale.shape == (self.directions,)
        if fits and self.points is not None:
            fits = self.directions <= MOST_EXACT
        if not fits:
            raise InputError(
                "a frame",
                "has parts of different sizes",
                value=self.columns,
                fix="propose it again",
            )

    @property
    def seen(self) -> int:
        """Columns after rows are set upright."""
        return self.columns + (self.upright is not None)

    @property
    def shades(self) -> tuple[float, float]:
        """An image's darkest and lightest pixel, normalised."""
        how = self.normalise
        if not isinstance(how, PublicMap) or how.low is None or how.high is None:
            raise InputError(
                "images", "need one declared range of pixels", fix="declare a public_range"
            )
        return (how.low - how.shift) / how.scale, (how.high - how.shift) / how.scale

    @property
    def is_plain(self) -> bool:
        """Whether normalised records are seen as they are."""
        parts = (self.centre, self.basis, self.points, self.scale, self.upright, self.without)
        return all(part is None for part in parts)

    @property
    def directions(self) -> int:
        return self.seen if self.basis is None else self.basis.shape[1]

    @property
    def places(self) -> int:
        """A class, or where there are points a class's point."""
        return self.classes * (1 if self.points is None else self.points.shape[1])

    def looking(
        self, features: npt.NDArray[Any], labels: Codes
    ) -> Callable[[Some], tuple[Real, Codes]]:
        """What gives each of some records' v, and its place."""
        seen = self.seen_rows(features)
        as_seen = self.basis is None and self.without is None
        turned = None if as_seen else self._turned_rows(features, seen, labels)

        def look(some: Some) -> tuple[Real, Codes]:
            places = own = labels[some]
            rows = self.about(seen(some), own) if turned is None else turned(some)
            with np.errstate(over="ignore", invalid="ignore"):
                if self.points is not None:
                    places = _nearest(self.points, rows, own)
                    rows = rows - self.points.reshape(-1, self.directions)[places]
                if self.scale is not None:
                    rows = rows * self.scale
            return finite_rows(rows), places

        return look

    def seen_rows(self, features: npt.NDArray[Any]) -> RowsOf:
        """Rows as they are, or set upright: once for all rounds."""
        shape = self.upright
        if shape is None:
            return features.__getitem__

        def made(some: Some) -> npt.NDArray[np.float32]:
            rows = finite_rows(normalise_rows(features[some], self.normalise))
            return upright_rows(rows, shape, *self.shades).astype(np.float32)

        key = key_of(shape, self.normalise)
        return made_once(features, "upright", key, made, self.seen, np.float32)

    def _turned_rows(self, features: npt.NDArray[Any], seen: RowsOf, labels: Codes) -> RowsOf:
        """Every row about its centre in the directions kept, which several rounds share."""

        def made(some: Some) -> Real:
            with np.errstate(over="ignore", invalid="ignore"):
                rows = self.about(seen(some), labels[some])
                if self.without is not None:
                    rows -= row_by_row(row_by_row(rows, self.without), self.without.T)
                return rows if self.basis is None else row_by_row(rows, self.basis)

        key = key_of(self.upright, self.normalise, self.centre, self.basis, self.without, labels)
        numbers = len(features) * self.seen
        return made_once(
            features, "turned", key, made, self.directions, np.float64, numbers=numbers
        )

    def about(self, seen: npt.NDArray[Any], labels: Codes) -> Real:
        how = self.normalise if self.upright is None else PublicMap()
        centres = np.zeros((1, self.seen)) if self.centre is None else self.centre
        which = np.zeros_like(labels) if len(centres) == 1 else labels
        return centred_rows(seen, how, centres, which)


def pieces(count: int, size: int = _CHUNK) -> list[slice]:
    """Some records at a time."""
    return [slice(start, start + size) for start in range(0, count, size)]


def made_once(
    features: npt.NDArray[Any],
    kind: str,
    key: bytes,
    make: RowsOf,
    width: int,
    dtype: type[np.generic],
    *,
    numbers: int | None = None,
) -> RowsOf:
    """``make``, which has ``width`` numbers for each record: of all records once, and remembered;
    or if that were more than `MOST_KEPT`, each time anew of those asked for, to the same bits. So
    the memory taken does not grow with the records. ``numbers`` are those gone through."""
    if len(features) * width * np.dtype(dtype).itemsize > MOST_KEPT:
        return make

    def all_of_them() -> npt.NDArray[Any]:
        out = np.empty((len(features), width), dtype=dtype)

        def fill(piece: slice) -> None:
            out[piece] = make(piece)

        in_parallel(fill, pieces(len(features)), None, numbers=numbers)
        return out

    return remembered(features, kind, key, all_of_them).__getitem__


def _nearest(points: Real, vectors: Real, labels: Codes) -> Codes:
    out = np.full(len(labels), -1, dtype=np.int64)
    for k, own in enumerate(points):
        mine = labels == k
        near = (own**2).sum(1) - 2.0 * row_by_row(vectors[mine], own.T)
        out[mine] = k * len(own) + near.argmin(axis=1)
    return out


BITS: Final = 20
MOST_EXACT: Final = 4096
"""Columns over which a product is exact."""


def row_by_row(rows: Real, matrix: Real) -> Real:
    """rows @ matrix, in which no row's result depends on the others.

    A matrix product in floating point adds in an order that depends on how many rows there are: the
    last bit of a row would then tell of the others, and truncation makes a lattice unit of it. So
    both are first rounded to whole numbers of 20 bits, each row by its own largest entry; of up to
    4096 of them every partial sum is below 2^53, and exact in any order.
    """
    if len(matrix) > MOST_EXACT:
        raise ValueError(f"a product over {len(matrix)} columns is not exact")
    by_row = _exponents(np.abs(rows).max(axis=1, initial=0.0))[:, None]
    by_matrix = _exponents(np.abs(matrix).max(initial=0.0))
    whole = np.rint(np.ldexp(rows, BITS - by_row)) @ np.rint(np.ldexp(matrix, BITS - by_matrix))
    return np.asarray(np.ldexp(whole, by_row + by_matrix - 2 * BITS))


def _exponents(largest: Any) -> Any:
    """e with |x| < 2^e."""
    return np.frexp(largest)[1]


def finite_rows(rows: Real) -> Real:
    """A row that is not finite counts as zeros. Others may be handed on as they lie."""
    finite = np.isfinite(rows)
    return rows if finite.all() else np.where(finite.all(axis=1, keepdims=True), rows, 0.0)


def whole_scale(most: int, width: int) -> float:
    """What a vector of norm 1 is multiplied by before it is rounded to whole numbers of norm
    ``most`` at most. Rounding makes it longer, by about width / (24 most), give or take 0.3."""
    rounded = most - 1.0 - width / (24.0 * most)
    return rounded if rounded >= most / 2 else float(most)


def whole_rows(rows: npt.NDArray[np.floating[Any]], most: int) -> npt.NDArray[np.int16]:
    """Rows of norm 1 at most as whole numbers of norm ``most`` at most: each rounded, or toward
    zero if rounding made it too long; then checked in integers."""
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        rows = np.where(finite[:, None], rows, rows.dtype.type(0.0))
    scaled = rows * rows.dtype.type(whole_scale(most, rows.shape[1]))
    whole = np.rint(scaled).astype(np.int16)
    long = squared_norms(whole) > most**2
    whole[long] = np.trunc(scaled[long])
    whole[squared_norms(whole) > most**2] = 0  # unreachable for rows of norm 1
    return whole


def squared_norms(whole: npt.NDArray[np.int16]) -> Codes:
    return np.asarray(np.einsum("ij,ij->i", whole, whole, dtype=np.int64))
