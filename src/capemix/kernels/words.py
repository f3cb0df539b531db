"""Large integers as 64-bit words, the lowest first, as the kernels take them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def words_of(integers: Iterable[int], words: int) -> Words:
    """A row of so many words for each."""
    raw = b"".join(integer.to_bytes(8 * words, "little") for integer in integers)
    return np.frombuffer(raw, dtype="<u8").astype(np.uint64).reshape(-1, words)


def integers_of(rows: Words) -> list[int]:
    raw, length = rows.astype("<u8").tobytes(), 8 * rows.shape[1]
    starts = range(0, len(raw), length)
    return [int.from_bytes(raw[start : start + length], "little") for start in starts]
