"""The sum of the selected rows, a draw at a time; never the selected rows themselves."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from capemix import kernels
from capemix.sums.select import Selected


def sum_selected(rows: npt.NDArray[Any], selected: Selected, out: npt.NDArray[Any]) -> None:
    """Add to out[t] the rows selected for draw t (l rows of width d in, one out)."""
    to = out[selected.first : selected.first + len(selected.starts) - 1]
    # The kernels do not check bounds: a row wider than ``out`` would be written past its end.
    if rows.shape[1] != out.shape[1] or len(to) != len(selected.starts) - 1:
        raise ValueError(f"rows of width {rows.shape[1]} do not fit sums of shape {out.shape}")
    kernels.active().gather_sum(rows, selected.starts, selected.indices, to)
