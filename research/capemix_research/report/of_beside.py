"""Releases of ours and of others beside each other, and where ours are ahead, level or behind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from capemix_research.report.markdown import NOTHING, table

Line = Mapping[str, str]

DISTANCES: Final = {"two_way": "2-way", "three_way": "3-way"}
SCORES: Final = {"boosting": "accuracy", "boosting_auc": "AUC"}

PART_OF_FLOOR: Final = 0.1
"""Distances are level if they are no further apart than this part of the sampling floor, or if
neither is above the floor."""

REAL: Final = "real"

PACKAGES: Final = ("dpmm", "mbi")
"""What the names of peers begin with."""


@dataclass(frozen=True)
class Verdict:
    """How a release of ours compares with the best peer's in one measure."""

    measure: str
    says: str
    ours: float
    best: float
    peer: str

    def __str__(self) -> str:
        return f"{self.says} ({_short(self.ours)} / {_short(self.best)})"


@dataclass(frozen=True)
class Group:
    """The lines of one table at one epsilon, a mean over splits for each method."""

    data: str
    epsilon: str
    means: Mapping[str, Mapping[str, float]]
    splits: Mapping[str, int]
    real: Mapping[str, float]

    def verdicts(self, ours: str, peers: Sequence[str]) -> Iterator[Verdict]:
        """Against the best of the peers in each measure, whichever that is."""
        for measure, word in {**DISTANCES, **SCORES}.items():
            less = measure in DISTANCES
            found = {peer: self.means[peer][measure] for peer in peers if peer in self.means}
            if ours not in self.means or not found:
                continue
            peer = (min if less else max)(found, key=found.__getitem__)
            own, best = self.means[ours][measure], found[peer]
            lead = best - own if less else own - best
            says = "ahead" if lead > 0 else "behind"
            if abs(lead) <= self._level(measure) or (less and max(own, best) <= self.real[measure]):
                says = "level"
            yield Verdict(word, says, own, best, peer)

    def _level(self, measure: str) -> float:
        if measure in DISTANCES:
            return PART_OF_FLOOR * self.real[measure]
        share = min(max(self.real[measure], 0.5), 0.999)
        return math.sqrt(share * (1 - share) / self.real["test_rows"])


def latest(lines: Iterable[Line]) -> list[Line]:
    """Of each release the line that was written last."""
    found: dict[tuple[str, ...], Line] = {}
    for line in lines:
        key = (line["data"], line["method"], line["epsilon"], line["seed"])
        found.pop(key, None)
        found[key] = line
    return list(found.values())


def groups(lines: Iterable[Line]) -> list[Group]:
    """By table and epsilon. A peer that was stopped is in none. Means are over the splits that a
    method has; those of real rows over all."""
    whole = [line for line in latest(lines) if line["one_way"]]
    by: dict[tuple[str, str], dict[str, list[Line]]] = {}
    for line in whole:
        by.setdefault((line["data"], line["epsilon"]), {}).setdefault(line["method"], []).append(
            line
        )
    found = []
    for (data, epsilon), methods in by.items():
        real = by.get((data, ""), {}).get(REAL)
        if epsilon and real:
            means = {method: _means(its) for method, its in methods.items()}
            splits = {method: len(its) for method, its in methods.items()}
            found.append(Group(data, epsilon, means, splits, _means(real)))
    order = list(dict.fromkeys(group.data for group in found))
    return sorted(found, key=lambda group: (order.index(group.data), float(group.epsilon)))


def _means(lines: Sequence[Line]) -> dict[str, float]:
    names = (name for name, value in lines[0].items() if _is_number(value))
    return {name: fmean(float(line[name]) for line in lines) for name in names}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def figures_table(lines: Iterable[Line]) -> str:
    """Every method's figures, with the real rows' first."""
    head = "data, epsilon, method, splits, 1-way, 2-way, 3-way, logreg, boosting, CPU s, MB"
    rows: list[list[str]] = []
    said: set[str] = set()
    for group in groups(lines):
        if group.data not in said:
            said.add(group.data)
            figures = _figures(group.real)
            rows.append([group.data, NOTHING, "real rows", NOTHING, *figures, NOTHING, NOTHING])
        for method, means in group.means.items():
            took = [f"{means['cpu_seconds']:.0f}", f"{means['peak_mb']:.0f}"]
            splits = str(group.splits[method])
            rows.append([group.data, group.epsilon, method, splits, *_figures(means), *took])
    return table(head.split(", "), rows)


def _figures(means: Mapping[str, float]) -> list[str]:
    distances = [_short(means[name]) for name in ("one_way", "two_way", "three_way")]
    scores = [
        f"{_short(means[name])} / {_short(means[f'{name}_auc'])}" for name in ("logreg", "boosting")
    ]
    return [*distances, *scores]


def verdicts_table(lines: Iterable[Line], ours: Sequence[str], peers: Sequence[str]) -> str:
    """Ahead, level or behind, with ours / the best peer's figure, and both's CPU seconds."""
    head = ["data", "epsilon", "ours", *DISTANCES.values(), *SCORES.values(), "CPU seconds"]
    rows = []
    for group in groups(lines):
        for method in ours:
            found = list(group.verdicts(method, peers))
            if found:
                quickest = min(
                    group.means[peer]["cpu_seconds"] for peer in peers if peer in group.means
                )
                took = f"{group.means[method]['cpu_seconds']:.0f} / {quickest:.0f}"
                rows.append([group.data, group.epsilon, method, *map(str, found), took])
    return table(head, rows) if rows else ""


def tally_table(lines: Iterable[Line], ours: Sequence[str], peers: Sequence[str]) -> str:
    """On how many tables nothing is behind, and each loss by its name."""
    count: dict[tuple[str, str], list[int]] = {}
    losses: dict[tuple[str, str], list[str]] = {}
    for group in groups(lines):
        for method in ours:
            found = list(group.verdicts(method, peers))
            if not found:
                continue
            key = (group.epsilon, method)
            behind = [each for each in found if each.says == "behind"]
            count.setdefault(key, []).append(not behind)
            losses.setdefault(key, []).extend(
                f"{group.data} {each.measure} ({each.peer})" for each in behind
            )
    rows = [
        [epsilon, method, f"{sum(some)} of {len(some)}", ", ".join(losses[epsilon, method])]
        for (epsilon, method), some in sorted(
            count.items(), key=lambda each: (float(each[0][0]), each[0][1])
        )
    ]
    rows = [[cell or NOTHING for cell in row] for row in rows]
    head = ["epsilon", "ours", "tables with no loss", "losses, and to whom"]
    return table(head, rows) if rows else ""


def peers_of(lines: Iterable[Line]) -> list[str]:
    """The methods of others, in the order of the lines."""
    methods = dict.fromkeys(line["method"] for line in lines)
    return [name for name in methods if name.partition("-")[0] in PACKAGES]


def sites_table(lines: Iterable[Line]) -> str:
    """Our releases of several sites beside that of one curator: 2-way total variation / AUC."""
    rows, counts = [], [1]
    for group in groups(lines):
        named = [name for name in group.means if name.endswith(" sites")]
        counts += [int(name.split()[-2]) for name in named]
    counts = sorted(set(counts))
    for group in groups(lines):
        for method in dict.fromkeys(name.partition(",")[0] for name in group.means):
            names = [method, *(f"{method}, {count} sites" for count in counts[1:])]
            if set(names[1:]) & set(group.means):
                found = [group.means.get(name) for name in names]
                cells = [
                    f"{_short(means['two_way'])} / {_short(means['boosting_auc'])}"
                    if means
                    else NOTHING
                    for means in found
                ]
                rows.append([group.data, group.epsilon, method, *cells])
    head = ["data", "epsilon", "method", "one curator"]
    return table([*head, *(f"{count} sites" for count in counts[1:])], rows) if rows else ""


def stopped_table(lines: Iterable[Line]) -> str:
    """Releases that came to nothing."""
    rows = [
        [line["data"], line["epsilon"], line["provenance"], line["cpu_seconds"]]
        for line in latest(lines)
        if not line["one_way"]
    ]
    return table(["data", "epsilon", "what", "CPU seconds"], rows) if rows else ""


def _short(value: float) -> str:
    return f"{value:.3f}"
