"""The idx format of unsigned bytes (images and labels), read with full checking."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError

_UBYTE = 0x08
_MOST_BYTES = 1 << 31
_MOST_RATIO = 1100
"""A byte of deflate never holds more than 1032 bytes."""

_FIX = "fetch the file again"


def parse_idx(data: bytes, *, dims: int, name: str = "idx data") -> npt.NDArray[np.uint8]:
    """The read-only array in ``data``: ``dims`` is 3 for images, 1 for labels."""
    shape = _declared_shape(data[: _header_size(dims)], dims, name)
    body = len(data) - _header_size(dims)
    declared = math.prod(shape)
    if body < declared:
        raise InputError(name, f"is cut short: {body} of {declared} bytes are there", fix=_FIX)
    if body > declared:
        raise InputError(name, f"has bytes after the {declared} that it declares", fix=_FIX)
    return np.frombuffer(data, dtype=np.uint8, offset=_header_size(dims)).reshape(shape)


def read_gzip_idx(path: Path, *, dims: int) -> bytes:
    """The bytes of a gzip idx file, never more than its header declares plus one."""
    try:
        packed = path.stat().st_size
        with gzip.open(path, "rb") as stream:
            header = stream.read(_header_size(dims))
            declared = math.prod(_declared_shape(header, dims, path.name))
            if declared > packed * _MOST_RATIO:
                raise InputError(
                    path.name, f"declares {declared} bytes, more than it can hold", fix=_FIX
                )
            return header + stream.read(declared + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            path.name, "is not a readable gzip file", value=type(error).__name__, fix=_FIX
        ) from error


def _header_size(dims: int) -> int:
    return 4 + 4 * dims


def _declared_shape(header: bytes, dims: int, name: str) -> tuple[int, ...]:
    if len(header) < _header_size(dims):
        raise InputError(name, "is cut short inside its header", value=len(header), fix=_FIX)
    if header[:4] != bytes((0, 0, _UBYTE, dims)):
        raise InputError(
            name,
            f"does not begin as an idx file of {dims}-dimensional unsigned bytes",
            value=header[:4].hex(),
            fix=_FIX,
        )
    shape = tuple(int(size) for size in np.frombuffer(header[4:], dtype=">u4"))
    if min(shape) < 1 or math.prod(shape) > _MOST_BYTES:
        raise InputError(name, "declares impossible dimensions", value=shape, fix=_FIX)
    return shape
