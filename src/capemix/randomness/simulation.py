"""A plain, fast generator for simulations."""

from __future__ import annotations

import numpy as np

from capemix.errors import InputError


def simulation_generator(seed: int) -> np.random.Generator:  # noqa: TID251
    """For partitions and simulated experiments; never for noise or selection of a release."""
    if seed < 0:
        raise InputError("seed", "must not be negative", value=seed, fix="give 0 or more")
    return np.random.Generator(np.random.Philox(seed))  # noqa: TID251
