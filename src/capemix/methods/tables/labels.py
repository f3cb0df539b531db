"""The law of the class, given the slices of a row's columns: post-processing.

    P(y | x) is in proportion to exp(b_y + sum_a t_a[x_a, y]),
    t_a[s, y] = u_a[bin of s, y] + v_a[s, y].
With n_a[s, y] the noisy counts, and N_a[s, y] what this law makes of the rows, it has the least
    sum (N - n)^2 / (noise's variance + chance's) + sum u^2 / var(u_a) + sum v^2 / var(v_a).
How far a column's bins, and slices within bins, set the classes apart is told from the counts, as
far as they vary by more than noise and chance would make them (empirical Bayes). So a column that
tells nothing of the class gets no t, and one whose values surely do keeps them.

The sum of squares is not convex. It is gone down from the law of largest entropy with about these
counts, which is: there N is n but for a ridge on u and v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

ROWS: Final = 40_000
"""So many rows fit the law, and as many at a time are given a class."""

STEPS: Final = 100
"""Of each of the two searches."""

BETWEEN: Final = (0.02, 16.0)
"""A variance of a column's u or v, at least and at most."""

GOLDEN: Final = 0.6180339887498949
"""Steps of this part of 1 are spread evenly, however many are taken (Weyl)."""


@dataclass(frozen=True, eq=False)
class ByClass:
    """``counts``: of each column its slices by classes, with noise of ``deviation``. ``slices``:
    each cell's slice. ``bins``: each slice's bin. ``sizes``: of the classes."""

    counts: list[Real]
    deviation: float
    slices: list[Codes]
    bins: list[Codes]
    sizes: Real

    @property
    def starts(self) -> Codes:
        """Where each column's slices begin, and where the last one's end."""
        return np.cumsum([0, *(len(table) for table in self.counts)])

    def places(self, cells: Places) -> Codes:
        """Where each row's slices are among those of all columns."""
        found = zip(self.slices, cells, self.starts, strict=False)
        return np.stack([slices[mine] + start for slices, mine, start in found])


def classes_of(cells: Places, known: ByClass, chance: Real) -> Codes:
    """Each row's class. ``cells``: columns by rows. Of rows that are alike as many have a class as
    the law says, to one; ``chance``, a number from 0 to 1 for each row, decides which."""
    rows = cells.shape[1]
    law = fitted_law(cells[:, :: -(-rows // ROWS)], known)
    out = np.empty(rows, dtype=np.int64)
    for start in range(0, rows, ROWS):
        piece = slice(start, start + ROWS)
        found = _odds(law, known.places(cells[:, piece]), np.zeros(law.shape[1]))[0]
        order = np.lexsort((chance[piece], found.max(axis=1), found.argmax(axis=1)))
        even = np.empty(len(order))
        even[order] = (np.arange(len(order)) * GOLDEN + chance[start]) % 1.0
        ends = np.cumsum(found, axis=1)
        beyond = (ends < even[:, None] * ends[:, -1:]).sum(axis=1)
        out[piece] = np.minimum(beyond, found.shape[1] - 1)
    return out


def fitted_law(cells: Places, known: ByClass) -> Real:
    """``t`` of all columns' slices, by classes; the first column's holds ``b`` too."""
    if len(known.sizes) < 2:
        return np.zeros((int(known.starts[-1]), len(known.sizes)))
    fit = _Fit(cells, known)
    start = np.zeros(len(fit.ridge) * fit.classes)
    how: dict[str, Any] = {"jac": True, "method": "L-BFGS-B", "options": {"maxiter": STEPS}}
    for loss in (fit.entropy, fit.squares):
        start = minimize(loss, start, **how).x
    law = fit.law(start)
    law[: len(known.counts[0])] += np.log(fit.prior)
    return law


class _Fit:
    """Both searches' losses, over v of all slices and then u of all bins."""

    def __init__(self, cells: Places, known: ByClass) -> None:
        starts, rows = known.starts, cells.shape[1]
        self.classes, self._starts = len(known.sizes), starts
        self._places = known.places(cells)
        sizes = np.maximum(known.sizes, 1.0)
        records, self.prior = float(sizes.sum()), sizes / sizes.sum()
        self._scale, self._records = records / rows, records
        width = int(starts[-1])
        held: Real = np.bincount(self._places.ravel(), minlength=width) * self._scale
        counts = np.concatenate(known.counts)
        # A slice's classes as noisy counts have them, of as many rows as there are in it.
        self._aim = counts + (held - counts.sum(axis=1))[:, None] * self.prior
        firsts = np.cumsum([0, *(int(each.max()) + 1 for each in known.bins)])
        bins = [each + first for each, first in zip(known.bins, firsts, strict=False)]
        self._bins, self._wide = np.concatenate(bins), int(firsts[-1])
        columns = np.repeat(np.arange(len(known.counts)), np.diff(starts))
        noise = np.full(width, known.deviation**2)
        self._spread = np.maximum(self.prior * (1.0 - self.prior), 1e-3)
        self._weight = 1.0 / (noise[:, None] + self._curve(held))

        in_bins = self._of_bins(self._aim)
        rates = np.maximum(in_bins, 0.0)
        rates /= np.maximum(rates.sum(axis=1, keepdims=True), 1e-9)
        held_in_bins, noise_in_bins = self._of_bins(np.column_stack([held, noise])).T
        columns_of_bins = np.repeat(np.arange(len(bins)), np.diff(firsts))
        within = self._variances(held, self._aim, noise, columns, rates[self._bins])
        between = self._variances(held_in_bins, in_bins, noise_in_bins, columns_of_bins, self.prior)
        variances = np.concatenate([within, between])[:, None]
        self._loose = 1.0 / variances
        # Noise on a slope, and chance, leave 1 / (1 + ridge / curve) of a t of this variance.
        curve = self._curve(np.concatenate([held, held_in_bins]))
        both = np.concatenate([noise, noise_in_bins])[:, None]
        self.ridge = (both / curve + 1.0) / variances

    def _curve(self, held: Real) -> Real:
        """Chance's variance of a count by class, which is its slope too."""
        return np.asarray(np.maximum(held, 1.0)[:, None] * self._spread)

    def _variances(self, held: Real, aim: Real, noise: Real, columns: Codes, rates: Real) -> Real:
        """Of how each column's log odds differ from those of ``rates``, over noise and chance; for
        each of its cells."""
        curve = self._curve(held)
        apart = (aim - held[:, None] * rates) / curve
        doubt = noise[:, None] / curve**2 + 1.0 / curve
        weight = 1.0 / (doubt + 1.0) ** 2
        beyond = (weight * (apart**2 - doubt)).sum(axis=1)
        whole = np.bincount(columns, weights=weight.sum(axis=1))
        found = np.bincount(columns, weights=beyond) / np.maximum(whole, 1e-12)
        return np.asarray(np.clip(found, *BETWEEN)[columns])

    def _of_bins(self, values: Real) -> Real:
        sums = (np.bincount(self._bins, weights=each, minlength=self._wide) for each in values.T)
        return np.stack(list(sums), axis=1)

    def law(self, flat: Real) -> Real:
        values, width = flat.reshape(-1, self.classes), len(self._bins)
        return np.asarray(values[:width] + values[width:][self._bins])

    def _of_rows(self, values: Real) -> Real:
        """Rows by classes, summed over each slice's rows."""
        out = np.empty((len(self._bins), self.classes))
        for k in range(self.classes):
            column = np.ascontiguousarray(values[:, k])
            for places, low, high in zip(
                self._places, self._starts, self._starts[1:], strict=False
            ):
                out[low:high, k] = np.bincount(places - low, column, minlength=high - low)
        out *= self._scale
        return out

    def _slope(self, by_slice: Real) -> Real:
        return np.asarray(np.concatenate([by_slice, self._of_bins(by_slice)]))

    def entropy(self, flat: Real) -> tuple[float, Real]:
        values, law = flat.reshape(-1, self.classes), self.law(flat)
        odds, whole = _odds(law, self._places, np.log(self.prior))
        loss = self._scale * float(whole.sum()) - float((law * self._aim).sum())
        loss += 0.5 * float((self.ridge * values**2).sum())
        slope = self._slope(self._of_rows(odds) - self._aim) + self.ridge * values
        return loss / self._records, slope.ravel() / self._records

    def squares(self, flat: Real) -> tuple[float, Real]:
        values = flat.reshape(-1, self.classes)
        odds, _ = _odds(self.law(flat), self._places, np.log(self.prior))
        off = self._of_rows(odds) - self._aim
        pull = self._weight * off
        loss = 0.5 * (float((off * pull).sum()) + float((self._loose * values**2).sum()))
        each = _summed(pull, self._places)
        each -= (odds * each).sum(axis=1, keepdims=True)
        each *= odds
        slope = self._slope(self._of_rows(each)) + self._loose * values
        return loss / self._records, slope.ravel() / self._records


def _summed(table: Real, places: Codes) -> Real:
    """Over columns, of each row."""
    out = table[places[0]]
    for each in places[1:]:
        out += table[each]
    return np.asarray(out)


def _odds(law: Real, places: Codes, first: Real) -> tuple[Real, Real]:
    """Each row's chances of the classes, and the logarithm of what they were divided by."""
    odds = _summed(law, places)
    odds += first
    most = odds.max(axis=1, keepdims=True)
    odds -= most
    np.exp(odds, out=odds)
    whole = odds.sum(axis=1, keepdims=True)
    odds /= whole
    return odds, np.log(whole[:, 0]) + most[:, 0]
