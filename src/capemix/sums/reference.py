"""The obvious implementations: what the fast path is tested against and timed beside.

The noise here comes from an ordinary generator, so nothing made here may be released.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.sums.select import Selected


def sums_by_loop(rows: npt.NDArray[Any], selected: Selected) -> npt.NDArray[Any]:
    """The sum of the selected rows of each draw, one draw after another."""
    kind = np.int64 if np.issubdtype(rows.dtype, np.integer) else np.float64
    out = np.zeros((len(selected.starts) - 1, rows.shape[1]), dtype=kind)
    for t in range(len(out)):
        chosen = selected.indices[selected.starts[t] : selected.starts[t + 1]]
        for record in chosen:
            out[t] += rows[record]
    return out


def mixtures_by_loop(
    rows_by_class: Sequence[npt.NDArray[Any]],
    draws: Sequence[int],
    mixture: int,
    noise: float,
    generator: Any,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """DP-CDA as one would first write it: choose, average, add noise, append."""
    mixtures, labels = [], []
    for label, rows in enumerate(rows_by_class):
        for _ in range(draws[label]):
            chosen = generator.choice(len(rows), mixture, replace=False)
            mixtures.append(rows[chosen].mean(axis=0) + generator.normal(0.0, noise, rows.shape[1]))
            labels.append(label)
    return np.array(mixtures), np.array(labels, dtype=np.int64)
