"""Work on several threads: the kernels and numpy let go of the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")


def in_parallel(work: Callable[[T], None], over: Iterable[T], threads: int | None) -> None:
    """Do all of it, on ``threads`` threads, or on as many as there are cores."""
    count = threads or os.cpu_count() or 1
    if count == 1:
        for part in over:
            work(part)
        return
    # Matrix products on threads of their own would wait for one another.
    with _libraries().limit(limits=1, user_api="blas"), ThreadPoolExecutor(count) as pool:
        for _ in pool.map(work, over):
            pass


@cache
def _libraries() -> ThreadpoolController:
    """Those loaded by now: to look for them takes milliseconds."""
    return ThreadpoolController()
