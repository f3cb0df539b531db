"""The folder that ``flwr run`` ships: two thin modules, and a run config that says where things
are on the coordinator's host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PACKAGE: Final = "capemix_run"

_PYPROJECT: Final = """\
# What is shipped to the SuperLink and to every SuperNode: code only, no key and no row.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "capemix-run"
version = "1.0.0"
description = "A capemix federation on Flower"
license = "Apache-2.0"
dependencies = ["capemix[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["capemix_run"]

[tool.flwr.app]
publisher = "capemix"

[tool.flwr.app.components]
serverapp = "capemix_run.server_app:app"
clientapp = "capemix_run.client_app:app"

# Paths are on the coordinator's host.
[tool.flwr.app.config]
"""

_SERVER: Final = '''\
"""The coordinator: drives the protocol and writes the release."""

from capemix.engines.flower.coordinator_app import server_app

app = server_app()
'''

_CLIENT: Final = '''\
"""The relay: passes messages to the site's own agent."""

from capemix.engines.flower.relay import client_app

app = client_app()
'''


def run_config(
    *,
    plan: Path,
    roster: Path,
    identity: Path,
    out: Path,
    wait_seconds: float = 600.0,
    round_seconds: float = 600.0,
    seeded: bool = False,
) -> dict[str, str | float | bool]:
    """What `coordinator_app.Settings` reads."""
    return {
        "plan": str(plan.absolute()),
        "roster": str(roster.absolute()),
        "identity": str(identity.absolute()),
        "out": str(out.absolute()),
        "wait-seconds": float(wait_seconds),
        "round-seconds": float(round_seconds),
        "seeded": seeded,
    }


def write_app(folder: Path, config: Mapping[str, str | float | bool]) -> None:
    package = folder / PACKAGE
    package.mkdir(parents=True)
    # A JSON string, number or truth value is the same in TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in config.items()]
    (folder / "pyproject.toml").write_text(_PYPROJECT + "".join(lines))
    (package / "__init__.py").write_text('"""A capemix federation on Flower."""\n')
    (package / "server_app.py").write_text(_SERVER)
    (package / "client_app.py").write_text(_CLIENT)
