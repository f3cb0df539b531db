"""Whether what is asked for fits the memory, before anything is charged for it."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

from capemix.errors import InputError

_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Of a container, by the second and by the first version of control groups."""


def memory() -> float:
    """The machine's, or what a container may use of it, in bytes; infinite where it is not said."""
    try:
        whole = float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        whole = math.inf
    for limit in _LIMITS:
        with suppress(OSError, ValueError):  # no container, or "max"
            whole = min(whole, float(limit.read_text()))
    return whole


def require_memory(option: str, rows: int, width: int, bytes_a_number: int) -> None:
    """For ``rows`` that are drawn and written, ``width`` numbers each."""
    if float(bytes_a_number) * rows * width > memory():
        raise InputError(
            option,
            f"asks for more rows (of {width} columns) than the memory holds",
            value=rows,
            fix="lower it",
        )
