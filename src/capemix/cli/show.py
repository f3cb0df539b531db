"""What the terminal shows: one screen, no private value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from capemix import documents
from capemix.accounting.mint import CONFIRMED_DRAFT, NOT_DECLARED, ONE_SITE
from capemix.data.schema import DRAFTED
from capemix.errors import printable
from capemix.evaluate import Comparison, Fit, Measures, Regressions, Score
from capemix.federation import Scheme
from capemix.guarantee import Guarantee, Status, whose
from capemix.pages import REPORT
from capemix.plan import Plan
from capemix.program_cost import BudgetLine
from capemix.queries import Relation
from capemix.release import Release
from capemix.sums.steps import Coverage

if TYPE_CHECKING:
    from capemix.audit.membership import Attack
    from capemix.identity import Member

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
    """Limits, charges, refunds and runs joined, a line each, with where they left their lineage."""
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


def account_of(plan: Plan, guarantee: Guarantee) -> dict[str, Any]:
    """What `capemix calibrate`, `account` and `synth` print as JSON. ``noise`` and ``site_noise``
    are deviations on a released number, where the release is one sum."""
    federation, adversary = plan.federation, guarantee.adversary
    found: dict[str, Any] = {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "method": plan.method.kind,
        "noise": _noise(plan),
        "noise_multiplier": guarantee.views[guarantee.view].noise_multiplier,
        "relation": str(guarantee.relation),
        "unit": guarantee.unit,
        "accountant": guarantee.accountant,
        "status": str(guarantee.status),
        "arithmetic": guarantee.arithmetic,
        "scheme": str(federation.scheme),
    }
    if federation.scheme is not Scheme.CENTRAL:
        found |= {
            "sites": adversary.sites,
            "colluding": adversary.colluding,
            "dropouts": adversary.dropouts,
            "honest": adversary.honest,
            "site_noise": _site_noise(plan),
        }
    if federation.scheme is Scheme.CAPE:
        found["price"] = adversary.price
    views = documents.as_json(guarantee)["views"]
    return found | {"view": guarantee.view, "views": views}


def _noise(plan: Plan) -> float | None:
    """Of a release that is one sum, the deviation of the noise on each of its numbers."""
    return plan.query(plan.body[0].name).deviation if plan.drawn else None


def _site_noise(plan: Plan) -> float | None:
    """One site's own noise on a number of a released row; of an averaged one, on its own row."""
    noise, sites = _noise(plan), plan.federation.sites
    if noise is None:
        return None
    root = math.sqrt(sites)
    return noise * root if plan.federation.averaged else noise / root


_COVERED: Final = {
    Coverage.PUBLIC: "by what is declared public",
    Coverage.PER_ROW: "of each record by itself",
    Coverage.PER_PERSON: "of each person by itself",
    Coverage.PAID: "paid for out of the budget",
    Coverage.NOT_COVERED: "NOT covered by the guarantee",
}

_NEIGHBOURS: Final = {
    Relation.ADD_REMOVE: "when {} is added or left out",
    Relation.REPLACE_ONE: "when {} is replaced by another",
}


def print_signer(signer: Member | None, *, new: bool) -> None:
    """Who vouches for a release; a key that was made for it is told of."""
    if signer is None:
        print("Not signed: nobody can tell later who made this.")
        return
    print(f"Signed by {printable(str(signer))}")
    if new:
        print(
            "This is your own new key, which `capemix key` shows. Give this fingerprint to those"
            " who will verify your releases."
        )


def print_release(release: Release, folder: Path, plan: Plan | None = None) -> None:
    """The one-screen summary of a release. ``plan`` says of sites and noise what a release of
    another kind of plan does not have."""
    guarantee = release.guarantee
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, text in _lines(release, folder, plan):
        table.add_row(name, text)
    console = Console(markup=False, highlight=False)
    console.print(table)
    print_table(
        "What each sum costs, against the strongest observer",
        cost_lines(release.plan.budget(), guarantee),
    )
    for warning in release.warnings:
        console.print(f"Warning: {warning}.", soft_wrap=True)
    if guarantee.status is not Status.GUARANTEE:
        console.print(f"Note: {guarantee.status}. Do not publish this as a private release.")
    if any(said.startswith(DRAFTED) for said in guarantee.assumptions):
        console.print("`capemix schema confirm` confirms a draft, line by line.")


def cost_lines(budget: Iterable[BudgetLine], guarantee: Guarantee) -> list[dict[str, Any]]:
    """The budget's lines, as they are shown."""
    return [
        {
            "sum": line.line,
            "reads": line.reads,
            f"a_{whose(guarantee.unit)}_adds_at_most": line.sensitivity,
            "share": f"{line.share:.1%}",
            "epsilon_alone": line.epsilon_alone,
            "epsilon_so_far": line.epsilon_composed,
        }
        for line in budget
    ]


def _lines(release: Release, folder: Path, plan: Plan | None) -> Iterator[tuple[str, str]]:
    guarantee, known = release.guarantee, release.plan.known
    epsilon = "infinite" if guarantee.epsilon is None else f"{guarantee.epsilon:.4g}"
    yield (
        "it would be" if guarantee.status is Status.FROM_ROWS else "guarantee",
        f"epsilon {epsilon}, delta {guarantee.delta:.3g}"
        f" {_NEIGHBOURS[guarantee.relation].format(guarantee.unit)}"
        f" ({guarantee.accountant} accountant)",
    )
    yield "status", str(guarantee.status)
    for said in guarantee.assumptions:
        if said in (CONFIRMED_DRAFT, ONE_SITE) or said.endswith(NOT_DECLARED.format("")):
            yield "", said
    for name, cost in guarantee.views.items():
        yield f"{name} view", f"epsilon {_number(cost.epsilon)}"
    if plan is not None:
        yield "method", plan.method.kind
        yield from _site_lines(plan, guarantee)
        yield "noise", f"{_noise_line(plan, guarantee)} ({guarantee.arithmetic})"
    for step in release.plan.steps:
        yield step.name, f"{step.says}: {_COVERED[step.coverage]}"
    classes = "" if known.label is None else f" of {len(known.listed)} classes"
    yield "rows", f"{len(release)} synthetic rows{classes}"
    if release.soft_labels is not None:
        yield "", "with a probability for each class beside the label"
    yield "files", str(folder)
    if (folder / REPORT).is_file():
        yield "report", str(folder / REPORT)


def _site_lines(plan: Plan, guarantee: Guarantee) -> Iterator[tuple[str, str]]:
    adversary = guarantee.adversary
    if adversary.sites < 2 or not plan.countable:
        return
    yield (
        "against",
        f"the server, with {adversary.colluding} of {adversary.sites} sites colluding and"
        f" {adversary.dropouts} missing",
    )
    if plan.federation.scheme is Scheme.CAPE:
        yield (
            "price",
            f"the noise has {adversary.price:.3g} times the variance that a trusted curator would"
            " need, since nobody is trusted",
        )
    yield "", "all sites were simulated in this one process"


def _noise_line(plan: Plan, guarantee: Guarantee) -> str:
    """Of rows that are released with their noise, the noise on a number; of others, of all sums."""
    noise = _noise(plan)
    if noise is None:
        times = guarantee.views[guarantee.view].noise_multiplier
        return (
            "Gaussian; taken over all the sums below, its deviation is"
            f" {_number(times)} times the most that one {whose(guarantee.unit)} can change them"
        )
    line = plan.body[0]
    return (
        f"Gaussian, of deviation {_number(noise)} on each number of a sum of records divided by"
        f" {_number(line.divisor)}; one {whose(guarantee.unit)} adds at most"
        f" {_number(line.l2_norm_bound)} to a sum"
    )


def print_scores(
    found: Comparison,
    classes: Sequence[str | int],
    *,
    model: str,
    soft_labels: bool,
    test: str,
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


def print_models(models: Mapping[str, Comparison]) -> None:
    """Accuracy and AUC of several models."""
    table = Table(title="models, tested on real rows", title_justify="left")
    for name in ("trained on", "release", "real rows"):
        table.add_column(name, justify="left" if name == "trained on" else "right")
    for name, own in models.items():
        both = (own.synthetic, own.real)
        for what in ("accuracy", "auc"):
            values = (None if each is None else getattr(each, what) for each in both)
            table.add_row(f"{name}: {what.replace('auc', 'AUC')}", *map(_share, values))
    Console().print(table)


def print_likeness(found: Measures, attacks: Sequence[Attack]) -> None:
    """How like real rows a release is, and what it gives away."""
    rows = "the rows it was made from" if found.against == "train" else "the test rows"
    table = Table(title=f"the release beside {rows}", title_justify="left")
    for name in ("measure", "release", "other real rows"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name, value, floor in found.lines():
        table.add_row(name, _share(value), _share(floor))
    Console().print(table)
    if found.subsample is not None:
        print(f"as good as a subsample of {found.subsample} of the real rows")
    for one in attacks:
        print(
            f"membership attack by {one.name}: AUC {one.auc:.3f} ({one.low:.3f} to {one.high:.3f});"
            " 0.5 is guessing"
        )


def print_regressions(found: Regressions, target: str, *, test: str) -> None:
    """How well a column of numbers is predicted, a line for each model."""
    console = Console(markup=False, highlight=False)
    for model, fit in found.synthetic.items():
        line = f"utility: {model} trained on the release: {_fit(fit)} in '{target}' of {test}"
        if found.real is not None:
            line += f"; trained on real rows: {_fit(found.real[model])}"
        console.print(line, soft_wrap=True)


def _fit(fit: Fit) -> str:
    return f"R2 {fit.r2:.3f}, mean absolute error {fit.error:.4g}"


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
