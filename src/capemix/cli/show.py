"""What the terminal shows: one screen, no private value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from capemix.accounting.mint import CONFIRMED_DRAFT, NOT_DECLARED
from capemix.evaluate import Comparison, Score
from capemix.federation import Scheme
from capemix.guarantee import Guarantee, Status
from capemix.plan import Accountant, MomentsPlan, Plan
from capemix.private import PRIVATE
from capemix.release import Release, ReleasedPlan

_MOST_SHOWN: Final = 20
"""Classes of a confusion matrix that still fits a screen."""


def print_json(found: dict[str, Any]) -> None:
    print(json.dumps(found, allow_nan=False))


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def print_facts(found: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in found.items():
        if name == "views":
            for view, cost in value.items():
                text = ", ".join(f"{key} {_number(part)}" for key, part in cost.items())
                table.add_row(f"view: {view}", text)
        else:
            table.add_row(name.replace("_", " "), _number(value))
    Console().print(table)


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "))
    for row in rows:
        table.add_row(*(_number(value) for value in row.values()))
    Console().print(table)


def print_ledger(lines: list[dict[str, Any]]) -> None:
    """Limits, charges and runs joined, a line each, with where they left their lineage."""
    table = Table(box=None, pad_edge=False)
    for name in ("line", "time", "lineage", "what"):
        table.add_column(name)
    for name in ("alone", "so far", "used", "left"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(
            str(line["line"]),
            line["time"][:10],
            line["lineage"],
            f"limit {line['limit_epsilon']:.4g}, {line['limit_delta']:.3g}"
            if line["what"] == "limit"
            else line["what"],
            _number(line["epsilon"]),
            _number(line["epsilon_so_far"]),
            "-" if line["used"] is None else f"{line['used']:.1%}",
            "-" if line["left"] is None else f"{line['left']:.1%}",
        )
    console = Console(markup=False, highlight=False)
    console.print(table)
    console.print(
        "alone: a release's own epsilon. so far: epsilon of all up to this line, at the limit's"
        " delta, had they been planned in advance.\nused: the part of the limit that is gone, which"
        " holds for plans chosen after seeing releases, too."
    )


def account_of(plan: ReleasedPlan, guarantee: Guarantee) -> dict[str, Any]:
    """What `capemix calibrate`, `account` and `synth` print as JSON."""
    found: dict[str, Any] = {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "noise": plan.noise,
        "noise_multiplier": plan.noise_multiplier,
        "relation": str(guarantee.relation),
        "accountant": guarantee.accountant,
        "status": str(guarantee.status),
        "arithmetic": guarantee.arithmetic,
    }
    if isinstance(plan, (Plan, MomentsPlan)):
        found |= _who_adds_noise(plan, guarantee)
    return found | {"view": guarantee.view, "views": guarantee.as_json()["views"]}


def _who_adds_noise(plan: Plan | MomentsPlan, guarantee: Guarantee) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(plan, MomentsPlan):
        found["synthesizer"] = str(plan.synthesizer)
    found["scheme"] = str(plan.federation.scheme)
    if guarantee.accountant == "sound":
        found["epsilon_pld"] = guarantee.epsilon_pld
    if plan.federation.scheme != "central":
        found |= {
            "sites": guarantee.adversary.sites,
            "colluding": guarantee.adversary.colluding,
            "dropouts": guarantee.adversary.dropouts,
            "honest": guarantee.adversary.honest,
        }
        if isinstance(plan, Plan):
            found["site_noise"] = plan.site_noise
    if plan.federation.scheme == "cape":
        found["price"] = guarantee.adversary.price
    return found


def print_release(release: Release, folder: Path, noise_on: str = "") -> None:
    """The one-screen summary of a release. ``noise_on`` says what the noise is on, where the plan
    is none of capemix."""
    guarantee, plan = release.guarantee, release.plan
    adversary = guarantee.adversary
    epsilon = "infinite" if guarantee.epsilon is None else f"{guarantee.epsilon:.4g}"
    table = Table(show_header=False, box=None, pad_edge=False)
    read = guarantee.status is Status.FROM_ROWS
    table.add_row(
        "it would be" if read else "guarantee",
        f"epsilon {epsilon}, delta {guarantee.delta:.3g}, {guarantee.relation}"
        f" ({guarantee.accountant} accountant)",
    )
    table.add_row("status", str(guarantee.status))
    for said in guarantee.assumptions:
        if said == CONFIRMED_DRAFT or said.endswith(NOT_DECLARED.format("")):
            table.add_row("", said)
    if guarantee.epsilon_pld is not None:
        table.add_row("", f"PLD reference {guarantee.epsilon_pld:.4g} (continuous Gaussian)")
    for name, cost in guarantee.views.items():
        table.add_row(f"{name} view", f"epsilon {_number(cost.epsilon)}")
    counted = isinstance(plan, MomentsPlan) or (
        isinstance(plan, Plan) and plan.accountant is Accountant.SOUND
    )
    if adversary.sites > 1 and counted and isinstance(plan, (Plan, MomentsPlan)):
        table.add_row(
            "against",
            f"the server with {adversary.colluding} of {adversary.sites} sites colluding,"
            f" {adversary.dropouts} missing",
        )
        if plan.federation.scheme is Scheme.CAPE:
            table.add_row(
                "price", f"{adversary.price:.3g} times the variance, for trusting nobody (S/h)"
            )
        table.add_row("", "simulated: all sites ran in this one process")
    if isinstance(plan, Plan):
        on = (
            f"on a mixture of {plan.mixing.mixture} rows of norm {plan.mixing.clip:.3g}"
            f" (each site adds {_number(plan.site_noise)}; {guarantee.arithmetic})"
        )
    elif isinstance(plan, MomentsPlan):
        on = f"times what a record adds, over all rounds ({guarantee.arithmetic})"
    else:
        on = f"{noise_on} ({guarantee.arithmetic})".lstrip()
    table.add_row("noise", f"{_number(plan.noise)} {on}")
    for step in plan.steps:
        table.add_row(step.name, f"{step.says} [{step.coverage}]", style=None)
    table.add_row("rows", f"{len(release)} synthetic rows, {len(plan.classes)} classes")
    if release.soft_labels is not None:
        table.add_row("", "with a probability for each class beside the label")
    table.add_row("files", str(folder))
    console = Console(markup=False, highlight=False)
    console.print(table)
    lines = [asdict(line) for line in plan.budget()]
    print_table("budget, against the strongest view", lines)
    for warning in release.warnings:
        console.print(f"Warning: {warning}.", soft_wrap=True)
    if guarantee.status is not Status.GUARANTEE:
        console.print(f"Note: {guarantee.status}. Do not publish this as a private release.")


def print_scores(
    found: Comparison,
    classes: Sequence[str | int],
    *,
    model: str,
    soft_labels: bool,
    test: str,
    public: bool,
) -> None:
    """Accuracy in one line, then by class, then which class was taken for which."""
    synthetic, real = found.synthetic, found.real
    console = Console(markup=False, highlight=False)
    learnt = "the release's soft labels" if soft_labels else "the release"
    line = f"utility: {model} trained on {learnt}: {_accuracy(synthetic)} accuracy on {test}"
    if real is not None:
        line += f"; trained on real rows: {_accuracy(real)}"
    console.print(line, soft_wrap=True)
    table = Table(title="accuracy by class", title_justify="left")
    table.add_column("class")
    table.add_column("release", justify="right")
    if real is not None:
        table.add_column("real rows", justify="right")
    for index, name in enumerate(classes):
        values = [_share(synthetic.per_class[index])]
        if real is not None:
            values.append(_share(real.per_class[index]))
        table.add_row(str(name), *values)
    console.print(table)
    if len(classes) > _MOST_SHOWN:
        console.print(f"--json has the confusion matrices of all {len(classes)} classes.")
    else:
        console.print(_confusion("release: true class by predicted class", synthetic, classes))
        if real is not None:
            console.print(_confusion("real rows: true class by predicted class", real, classes))
    if not public:
        console.print(PRIVATE)


def _accuracy(score: Score) -> str:
    if score.spread is None:
        return f"{score.accuracy:.3f}"
    return f"{score.accuracy:.3f} ± {score.spread:.3f} ({len(score.accuracies)} seeds)"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _confusion(title: str, score: Score, classes: Sequence[str | int]) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("")
    for name in classes:
        table.add_column(str(name), justify="right")
    for name, row in zip(classes, score.confusion, strict=True):
        table.add_row(str(name), *(str(count) if count else "." for count in row))
    return table


@contextmanager
def row_progress(total: int, *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """A bar on the terminal's error stream, gone when the work is done."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("synthetic rows", total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def epoch_progress(text: str, *, quiet: bool) -> Iterator[Callable[[float, float], None] | None]:
    """A bar with the time left, once what is done is told; a spinner until then."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def spinner(text: str, *, quiet: bool) -> Iterator[None]:
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(text):
        yield
