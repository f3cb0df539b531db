"""What a federation costs, stage by stage: the figures of docs/research/federation.md."""

from __future__ import annotations

import json as json_
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.errors import InputError
from capemix_research.cli import options as opt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capemix.data import LabeledRows
    from capemix.engines.flower.files import Outcome
    from capemix.plan import Plan

_CLASSES = 10


def measure(
    sites: Annotated[int, typer.Option(help="S: sites.")],
    samples: opt.Samples = 2000,
    width: Annotated[int, typer.Option(help="Numbers in a row.")] = 784,
    in_process: Annotated[
        bool,
        typer.Option("--in-process", help="The protocol alone, without Flower: sites in turn."),
    ] = False,
    dropouts: opt.Dropouts = 1,
    round_seconds: Annotated[float, typer.Option(help="How long a round waits.")] = 300.0,
    logs: Annotated[
        Path | None, typer.Option(help="Folder for what the processes say.", show_default=False)
    ] = None,
    json: opt.Json = False,
) -> None:
    """Time, bytes and memory of a federation by stage, on random rows; keeps no release."""
    if min(sites, samples, width) < 1 or samples % _CLASSES:
        raise InputError(
            "--samples",
            f"must be a multiple of {_CLASSES}, and all sizes positive",
            value=samples,
            fix="try 2000",
        )
    rows = _random_rows(samples, width)
    plan = _plan(rows, sites, samples, dropouts)
    parts = [rows.take(range(site, len(rows), sites)) for site in range(sites)]
    if in_process:
        found = _in_process(plan, parts)
    else:
        found = _over_flower(plan, parts, round_seconds, logs)
    found = {"sites": sites, "samples": samples, "width": width, **found}
    print(json_.dumps(found) if json else _tables(found))


def _random_rows(count: int, width: int) -> LabeledRows:
    import numpy as np

    from capemix.data import LabeledRows
    from capemix.data.rows import pixel_names
    from capemix.randomness.simulation import simulation_generator

    return LabeledRows(
        features=simulation_generator(0).integers(0, 256, (count, width), dtype=np.uint8),
        labels=np.repeat(np.arange(_CLASSES, dtype=np.int64), count // _CLASSES),
        classes=tuple(range(_CLASSES)),
        feature_names=pixel_names((1, width)),
        image_shape=(1, width),
    )


def _plan(rows: LabeledRows, sites: int, samples: int, dropouts: int) -> Plan:
    from capemix.api import config_of
    from capemix.facts import Facts
    from capemix.plan import make_plan
    from capemix.sums.steps import PublicMap

    sizes = (len(rows) // _CLASSES,) * _CLASSES
    facts = Facts.of(rows, class_sizes=sizes, normalise=PublicMap.of_range(0.0, 255.0))
    method = config_of("mixing", samples=samples, mixture=16)
    plan = make_plan(facts, method, scheme="cape", sites=sites, dropouts=dropouts)
    return plan.calibrate(10.0)


def _in_process(plan: Plan, parts: list[LabeledRows]) -> dict[str, Any]:
    from capemix.engines.flower.processes import peak_memory
    from capemix.engines.in_process import InProcessEngine
    from capemix.run import run

    started = time.monotonic()
    engine = InProcessEngine(parts)
    run(plan, engine)
    stages = engine.stages
    return {
        "seconds": {stage.name: round(stage.seconds, 3) for stage in stages},
        "seconds_in_all": round(time.monotonic() - started, 3),
        "bytes_a_site": {
            stage.name: [stage.bytes_out // len(parts), stage.bytes_in // len(parts)]
            for stage in stages
            if stage.bytes_in
        },
        "peak_memory": {"everything": peak_memory()},
    }


def _over_flower(
    plan: Plan, parts: list[LabeledRows], round_seconds: float, logs: Path | None
) -> dict[str, Any]:
    if find_spec("flwr") is None:
        raise InputError("flwr", "is not installed", fix="pip install 'capemix[flower]'")
    from capemix.engines.flower.local import run_on_loopback

    started = time.monotonic()
    first_round: list[float] = []

    def watch(outcome: Outcome, _nodes: Mapping[int, int]) -> None:
        if outcome.progress is not None:
            first_round.append(time.monotonic())
            typer.echo(str(outcome.progress), err=True)

    with tempfile.TemporaryDirectory(prefix="capemix-measure-") as folder:
        outcome = run_on_loopback(
            plan,
            parts,
            Path(folder) / "release",
            round_seconds=round_seconds,
            logs=logs,
            watch=watch,
        )
    in_all = time.monotonic() - started
    seconds = {done.round: done.seconds for done in outcome.rounds}
    start = first_round[0] - started
    return {
        "seconds": {"start": round(start, 3), **seconds},
        "seconds_in_all": round(in_all, 3),
        "bytes_a_site": {
            done.round: [done.bytes_out // len(parts), done.bytes_in // len(parts)]
            for done in outcome.rounds
        },
        "peak_memory": outcome.peak_memory,
    }


def _tables(found: dict[str, Any]) -> str:
    """Rows as the documentation has them."""

    def row(cells: Any) -> str:
        return "| " + " | ".join(map(str, cells)) + " |"

    def table(heads: list[str], cells: list[str]) -> str:
        size = [str(found["sites"]), f"{found['samples']:,}"]
        heads = ["sites", "rows released", *heads]
        return "\n".join([row(heads), row("---" for _ in heads), row([*size, *cells]), ""])

    def size(count: int) -> str:
        return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"

    seconds, sent = found["seconds"], found["bytes_a_site"]
    memory = found["peak_memory"]
    return "\n".join(
        [
            "seconds",
            table(
                [*seconds, "in all"],
                [f"{took:.1f}" for took in (*seconds.values(), found["seconds_in_all"])],
            ),
            "bytes for one site: out to it, in from it",
            table(list(sent), [f"{size(out)}, {size(in_)}" for out, in_ in sent.values()]),
            "peak memory",
            table(list(memory), [size(most) for most in memory.values()]),
        ]
    )
