"""The law of the class, given the cells of a row: post-processing.

    P(y | x) is in proportion to exp(b_y + sum_a t_a[x_a, y])
is the law of largest entropy for which, over the rows, each cell of each column goes with each
class as often as noisy tables have it. Noise is told from signal by a ridge on each t.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

ROWS: Final = 40_000
"""So many rows fit the law, and as many at a time are given a class."""

_STEPS: Final = 100


def classes_of(cells: Codes, wanted: list[Real], deviation: float, chance: Real) -> Codes:
    """Each row's class. ``cells``: columns by rows. ``wanted``: of each column its cells by
    classes, counts with noise of ``deviation``, of as many records as all of them together.
    ``chance``: a number from 0 to 1 for each row."""
    law = fitted_law(cells[:, :ROWS], wanted, deviation)
    out = np.empty(cells.shape[1], dtype=np.int64)
    for start in range(0, len(out), ROWS):
        piece = slice(start, start + ROWS)
        odds = _odds(cells[:, piece], law)
        odds -= odds.max(axis=1, keepdims=True)
        ends = np.cumsum(np.exp(odds), axis=1)
        beyond = (ends < chance[piece, None] * ends[:, -1:]).sum(axis=1)
        out[piece] = np.minimum(beyond, ends.shape[1] - 1)
    return out


def fitted_law(cells: Codes, wanted: list[Real], deviation: float) -> list[Real]:
    """Of each column ``t``, cells by classes; the first one's holds ``b`` too."""
    classes, rows = wanted[0].shape[1], cells.shape[1]
    records = max(float(np.mean([table.sum() for table in wanted])), 1.0)
    sizes = [len(table) for table in wanted]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    held = np.concatenate(
        [np.bincount(each, minlength=size) for each, size in zip(cells, sizes, strict=True)]
    ) * (records / rows)
    prior = np.maximum(sum(table.sum(axis=0) for table in wanted), 0.0) + 1e-9
    prior /= prior.sum()
    # A cell's classes as noisy tables have them, of as many rows as there are in it.
    aim = np.concatenate(
        [table + (here[:, None] - table.sum(axis=1, keepdims=True)) * prior
         for table, here in zip(wanted, np.split(held, starts[1:-1]), strict=True)]
    )  # fmt: skip
    # H: the curvature of a cell's likelihood; noise of this deviation on its slope, and its own
    # chance, leave 1 / (1 + ridge / H) of what a t of deviation 1 would be.
    curve = np.maximum(held, 1.0)[:, None] * np.maximum(prior * (1.0 - prior), 1e-3)
    ridge = deviation**2 / curve + 1.0
    places = cells + starts[:-1, None]
    scale = records / rows

    def loss(flat: Real) -> tuple[float, Real]:
        t = flat.reshape(-1, classes)
        odds = np.log(prior) + sum(t[place] for place in places)
        most = odds.max(axis=1, keepdims=True)
        np.exp(odds - most, out=odds)
        whole = odds.sum(axis=1, keepdims=True)
        odds /= whole
        value = scale * float((np.log(whole) + most).sum()) - float((t * aim).sum())
        slope = np.empty_like(t)
        for k in range(classes):
            for at, each in enumerate(cells):
                first, last = starts[at], starts[at + 1]
                slope[first:last, k] = np.bincount(each, odds[:, k], minlength=last - first)
        slope *= scale
        slope -= aim
        value += 0.5 * float((ridge * t * t).sum())
        return value / records, (slope + ridge * t).ravel() / records

    found = minimize(
        loss,
        np.zeros(starts[-1] * classes),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _STEPS, "maxcor": 10},
    )
    law = np.split(found.x.reshape(-1, classes), starts[1:-1])
    law[0] = law[0] + np.log(prior)
    return list(law)


def _odds(cells: Codes, law: list[Real]) -> Real:
    odds = law[0][cells[0]]
    for each, t in zip(cells[1:], law[1:], strict=True):
        odds += t[each]
    return np.asarray(odds)
