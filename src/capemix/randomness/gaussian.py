"""Gaussian noise in floating point, by Box and Muller (1958) on AES words.

The radius comes from 64 bits, so the tail reaches 9.4 deviations. Floating point gives away low
bits (Mironov 2012), so what is built on this is labelled a real-arithmetic claim; a release's
default noise is on the integer lattice (`tables`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.randomness.source import ByteStream

_BLOCK: Final = 1 << 14  # pairs at a time, to stay in cache


def add_gaussian(
    out: npt.NDArray[np.float64], deviation: float, stream: ByteStream, *, sign: float = 1.0
) -> None:
    """Add sign * N(0, deviation^2) to every entry of the flat ``out``."""
    for start in range(0, len(out), 2 * _BLOCK):
        part = out[start : start + 2 * _BLOCK]
        half = (len(part) + 1) // 2
        words = stream.words(2 * half)
        uniform = (words[:half].astype(np.float64) + 0.5) * 2.0**-64
        radius = np.sqrt(-2.0 * np.log(uniform)) * (sign * deviation)
        angle = words[half:].astype(np.float64) * (2.0 * np.pi * 2.0**-64)
        part[:half] += radius * np.cos(angle)
        part[half:] += (radius * np.sin(angle))[: len(part) - half]


def draw_normals(out: npt.NDArray[np.float32], stream: ByteStream) -> None:
    """Fill the flat ``out`` with N(0, 1) in single precision, from 32 bits a number: the tail ends
    at 6.8 deviations. For rows that are drawn from what is public already, never for noise."""
    for start in range(0, len(out), 2 * _BLOCK):
        part = out[start : start + 2 * _BLOCK]
        half = (len(part) + 1) // 2
        words = np.empty(2 * half, dtype="<u4")
        stream.fill(words)
        numbers = words.astype(np.float32)
        radius = np.sqrt(np.float32(-2.0) * np.log((numbers[:half] + 0.5) * np.float32(2.0**-32)))
        angle = numbers[half:] * np.float32(2.0 * np.pi * 2.0**-32)
        part[:half] = radius * np.cos(angle)
        part[half:] = (radius * np.sin(angle))[: len(part) - half]
