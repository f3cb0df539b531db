"""What releases of tables teach now, beside those of an older checkout, on the same seeds.

    python -m capemix_research.experiments.before --checkout OLDER --results docs/research/tables-before.csv

For each table, epsilon and seed: a release of class Gaussians by the code of the older checkout and
one by this, of the same rows with the same test seed, and on each a logistic regression and boosted
trees, tested on the 30 of 100 rows that are left out. Each release is made by a Python of its own,
which finds that code alone. A line of the results is both releases. Lines that are there are not
made again; lastly they are printed as the table of the page. The tables lie in $CAPEMIX_DATA/tables.
"""  # noqa: E501

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from capemix_research.experiments.results import append_line, whole_lines
from capemix_research.experiments.tables import markdown

SCORES: Final = ("logreg", "boosting")
HEADER: Final = (
    *("data", "epsilon", "seed"),
    *(f"{when}_{model}" for when in ("before", "now") for model in SCORES),
    "provenance",
)
DATA: Final = ("digits", "breast_cancer", "adult", "letter")
EPSILONS: Final = (0.5, 1.0, 10.0)

ONE: Final = """
import sys
from capemix.randomness.source import SeededSource
from capemix_research.experiments import tables
name, epsilon, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
tables.SystemSource = lambda: SeededSource(seed)  # what is compared is worth, not privacy
train, test = tables.split(tables.rows_of(name), seed)
print(*tables.scores(tables.released(train, epsilon)[0], test))
"""
"""What both checkouts can do."""


def scores_by(checkout: Path, name: str, epsilon: float, seed: int) -> list[str]:
    """The accuracies of models that learn from one release by this checkout."""
    rooms = os.pathsep.join(str(checkout / room) for room in ("src", "research"))
    asked = [sys.executable, "-c", ONE, name, f"{epsilon:g}", str(seed)]
    ran = subprocess.run(
        asked, env=os.environ | {"PYTHONPATH": rooms}, check=True, capture_output=True, text=True
    )
    return [f"{float(each):.4f}" for each in ran.stdout.split()]


def commit_of(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def table(lines: Iterable[dict[str, str]]) -> str:
    """Means over seeds in percent, of logistic regression and boosted trees."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for line in lines:
        groups.setdefault((line["data"], line["epsilon"]), []).append(line)
    head = ["data", "epsilon", "seeds", "before", "now", "difference"]
    rows = [head, ["---"] * len(head)]
    for key in sorted(groups, key=lambda key: (key[0], float(key[1]))):
        group = groups[key]
        each = {name: 100 * np.array([float(line[name]) for line in group]) for name in HEADER[3:7]}
        said = [
            " / ".join(f"{each[f'{when}_{model}'].mean():.1f}" for model in SCORES)
            for when in ("before", "now")
        ]
        apart = [(each[f"now_{model}"] - each[f"before_{model}"]).mean() for model in SCORES]
        rows.append([*key, str(len(group)), *said, " / ".join(f"{by:+.1f}" for by in apart)])
    return markdown(rows)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=DATA)
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args(words)
    here, older = Path(__file__).parents[3], asked.checkout.resolve()
    said = f"{commit_of(older)}, {commit_of(here)}"
    known = {tuple(row[name] for name in HEADER[:3]) for row in whole_lines(asked.results)}
    for seed in range(asked.seeds):
        for name in asked.data:
            for epsilon in asked.epsilon:
                key = (name, f"{epsilon:g}", str(seed))
                if key in known:
                    continue
                found = [*scores_by(older, *_of(key)), *scores_by(here, *_of(key))]
                append_line(asked.results, HEADER, (*key, *found, said))
                print(*key, *found, file=sys.stderr)
    print(table(whole_lines(asked.results)), end="")


def _of(key: tuple[str, str, str]) -> tuple[str, float, int]:
    return key[0], float(key[1]), int(key[2])


if __name__ == "__main__":
    main()
