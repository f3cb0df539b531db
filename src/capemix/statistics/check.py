"""What every statistic must keep, tried on records of one's own choice: for the tests of whoever
writes one. Nothing at run time looks again."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from capemix.sums.statistic import Array, Codes, Statistic


def check_records(asked: Statistic, rows: Array, labels: Codes, lattice: int | None) -> None:
    """Refuse a statistic of which one of these records adds more than the norm bound, or to more
    than one group, or anything although its code drops it; or of which they do not add up to what
    each adds alone. ``lattice`` is a norm bound in whole units, as `add_to` has it, or None.

    Give rows of many kinds: zeros, NaN, infinities, very large and very small numbers.
    """
    alone = [added(asked, rows[[at]], labels[[at]], lattice) for at in range(len(rows))]
    for sums, label in zip(alone, labels, strict=True):
        if not np.isfinite(sums).all():
            raise ValueError("a record adds what is no number")
        if not _within(asked, sums, lattice):
            raise ValueError("a record adds more than the norm bound")
        if label < 0 and sums.any():
            raise ValueError("a record that its code drops adds something")
        if np.count_nonzero(sums.any(axis=1)) > 1:
            raise ValueError("a record adds to more than one group")
    apart = sum(alone, start=np.zeros((asked.groups, asked.width), dtype=np.int64))
    for turn in (1, -1):
        together = added(asked, rows[::turn], labels[::turn], lattice)
        close = np.allclose(together, apart, rtol=1e-12, atol=1e-12)
        if not (close if lattice is None else (together == apart).all()):
            raise ValueError("records together add something else than each of them alone")


def added(asked: Statistic, rows: Array, labels: Codes, lattice: int | None) -> Array:
    """What some records add up to, groups by width."""
    dtype = np.float64 if lattice is None else np.int64
    sums = np.zeros((asked.groups, asked.width), dtype=dtype)
    asked.add_to(sums, rows, labels, lattice)
    return sums


def _within(asked: Statistic, sums: Array, lattice: int | None) -> bool:
    """Whether the norm is no larger than the bound, to the last bit."""
    if lattice is not None:
        return sum(int(x) ** 2 for x in sums.ravel()) <= lattice**2
    square = sum((Fraction(float(x)) ** 2 for x in sums.ravel()), Fraction(0))
    return square <= Fraction(asked.l2_norm_bound) ** 2
