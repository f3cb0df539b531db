"""The synthesizers by name, as options and manifests spell them."""

from __future__ import annotations

from enum import StrEnum

from capemix.errors import InputError


class SynthesizerName(StrEnum):
    MIXING = "mixing"  # DP-CDA: Saha, Tonoy, Imtiaz 2024
    MOMENTS = "moments"  # Gaussians for each class, from private sums
    MOMENTS_TEACHER = "moments+teacher"  # images, and labels by a head trained by private sums
    DP_MIX = "dp-mix"  # Lee, Kim, Lee, Suh, Ramchandran 2019

    @classmethod
    def named(cls, name: str) -> SynthesizerName:
        try:
            return cls(name)
        except ValueError:
            raise InputError(
                "--synthesizer", "is unknown", value=name, fix=f"use one of {', '.join(cls)}"
            ) from None

    @property
    def of_moments(self) -> bool:
        """Whether it asks for sums of moments, one after the other."""
        return self in (SynthesizerName.MOMENTS, SynthesizerName.MOMENTS_TEACHER)
