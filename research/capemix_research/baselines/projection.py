"""The public random matrix of DPPro, and the way back."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from capemix.randomness.gaussian import add_gaussian
from capemix.randomness.source import SeededSource
from capemix.statistics.projection import BITS, MOST_EXACT, row_by_row
from capemix_research.baselines.plan import Projection

Real = npt.NDArray[np.float64]


def public_matrix(projection: Projection, width: int) -> Real:
    """P, ``width`` x k, independent N(0, 1/k): norms are kept on average, E|xP|² = |x|²
    (Johnson, Lindenstrauss 1984; Gaussian as in Dasgupta, Gupta 2003).

    It is published by its seed: no noise, and no privacy rests on it.
    """
    k = projection.dimensions
    matrix = np.zeros((width, k))
    stream = SeededSource(projection.seed).stream("public matrix", width, k)
    add_gaussian(matrix.reshape(-1), 1.0 / math.sqrt(k), stream)
    return matrix


def project(rows: Real, matrix: Real) -> Real:
    """rows @ matrix, in which no row's last bit depends on the others: of both the first 20 bits,
    and what they leave, are multiplied exactly."""
    out = np.zeros((len(rows), matrix.shape[1]))
    for start in range(0, len(matrix), MOST_EXACT):
        own, those = rows[:, start : start + MOST_EXACT], matrix[start : start + MOST_EXACT]
        most, mainly = _coarse(own, 1), _coarse(those, None)
        out += row_by_row(most, mainly)
        out += row_by_row(most, those - mainly)
        out += row_by_row(own - most, mainly)
    return out


def _coarse(values: Real, axis: int | None) -> Real:
    """To as many bits as `row_by_row` keeps, of the largest of a row, or of all."""
    largest = np.abs(values).max(axis=axis, keepdims=True, initial=0.0)
    step = np.frexp(largest)[1] - BITS
    return np.asarray(np.ldexp(np.rint(np.ldexp(values, -step)), step))


def back(rows: Real, matrix: Real) -> Real:
    """Rows of the full width again: for each y the shortest x with xP = y, by the pseudo-inverse.

    Post-processing that loses nothing: projected again, x is y. And a linear model trained on
    such rows says of a real row x what it would say of its projection xP.
    """
    return np.asarray(rows @ np.linalg.pinv(matrix))
