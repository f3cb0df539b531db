"""Work on several threads: the kernels and numpy let go of the interpreter's lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Final, TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")


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
