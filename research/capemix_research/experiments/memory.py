"""Whether a machine without a GPU has the memory for a model, asked before the work starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from capemix.errors import InputError
from capemix_research.experiments.settings import RECORDS, Setting

if TYPE_CHECKING:
    import torch

_WIDTH: Final = 784


def needed_bytes(setting: Setting) -> int:
    """Records as they are and prepared, rows and a copy, and one table of draws by records."""
    rows = 4 * _WIDTH * (2 * RECORDS + 2 * setting.samples)
    pool, draws = RECORDS // 10, setting.samples // 10
    if setting.method == "dp-mix":
        pool, draws = RECORDS, min(setting.samples, 2_000)
    return rows + 3 * 4 * pool * draws


def free_bytes() -> int | None:
    """What can be had without swapping, where the system tells."""
    try:
        with open("/proc/meminfo") as file:  # noqa: PTH123 - not a file in any folder
            for line in file:
                if line.startswith("MemAvailable:"):
                    return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def check_memory(setting: Setting, device: torch.device) -> None:
    """Refuse what does not fit. A GPU is asked by `models_that_fit`."""
    if device.type == "cuda":
        return
    needed, free = needed_bytes(setting), free_bytes()
    if free is not None and free < needed:
        raise InputError(
            "memory",
            f"is too little: {needed / 1e9:.1f} GB are needed for a model of"
            f" {setting.samples} rows",
            value=f"{free / 1e9:.1f} GB free",
            fix="end what else runs there, or use --quick",
        )
