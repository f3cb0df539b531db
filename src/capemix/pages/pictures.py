"""Synthetic images of a release, class by class, as pictures that are in the page itself."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.facts import Facts
from capemix.pages.html import Html, Part, tag
from capemix.sums.steps import DeclaredMap

_EACH: Final = 12
"""Images of a class that are shown."""

_MOST: Final = 40
"""Classes that are shown."""

_GREATEST: Final = 16_000
"""Pixels of a class's picture: larger images are shown in smaller numbers."""


def images(folder: Path, facts: Facts) -> Iterator[Part]:
    """A line of images for each class."""
    if facts.image_shape is None:
        return
    with np.load(folder / "synthetic.npz", allow_pickle=False) as arrays:
        values, labels = arrays["features"], arrays.get("labels")
    low, high = _range(facts, values)
    each = max(1, min(_EACH, _GREATEST // (facts.image_shape[0] * facts.image_shape[1])))
    shown: list[Html] = []
    classes = [None] if labels is None else list(facts.listed)[:_MOST]
    words = () if facts.table is None else facts.table.class_words
    for at, name in enumerate(classes):
        of = np.arange(len(values)) if labels is None else np.flatnonzero(labels == name)
        said = "images" if name is None else f"class {words[at] if words else name}"
        picture = _beside(values[of[:each]], low, high)
        shown.append(tag("dt", said))
        if picture is None:
            shown.append(tag("dd", "no row"))
            continue
        words_of = f"{min(each, len(of))} of {len(of)} synthetic images, {said}"
        high_, wide = picture.shape
        scale = max(1, round(48 / facts.image_shape[0]))
        drawn = tag(
            "img", src=_address(picture), alt=words_of, width=wide * scale, height=high_ * scale
        )
        shown.append(tag("dd", drawn))
    yield tag(
        "p",
        f"The first {each} synthetic rows of each class, as they are.",
    )
    yield tag("dl", *shown, class_="images")
    if labels is not None and len(facts.listed) > _MOST:
        yield tag("p", f"The first {_MOST} of {len(facts.listed)} classes are shown.")


def _range(facts: Facts, values: npt.NDArray[Any]) -> tuple[float, float]:
    """The declared one; or the rows' own, which anyone may see."""
    how = facts.normalise
    if isinstance(how, DeclaredMap):
        low, high = how.low, how.high
        if isinstance(low, int | float) and isinstance(high, int | float):
            return float(low), float(high)
    some = values[np.isfinite(values)]
    return (float(some.min()), float(some.max())) if some.size else (0.0, 1.0)


def _beside(images: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.uint8] | None:
    """In a row, with a gap."""
    if not len(images):
        return None
    span = high - low if high > low else 1.0
    grey = np.clip((np.nan_to_num(images.astype(np.float64)) - low) / span, 0.0, 1.0)
    shades = np.round(grey * 255).astype(np.uint8)
    count, tall, wide = shades.shape
    found = np.full((tall, count * (wide + 2) - 2), 128, dtype=np.uint8)
    for at, image in enumerate(shades):
        found[:, at * (wide + 2) : at * (wide + 2) + wide] = image
    return found


def _address(grey: npt.NDArray[np.uint8]) -> str:
    """A PNG of 8-bit greys, as an address that holds it."""
    tall, wide = grey.shape
    lines = np.concatenate([np.zeros((tall, 1), dtype=np.uint8), grey], axis=1)
    made = b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", wide, tall, 8, 0, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _chunk(b"IEND", b""),
        )
    )
    return "data:image/png;base64," + base64.b64encode(made).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
