"""Which classes there are, found by one curator: labels whose noisy counts pass a threshold."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm

from capemix.data.cells import MISSING_WORDS, Words
from capemix.data.rows import MAX_CLASSES
from capemix.errors import InputError
from capemix.randomness.source import Source
from capemix.randomness.tables import rounded_gaussian
from capemix.sums.query import SumQuery


def listed_words(words: Words, query: SumQuery, failure: float, source: Source) -> dict[str, float]:
    """Words with their noisy counts, of those whose counts pass a threshold.

    A record adds 1 to the count of its own word (L lattice units), and every word that there is has
    its count noised by itself. Where the word is there without the record too, that is one Gaussian
    with a shift of 1. Where it is not, the word shows only if L + Z reaches the threshold, and
    otherwise nothing differs: the chance of that, at most ``failure`` / 2, is taken out of delta
    (twice, for a record that is replaced by one with another word). Z, a rounded Gaussian, is below
    m with probability at least P(N < m - 1), so the threshold is L + 1 + ceil(sigma z), z the
    normal quantile.
    """
    unit, deviation = query.lattice_norm_bound, query.site_deviation
    if unit is None:
        raise InputError(
            "classes",
            "must be declared for Gaussian noise: a list is found on the lattice",
            fix="list them: a,b,c",
        )
    counted = zip(words.distinct, words.counts().tolist(), strict=True)
    counts = {word: count for word, count in counted if count and word not in MISSING_WORDS}
    present = sorted(counts)
    noisy = np.array([counts[word] for word in present], dtype=np.int64) * unit
    rounded_gaussian(deviation).add_to(noisy, source.stream("noise"))
    passed = noisy >= list_threshold(unit, deviation, failure)
    kept = sorted(np.flatnonzero(passed).tolist(), key=lambda at: -noisy[at])[:MAX_CLASSES]
    return {present[at]: float(noisy[at]) / unit for at in kept}


def list_threshold(unit: int, deviation: float, failure: float) -> int:
    """In lattice units: what the noisy count of a listed word is at least."""
    return unit + 1 + math.ceil(deviation * float(norm.isf(failure / 2)))
