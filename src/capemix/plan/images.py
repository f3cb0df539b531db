"""That rows are images, and how a plan looks at them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from capemix.errors import InputError
from capemix.synthesizers.names import SynthesizerName

MOST_COLUMNS: Final = 250
"""Of a table, whose records add as many numbers as there are pairs of columns; wider rows must be
images."""

SMOOTH: Final = 160
"""Directions of the cosine transform in which images are looked at, from the smoothest on."""

MOST_PIXELS: Final = 1024
"""Of images whose texture is looked at pixel by pixel; a record adds a number for every pair."""

TEXTURED: Final = 640
"""Of larger ones, in so many directions of the cosine transform, from the smoothest on."""


@dataclass(frozen=True)
class Images:
    """That rows are images, and how they are looked at: ``upright`` sets each upright first (for
    handwriting); with a ``teacher`` a private head labels what is drawn."""

    shape: tuple[int, int]
    upright: bool = False
    teacher: bool = False

    def __post_init__(self) -> None:
        told = all(type(flag) is bool for flag in (self.upright, self.teacher))
        whole = len(self.shape) == 2 and all(type(side) is int for side in self.shape)
        if not told or not whole or any(side < 4 or side % 4 for side in self.shape):
            raise InputError(
                "images",
                "must have sides that are multiples of four",
                value=self.shape,
                fix="pad them, or use --synthesizer mixing",
            )

    @property
    def smooth(self) -> int:
        return min(SMOOTH, math.prod(self.shape))

    @property
    def textured(self) -> int | None:
        """Smooth directions in which texture is looked at; None: at every pixel."""
        return TEXTURED if math.prod(self.shape) > MOST_PIXELS else None

    def as_json(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "upright": self.upright, "teacher": self.teacher}

    @classmethod
    def of(
        cls, kind: SynthesizerName, width: int, shape: tuple[int, int] | None, upright: bool
    ) -> Images | None:
        """How a synthesizer looks at rows: as images if it has a teacher, or they are too wide for
        a table; else None."""
        teacher = kind is SynthesizerName.MOMENTS_TEACHER
        if shape is None and (teacher or upright):
            raise InputError(
                "--synthesizer" if teacher else "--upright",
                "is for images",
                value=str(kind),
                fix="use moments, without --upright",
            )
        if shape is None or not (teacher or upright or width > MOST_COLUMNS):
            return None
        return cls(shape, upright, teacher)
