"""What was worked out of a site's rows, kept from one round to the next, as long as the rows are.

Only public maps of single rows are kept so: which round asks makes no difference to them.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_KEPT: dict[tuple[int, str], tuple[weakref.ref[Any], bytes, Array]] = {}
_LOCK: Final = threading.Lock()


def key_of(*parts: Any) -> bytes:
    """One key for one list of parts, arrays with their types and shapes."""
    key = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            key.update(f"array {part.dtype} {part.shape} ".encode())
            key.update(np.ascontiguousarray(part).tobytes())
        else:
            said = repr(part).encode()
            key.update(f"value {len(said)} ".encode() + said)
    return key.digest()


def remembered(rows: Array, kind: str, key: bytes, make: Callable[[], Array]) -> Array:
    """What ``make`` makes of ``rows``, or made the last time with the same key; one for a kind.
    Rows must not be changed in place."""
    place = (id(rows), kind)
    with _LOCK:
        known = _KEPT.get(place)
    if known is not None and known[0]() is rows and known[1] == key:
        return known[2]
    made = make()
    with _LOCK:
        _KEPT[place] = (weakref.ref(rows, lambda _: _KEPT.pop(place, None)), key, made)
    return made
