"""What the rule for shares of the budget is worth, beside shares set by hand.

    python -m capemix_research.experiments.shares --results docs/research/shares.csv

For each table, number of records, epsilon and seed: one release with `HandSet` shares and one by
the rule (`capemix.methods.shares`), of the same rows with the same test seed, and on each a
logistic regression and boosted trees. 30 of 100 rows are tested on, split anew for each seed; of
the others so many records are taken, or all, where these are at least a fifth. Ranges are declared
public, and all else is paid for; with ``--measured`` ranges are measured too. ``gauss`` and ``cat``
are synthetic: classes of one Gaussian each, and categories of classes that are mixed of logits.
A line of the results is both releases. Lines that are there are not made again; lastly the lines
are printed as the tables of the page. The tables lie in $CAPEMIX_DATA/tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Final
from unittest import mock

import numpy as np
import numpy.typing as npt

from capemix.api import synthesize
from capemix.data import LabeledRows, Table
from capemix.data.schema import Category, Number
from capemix.facts import CLASS_SIZES, CLIP_NORM, RANGES, SCALES, Facts
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.class_gaussian.estimate import CENTRE, CENTRES, REFINED, SPREAD, SPREADS
from capemix.methods.projected import NORMS_OF
from capemix.methods.shares import exactly
from capemix.plan import Plan, make_plan
from capemix.queries import QueryShape
from capemix.randomness.simulation import simulation_generator
from capemix.randomness.source import SeededSource
from capemix_research.experiments.results import append_line, whole_lines
from capemix_research.experiments.tables import markdown, rows_of, scores, split

HEADER: Final = (
    *("data", "records", "epsilon", "seed", "ranges", "used"),
    *("hand_logreg", "hand_boosting", "rule_logreg", "rule_boosting", "provenance"),
)
KEYS: Final = HEADER[:5]
DELTA: Final = 1e-5
SAMPLES: Final = 4_000
ROUNDS: Final = 30
"""Of boosting."""

RECORDS: Final = (500, 5_000, 50_000)
EPSILONS: Final = (0.1, 1.0, 10.0)
TABLES: Final = ("adult", "breast_cancer", "credit_g", "digits", "letter", "spam", "wine")
SYNTHETIC: Final = ("gauss", "cat")
UNSEEN: Final = ("shuttle",)
"""Of which nothing was looked at while the rule was made."""

MOST_RECORDS: Final = 80_000

HAND_SET: Final = {CLASS_SIZES: 0.02, CENTRE: 0.05, CENTRES: 0.315, REFINED: 0.315, SPREAD: 0.30}
HAND_SET_OWN: Final = {
    CLASS_SIZES: 0.02,
    CENTRE: 0.05,
    CENTRES: 0.24,
    REFINED: 0.24,
    SPREAD: 0.20,
    SPREADS: 0.25,
}
HAND_SET_NORMS: Final = 0.05
HAND_SET_OPENING: Final = {CLASS_SIZES: 0.2, RANGES: 0.4, SCALES: 0.3, CLIP_NORM: 0.1}
HAND_SET_PART: Final = 0.05 / 0.9
"""Of everything, what a share of 1 in the opening is: sizes, ranges and scales have 0.05."""


@dataclass(frozen=True)
class HandSet(ClassGaussian):
    """A Gaussian for each class with the shares that were used before there was a rule."""

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        lines = super().outline(plan)
        share = HAND_SET_OWN if any(each.name == SPREADS for each in lines) else HAND_SET
        norms = {NORMS_OF.format(name): share[name] * HAND_SET_NORMS for name in share}
        own = {
            name: share[name] * (1.0 if name == CLASS_SIZES else 1.0 - HAND_SET_NORMS)
            for name in share
        }
        set_by_hand = norms | own
        made = [replace(each, share=set_by_hand[each.name]) for each in lines]
        return exactly(made) if lines[0].name == CLASS_SIZES else tuple(made)


@dataclass(frozen=True)
class Cell:
    data: str
    records: int
    epsilon: float
    seed: int
    measured: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        ranges = "measured" if self.measured else "declared"
        return (self.data, str(self.records), f"{self.epsilon:g}", str(self.seed), ranges)


def synthetic_rows(name: str) -> LabeledRows:
    """80,000 records of four classes, always the same."""
    rng, classes = simulation_generator(1_000 + SYNTHETIC.index(name)), 4
    part = np.arange(1, classes + 1) ** -0.5
    labels = rng.choice(classes, MOST_RECORDS, p=part / part.sum()).astype(np.int64)
    label = Category("label", tuple(range(classes)))
    if name == "gauss":
        width = 20
        turned = rng.normal(size=(width, width)) * 0.7 ** np.arange(width)
        centres = 0.45 * rng.normal(size=(classes, width)) * (rng.random(width) < 0.6)
        normals = rng.normal(size=(MOST_RECORDS, width))
        cells = np.clip(centres[labels] + normals @ (turned + 0.3 * np.eye(width)).T, -6.0, 6.0)
        columns = tuple(Number(f"x{at}", -6.0, 6.0) for at in range(width))
        return Table(columns, label).coded(list(cells.T), labels)
    width, values = 8, 4
    plain, together = rng.normal(size=(2, width, values))
    by_class, common = (
        0.8 * rng.normal(size=(classes, width, values)),
        rng.normal(size=MOST_RECORDS),
    )
    logits = plain + by_class[labels] + common[:, None, None] * together
    codes = (logits + rng.gumbel(size=logits.shape)).argmax(axis=2)
    listed = tuple(Category(f"c{at}", tuple(range(values))) for at in range(width))
    return Table(listed, label).coded(list(codes.T), labels)


@lru_cache(maxsize=2)
def table_rows(name: str) -> LabeledRows:
    return synthetic_rows(name) if name in SYNTHETIC else rows_of(name)


def parts(cell: Cell) -> tuple[LabeledRows, LabeledRows] | None:
    """What is released from and what is tested on; None if there are too few records."""
    train, test = split(table_rows(cell.data), cell.seed)
    if 5 * len(train) < cell.records:
        return None
    return train.take(np.arange(min(len(train), cell.records))), test


def released(train: LabeledRows, cell: Cell, method: ClassGaussian) -> LabeledRows:
    """Rows with noise of a test seed: what is compared is worth, not privacy."""
    facts, given = Facts.of(train), train
    if cell.measured:  # nothing is said of the coded columns but how many they are
        given = replace(train, table=None, feature_names=facts.coded_names)
        facts = Facts.of(given)
    plan = make_plan(facts, method, delta=DELTA).calibrate(cell.epsilon)
    made = synthesize(plan, given, source=SeededSource(cell.seed))
    features: npt.NDArray[np.float64] = made.features.astype(np.float64)
    return replace(train, features=features, labels=made.labels)


@contextmanager
def hand_set_opening() -> Iterator[None]:
    """What is measured first has the shares that it had."""

    def share(name: str, columns: int) -> float:  # noqa: ARG001
        return HAND_SET_OPENING[name] * HAND_SET_PART

    with mock.patch("capemix.methods.base.opening_share", share):
        yield


def run(cell: Cell) -> tuple[str, ...] | None:
    """How many records there were, and the accuracies of both releases."""
    found = parts(cell)
    if found is None:
        return None
    train, test = found
    with hand_set_opening():
        by_hand = released(train, cell, HandSet(samples=SAMPLES))
    by_rule = released(train, cell, ClassGaussian(samples=SAMPLES))
    accuracies = (*scores(by_hand, test, rounds=ROUNDS), *scores(by_rule, test, rounds=ROUNDS))
    return (
        str(len(train)),
        *(f"{each:.4f}" for each in accuracies),
        f"capemix {version('capemix')}",
    )


def comparison(lines: Iterable[dict[str, str]]) -> str:
    """Means over seeds in percent, and the difference with its standard error."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in lines:
        groups.setdefault(
            (line["ranges"], line["records"], line["epsilon"], line["data"]), []
        ).append(line)
    order = sorted(groups, key=lambda key: (key[0], int(key[1]), float(key[2]), key[3]))
    head = ["ranges", "records", "epsilon", "data", "seeds", "by hand", "by the rule", "difference"]
    rows = [head, ["---"] * len(head)]
    for key in order:
        group = groups[key]
        each = {
            name: 100 * np.array([float(line[name]) for line in group]) for name in HEADER[6:10]
        }
        means = [
            " / ".join(f"{each[f'{who}_{model}'].mean():.1f}" for model in ("logreg", "boosting"))
            for who in ("hand", "rule")
        ]
        rows.append([*key, str(len(group)), *means, " / ".join(_differences(each))])
    return markdown(rows)


def summary(lines: Iterable[dict[str, str]]) -> str:
    """The same over all tables of one size and epsilon."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in lines:
        groups.setdefault((line["ranges"], line["records"], line["epsilon"]), []).append(line)
    head = ["ranges", "records", "epsilon", "tables", "logistic regression", "boosted trees"]
    rows = [head, ["---"] * len(head)]
    for key in sorted(groups, key=lambda key: (key[0], int(key[1]), float(key[2]))):
        group = groups[key]
        each = {
            name: 100 * np.array([float(line[name]) for line in group]) for name in HEADER[6:10]
        }
        tables = len({line["data"] for line in group})
        rows.append([*key, str(tables), *_differences(each)])
    return markdown(rows)


def _differences(each: dict[str, npt.NDArray[np.float64]]) -> list[str]:
    """By the rule less by hand, for both models."""
    found = []
    for model in ("logreg", "boosting"):
        apart = each[f"rule_{model}"] - each[f"hand_{model}"]
        error = apart.std(ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else float("nan")
        found.append(f"{apart.mean():+.1f} ± {error:.1f}")
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=[*TABLES, *SYNTHETIC, *UNSEEN])
    parser.add_argument("--records", nargs="+", type=int, default=RECORDS)
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--measured", action="store_true", help="ranges are measured, too")
    asked = parser.parse_args(words)
    known = {tuple(row[name] for name in KEYS) for row in whole_lines(asked.results)}
    for seed in range(asked.seeds):
        for name in asked.data:
            for records in asked.records:
                for epsilon in asked.epsilon:
                    cell = Cell(name, records, epsilon, seed, asked.measured)
                    found = None if cell.key in known else run(cell)
                    if found is not None:
                        append_line(asked.results, HEADER, (*cell.key, *found))
                        print(*cell.key, *found, file=sys.stderr)
    lines = list(whole_lines(asked.results))
    print(summary(lines), comparison(lines), sep="\n", end="")


if __name__ == "__main__":
    main()
