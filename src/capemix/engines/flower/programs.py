"""How Flower's programs are started: which, with what options, and in what environment."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Final

from capemix.engines.flower.credentials import ServerFiles
from capemix.engines.flower.enclosure import HOST
from capemix.errors import InputError

LINK: Final = "here"
"""What Flower's own configuration calls the SuperLink."""


def write_flower_config(home: Path, port: int, server: ServerFiles) -> None:
    """What `flwr` needs to find the SuperLink, in the folder that FLWR_HOME names."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{HOST}:{port}"\n'
        f"root-certificates = {json.dumps(str(server.authority))}\n"
    )


def link_command(port: int, server: ServerFiles) -> list[str | Path]:
    """A SuperLink on loopback, over TLS."""
    command: list[str | Path] = [tool("flower-superlink"), "--host", HOST, "--port", str(port)]
    command += ["--ssl-ca-certfile", server.authority, "--ssl-certfile", server.certificate]
    command += ["--ssl-keyfile", server.key, "--disable-runtime-dependency-installation"]
    return command


def environment(home: Path) -> dict[str, str]:
    """This one's, with Flower's programs found first, quiet towards others, and at home there."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "NO_PROXY": f"{HOST},localhost",
        "no_proxy": f"{HOST},localhost",
        "PYTHONUNBUFFERED": "1",
        "PATH": programs + os.pathsep + os.environ.get("PATH", os.defpath),
    }


def tool(name: str) -> str | Path:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise InputError(name, "is not installed", fix="pip install 'capemix[flower]'")
    return found
