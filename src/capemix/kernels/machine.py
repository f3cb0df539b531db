"""What this machine has: memory, which what is asked for must fit, and cores, over which work is
spread. The kernels and numpy let go of the interpreter's lock."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from threadpoolctl import ThreadpoolController

from capemix.errors import InputError

T = TypeVar("T")

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


def require_unpacked(field: str, needed: int) -> None:
    """For what a file unpacks to, in bytes: a few kilobytes can be more than any machine holds."""
    if needed > memory():
        raise InputError(
            field,
            "would fill more memory than this machine has",
            value=f"{needed / 1e9:.3g} GB",
            fix="give fewer rows, or a larger machine",
        )


_LITTLE: Final = 1 << 23
"""Of so few numbers gone through, threads gain less than they cost, in starts, in waiting for one
another and in handing the interpreter's lock over (measured on two cores)."""


def in_parallel(
    work: Callable[[T], None],
    over: Iterable[T],
    threads: int | None,
    *,
    numbers: int | None = None,
) -> None:
    """Do all of it, on ``threads`` threads, or on as many as there are cores for this process; on
    this one, if the ``numbers`` it goes through are few."""
    little = numbers is not None and numbers < _LITTLE
    parts, count = list(over), 1 if little else threads or cores()
    with products_on_one_thread():
        if count == 1 or len(parts) == 1:
            for part in parts:
                work(part)
            return
        with ThreadPoolExecutor(min(count, max(len(parts), 1))) as pool:
            for _ in pool.map(work, parts):
                pass


def cores() -> int:
    """Those that this process may use: a scheduler may leave it a few of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_lock = threading.Lock()
_inside: list[ExitStack] = []
"""One for each of those inside at the moment; the first holds the limit."""


@contextmanager
def products_on_one_thread() -> Iterator[None]:
    """On several, matrix products would wait for one another, and round differently. The first in
    sets the limit, and the last out lifts it."""
    own = ExitStack()
    with _lock:
        if not _inside:
            own.enter_context(_libraries().limit(limits=1, user_api="blas"))
        _inside.append(own)
    try:
        yield
    finally:
        with _lock:
            _inside.remove(own)
            if _inside:
                _inside[0].push(own.pop_all())
            own.close()


@cache
def _libraries() -> ThreadpoolController:
    """Those loaded by now: to look for them takes milliseconds."""
    return ThreadpoolController()
