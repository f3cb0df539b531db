"""Drawings as SVG within a page. Colours are the page's, so they follow its theme; each drawing
says in words what it shows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.pages.html import Html, join, tag

Real = npt.NDArray[np.float64]

_WIDTH: Final = 340
_LEVELS: Final = 10
"""Shades of a map, each way."""


@dataclass(frozen=True, eq=False)
class Bars:
    """Parts of all rows, bar by bar: of the rows drawn; and where it was counted, of the records by
    the noisy counts, with how far the noise reaches either way. ``beside`` are parts of other rows
    that each bar is compared with."""

    drawn: Real
    counted: Real | None = None
    reach: Real | None = None
    beside: Real | None = None

    @property
    def top(self) -> float:
        """Of the axis: no part is more than all rows."""
        most = float(self.drawn.max(initial=0.0))
        if self.beside is not None:
            most = max(most, float(self.beside.max(initial=0.0)))
        if self.counted is not None and self.reach is not None:
            most = max(most, float((self.counted + self.reach).max(initial=0.0)))
        return min(1.0, most) * 1.02 or 1.0

    def ends(self) -> tuple[Real, Real]:
        """Of the band of noise, on the axis."""
        if self.counted is None or self.reach is None:
            raise ValueError("nothing was counted")
        low, high = self.counted - self.reach, self.counted + self.reach
        return np.clip(low, 0.0, self.top), np.clip(high, 0.0, self.top)


def percent(part: float) -> str:
    """A part of all rows, in words."""
    if part <= 0 or part >= 1:
        return f"{100 * part:.0f}%"
    if part < 0.0001:
        return "<0.01%"
    digits = 0 if part >= 0.1 else 1 if part >= 0.01 else 2
    return f"{100 * part:.{digits}f}%"


def histogram(bars: Bars, ticks: Sequence[tuple[float, str]], says: str) -> Html:
    """Bars of a column of numbers. ``ticks`` are places from 0 to the number of bars, in words."""
    left, top, wide, high = 34.0, 6.0, _WIDTH - 40.0, 112.0
    count, base = len(bars.drawn), top + high
    step = wide / max(count, 1)

    def at(part: float) -> float:
        return base - high * min(max(part, 0.0), bars.top) / bars.top

    parts = []
    inner, gap = step * 0.76, step * 0.12
    own = [
        _box(left + i * step + gap, at(part), inner, base - at(part))
        for i, part in enumerate(bars.drawn.tolist())
        if part > 0
    ]
    parts.append(tag("path", class_="over", d="".join(own)))
    if bars.counted is not None:
        low, above = bars.ends()
        band = [
            _box(left + i * step, at(above[i]), step, at(low[i]) - at(above[i]))
            for i in range(count)
        ]
        parts.append(tag("path", class_="band", d="".join(band)))
        parts.append(_steps("noisy", bars.counted, left, step, at))
    if bars.beside is not None:
        parts.append(_steps("noisy", bars.beside, left, step, at))
    parts.append(tag("path", class_="axis", d=f"M{left:g} {base:g}h{wide:g}", fill="none"))
    for value in (0.0, bars.top / 2, bars.top):
        place = at(value) + 3.5
        parts.append(_text(left - 4, place, percent(value), anchor="end", dim=True))
    for place, label in ticks:
        x = left + min(max(place, 0), count) * step
        anchor = "start" if x < left + 20 else "end" if x > left + wide - 20 else "middle"
        parts.append(_text(x, base + 14, _short(label, 14), anchor=anchor, dim=True))
    return _svg(_WIDTH, base + 20, says, parts)


def columns_of_words(bars: Bars, words: Sequence[str], says: str) -> Html:
    """A bar for each word, one below the other; what was counted is a dot with its reach."""
    left, wide, row = 126.0, _WIDTH - 126.0 - 46.0, 17.0

    def at(part: float) -> float:
        return left + wide * min(max(part, 0.0), bars.top) / bars.top

    parts = []
    for i, (word, part) in enumerate(zip(words, bars.drawn.tolist(), strict=True)):
        y = i * row
        parts.append(_text(left - 6, y + 12, _short(word, 18), anchor="end"))
        parts.append(tag("path", class_="over", d=_box(left, y + 3, at(part) - left, row - 6)))
        end = at(part)
        if bars.counted is not None:
            low, above = (float(each[i]) for each in bars.ends())
            lies = at(float(bars.counted[i]))
            line = f"M{at(low):.1f} {y + row / 2:g}H{at(above):.1f}"
            parts.append(tag("path", class_="noisy", d=line))
            parts.append(
                tag("circle", class_="dot", cx=f"{lies:.1f}", cy=f"{y + row / 2:g}", r=2.4)
            )
            end = max(end, at(above), lies + 2.4)
        if bars.beside is not None:
            other = at(float(bars.beside[i]))
            parts.append(
                tag("path", class_="floor", d=_box(left, y + row / 2 - 1.5, other - left, 3))
            )
            end = max(end, other)
        parts.append(_text(end + 4, y + 12, percent(part), dim=True))
    parts.append(tag("path", class_="axis", d=f"M{left:g} 0v{row * len(words):g}", fill="none"))
    return _svg(_WIDTH, row * len(words) + 2, says, parts)


def stacked(parts: Sequence[float], says: str) -> Html:
    """One bar of all parts, each with its number where there is room for it."""
    wide, drawn, x = 520.0, [], 0.0
    total = sum(parts) or 1.0
    for number, part in enumerate(parts, 1):
        own = wide * part / total
        fade = f"{1.0 if number % 2 else 0.72:g}"
        box = _box(x, 0, max(own - 1.0, 0.4), 26)
        drawn.append(tag("path", class_="plus", d=box, fill_opacity=fade))
        if own > 16:
            label = tag(
                "text", number, x=_place(x + own / 2), y=17, text_anchor="middle", class_="on"
            )
            drawn.append(label)
        x += own
    return _svg(wide, 26, says, drawn, style="max-width:46rem")


def shades(names: Sequence[str], values: Real, says: str) -> Html:
    """A square map of numbers from -1 to 1, with names at its side. NaN is left blank."""
    cell, left = (18.0 if len(names) <= 20 else 13.0), 112.0
    side = cell * len(names)
    level = np.clip(np.ceil(np.abs(np.nan_to_num(values)) * _LEVELS - 0.5), 0, _LEVELS).astype(int)
    drawn = [tag("path", class_="edge", d=_box(left, left, side, side))]
    for sign, strength in itertools.product(("plus", "minus"), range(1, _LEVELS + 1)):
        wanted = (values > 0) if sign == "plus" else (values < 0)
        places = np.argwhere(wanted & (level == strength)).tolist()
        if places:
            boxes = [_box(left + x * cell, left + y * cell, cell - 1, cell - 1) for y, x in places]
            shade = f"{strength / _LEVELS:g}"
            drawn.append(tag("path", class_=sign, fill_opacity=shade, d="".join(boxes)))
    for i, name in enumerate(names):
        middle = left + (i + 0.5) * cell
        drawn.append(_text(left - 4, middle + 4, _short(name, 17), anchor="end"))
        turned = f"translate({_place(middle + 4)} {left - 4:g}) rotate(-90)"
        drawn.append(tag("text", _short(name, 17), transform=turned))
    wide = left + side + 2
    size = f"min-width:{wide * 0.85:.0f}px;width:{wide:.0f}px"
    return tag(
        "div",
        _svg(wide, wide, says, drawn, style=size),
        class_="scroll",
        role="region",
        aria_label=says,
        tabindex=0,
    )


def _steps(kind: str, parts: Real, left: float, step: float, at: object) -> Html:
    line = "".join(
        f"{'L' if i else 'M'}{left + i * step:.1f} {at(part):.1f}h{step:.1f}"  # type: ignore[operator]
        for i, part in enumerate(parts.tolist())
    )
    return tag("path", class_=kind, d=line)


def _svg(wide: float, high: float, says: str, parts: Sequence[Html], **more: str) -> Html:
    # The words are its name; a text below the drawing or a table has the figures.
    return tag(
        "svg",
        join(parts),
        viewBox=f"0 0 {wide:g} {high:g}",
        role="img",
        aria_label=says,
        **more,
    )


def _box(x: float, y: float, wide: float, high: float) -> str:
    return f"M{x:.1f} {y:.1f}h{wide:.1f}v{max(high, 0.0):.1f}h{-wide:.1f}z"


def _text(x: float, y: float, said: str, *, anchor: str | None = None, dim: bool = False) -> Html:
    kind = "dim" if dim else None
    return tag("text", said, x=_place(x), y=_place(y), text_anchor=anchor, class_=kind)


def _place(at: float) -> str:
    return f"{at:.1f}"


def _short(said: str, most: int) -> str:
    return said if len(said) <= most else said[: most - 1] + "…"
