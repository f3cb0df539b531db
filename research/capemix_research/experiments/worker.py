"""Train what is asked for on this machine: ``python -m capemix_research.experiments.worker``.

Needs torch and numpy alone, so that it runs from a source tree where nothing can be installed:
the noise of every setting comes from a file.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from capemix.evaluate.cnn import Training, device_named
from capemix_research.experiments.noise import NoiseTable
from capemix_research.experiments.results import Results
from capemix_research.experiments.run import cells_of, run_cells
from capemix_research.experiments.settings import TABLES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="+", choices=sorted(TABLES))
    parser.add_argument("--noise", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--at-once", type=int, default=64)
    asked = parser.parse_args()
    settings = [setting for name in asked.tables for setting in TABLES[name]()]
    left = run_cells(
        cells_of(settings, range(asked.seeds)),
        NoiseTable(asked.noise),
        Results(asked.results),
        device_named(asked.device),
        Training(),
        until=time.monotonic() + asked.seconds,
        at_once=asked.at_once,
        progress=lambda _done, _of, text: print(text, flush=True),
    )
    print(f"{left} models left")


if __name__ == "__main__":
    main()
