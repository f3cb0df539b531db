"""What is shipped for running capemix as services: units and containers."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from test_docs import command_problems

DEPLOY = Path(__file__).parents[1] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def unit(path: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return dict(parser["Service"])


def command_of(path: Path) -> str:
    """The command of a unit, with the words that its head shows in place of the variable."""
    found = unit(path)["ExecStart"].replace("/opt/capemix/bin/", "")
    for name, value in re.findall(r"^# ([A-Z]+)=(.*)$", path.read_text(), re.MULTILINE):
        found = found.replace(f"${name}", value)
    assert "$" not in found, path
    return found


def test_there_is_a_unit_for_each_long_command() -> None:
    commands = {" ".join(command_of(path).split()[1:3]) for path in UNITS}
    assert commands == {"site serve", "site node", "federate serve"}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_a_command_that_there_is_as_a_user_without_rights(path: Path) -> None:
    assert command_problems(f"    {command_of(path)}\n") == []
    found = unit(path)
    assert found["User"] != "root"
    assert found["CapabilityBoundingSet"] == ""
    for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "RestrictSUIDSGID"):
        assert found[name] == "yes", name
    assert found["ProtectSystem"] == "strict"
    assert found["Restart"] == "on-failure"


def test_the_agent_has_no_network_and_the_node_no_way_to_its_files() -> None:
    agent, node = (
        unit(DEPLOY / "systemd" / f"capemix-{name}.service") for name in ("agent", "node")
    )
    assert agent["PrivateNetwork"] == "yes"
    assert agent["RestrictAddressFamilies"] == "AF_UNIX"
    assert agent["User"] != node["User"]
    assert agent["ReadWritePaths"] == node["InaccessiblePaths"].removeprefix("-")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_reads_every_line_of_a_unit(path: Path) -> None:
    ran = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, check=False
    )
    said = [line for line in ran.stderr.splitlines() if path.name in line]
    assert all("is not executable" in line for line in said), said  # it is not installed here


def test_containers_run_commands_that_there_are_with_no_network_for_the_agent() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    commands = re.findall(r"command: >-\n((?: {6}.*\n)+)", text)
    assert len(commands) == 2
    for command in commands:
        assert command_problems(f"    capemix {' '.join(command.split())}\n") == []
    assert "network_mode: none" in text.partition("  node:")[0]
    assert text.count("read_only: true") == text.count("cap_drop: [ALL]") == 2
