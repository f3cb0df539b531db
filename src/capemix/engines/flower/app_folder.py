"""The folder that ``flwr run`` ships: two thin modules, and a run config that says where things
are on the coordinator's host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from capemix import documents
from capemix.engines.flower.credentials import write_private
from capemix.engines.flower.files import plan_text
from capemix.errors import InputError
from capemix.guarantee import Status
from capemix.identity import load_identity
from capemix.ledger import Account
from capemix.plan import Plan
from capemix.protocol.agreement import public_bytes
from capemix.protocol.demands import Demands, demands_of
from capemix.protocol.policy import Policy
from capemix.protocol.roster import Roster
from capemix.protocol.step import ReleaseStep

PACKAGE: Final = "capemix_run"
CHUNK_BYTES: Final = 64 << 20
"""Every message through Flower starts a process at the site, and that takes seconds: so few, large
ones. How many are under way at a time is bounded, so this bounds the SuperLink's memory."""

_RUNS: Final = 3
"""How many runs of the plan a new policy has room for."""

_TIMES: Final = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
"""What its total may be of one run's epsilon: the first that has the room."""

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
    chunk_bytes: int = CHUNK_BYTES,
) -> dict[str, str | float | bool]:
    """What `settings.Settings` reads."""
    return {
        "plan": str(plan.absolute()),
        "roster": str(roster.absolute()),
        "identity": str(identity.absolute()),
        "out": str(out.absolute()),
        "wait-seconds": float(wait_seconds),
        "round-seconds": float(round_seconds),
        "chunk-bytes": chunk_bytes,
        "give-up": False,
    }


def write_app(folder: Path, config: Mapping[str, str | float | bool]) -> None:
    package = folder / PACKAGE
    package.mkdir(parents=True)
    # A JSON string or number is the same in TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in config.items()]
    (folder / "pyproject.toml").write_text(_PYPROJECT + "".join(lines))
    (package / "__init__.py").write_text('"""A capemix federation on Flower."""\n')
    (package / "server_app.py").write_text(_SERVER)
    (package / "client_app.py").write_text(_CLIENT)


def fitting_policy(plan: Plan) -> Policy:
    """A policy to start from: it allows this plan and nothing more, once a person approves it, and
    has room for a few runs, since one that breaks off may have cost what was uploaded."""
    guarantee, demands = plan.guarantee(), demands_of(plan)
    if guarantee.epsilon is None or plan.epsilon is None:
        raise InputError("epsilon", "must be finite", fix="a site agrees to no less")
    facts, usual = plan.facts, Policy()
    sizes: dict[str, Any] = {
        f"largest_{each.name}": max(
            getattr(demands, each.name), getattr(usual, f"largest_{each.name}")
        )
        for each in fields(Demands)
    }
    fitting = Policy(
        max_epsilon=max(plan.epsilon, guarantee.epsilon),
        max_delta=guarantee.delta,
        total_epsilon=plan.epsilon,
        least_sites=plan.federation.sites,
        least_colluding=plan.federation.colluding,
        columns=facts.columns_read,
        classes=facts.listed,
        real_arithmetic=guarantee.status is Status.REAL_ARITHMETIC,
        methods=(plan.method.kind,),
        relation=plan.relation,
        plans="ask",
        **sizes,
    )
    for times in _TIMES:
        fitting = replace(fitting, total_epsilon=times * fitting.max_epsilon)
        if _fits_repeatedly(plan, Account(fitting.limit)):
            break
    return fitting


def _fits_repeatedly(plan: Plan, account: Account) -> bool:
    """Whether a few runs of the plan fit, one after the other."""
    step = ReleaseStep.first_of(plan)
    relation = account.limit.relation
    costs, instead = step.costs(relation), step.cost_alone(relation)
    for _ in range(_RUNS):
        after = account.after(costs, instead=instead)
        if after is None:
            return False
        account = after
    return True


def write_federation(
    folder: Path, plan: Plan, members: Roster | None = None, identity: Path | None = None
) -> list[Path]:
    """What a coordinator starts from: the plan, the app, a policy for the sites, the roster (or a
    template of it) and the coordinator's key, if it is given.

    The app is in a folder of its own, so that nothing else is shipped.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            "DIR", "is in use", value=folder, fix="name a folder that is absent or empty"
        )
    key = None
    if members is not None and len(members.sites) != plan.federation.sites:
        raise InputError(
            "roster",
            f"must have the plan's {plan.federation.sites} sites",
            value=len(members.sites),
            fix="bring the two in line",
        )
    if identity is not None:
        own = public_bytes(load_identity(identity))
        if members is not None and own != members.coordinator.key:
            raise InputError(
                "identity", "is not the roster's coordinator", value=identity, fix="check both"
            )
        key = identity.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    proposed, roster, policy = (folder / f"{n}.json" for n in ("plan", "roster", "policy"))
    proposed.write_text(plan_text(plan))
    blank = {"name": "", "identity": ""}
    sites = [{**blank, "name": f"site-{s}"} for s in range(plan.federation.sites)]
    template = {"coordinator": {**blank, "name": "coordinator"}, "sites": sites}
    found = template if members is None else documents.as_json(members)
    roster.write_text(json.dumps(found, indent=2) + "\n")
    limits = documents.as_json(fitting_policy(plan))
    policy.write_text(json.dumps(limits, indent=2) + "\n")
    own_key = folder / "coordinator.key"
    if key is not None:
        write_private(own_key, key)
    config = run_config(
        plan=proposed,
        roster=roster,
        identity=own_key,
        out=folder / "release",
    )
    write_app(folder / "app", config)
    return [proposed, roster, policy, *([] if key is None else [own_key]), folder / "app"]
