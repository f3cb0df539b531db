"""The page of what compares a release with real rows. Unless anyone may see these rows, it is for
their owner alone, and says so; it is never written into a release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from capemix.evaluate.fidelity import Fidelity
from capemix.evaluate.measures import Measures
from capemix.evaluate.score import Comparison, Score
from capemix.evaluate.target import Regressions
from capemix.manifest import Manifest
from capemix.pages import charts
from capemix.pages.html import Html, Part, section, table, tag
from capemix.pages.page import page
from capemix.pages.told import Told, number
from capemix.private import PRIVATE

_MOST_NAMED: Final = 60
"""Columns that are drawn; the table has those that are furthest off."""

_MOST_MAPPED: Final = 40
_MOST_CLASSES: Final = 100


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What was found. ``public``: anyone may see the real rows. ``models`` predict a label,
    ``regressions`` a column of numbers, ``target`` by its name. ``attacks`` are as their JSON."""

    manifest: Manifest
    public: bool
    test: str
    target: str | None
    classes: Sequence[str | int] = ()
    models: Mapping[str, Comparison] = field(default_factory=dict)
    regressions: Regressions | None = None
    measures: Measures | None = None
    attacks: Sequence[Mapping[str, Any]] = ()


def compared_page(found: Compared) -> str:
    """One file, as a report is."""
    told = Told.of(found.manifest)
    parts = [
        (key, title, list(own))
        for key, title, own in (
            ("likeness", "How like the real rows", _likeness(found)),
            ("columns", "Column by column", _columns(found)),
            ("pairs", "Pair by pair", _pairs(found)),
            ("models", "What models learn", _models(found)),
            ("attack", "Distances, and what an attacker learns", _attacks(found)),
        )
    ]
    parts = [each for each in parts if each[2]]
    title = "A synthetic release beside real rows"
    lead = []
    if not found.public:
        title = f"Private: {title[0].lower()}{title[1:]}"
        lead.append(
            tag(
                "p",
                tag("strong", "Private. "),
                f"{PRIVATE} It is no part of the release, and no guarantee covers it.",
                class_="banner",
                role="note",
            )
        )
    else:
        lead.append(
            tag("p", "Anyone may see the real rows, so anyone may see this.", class_="soft")
        )
    epsilon = "infinite" if told.epsilon is None else number(told.epsilon)
    lead.append(
        tag(
            "p",
            f"A release with epsilon {epsilon}, delta {number(told.delta)} and status"
            f" “{told.status}”, made by the method {told.method}: {told.json['rows']:,} synthetic"
            f" rows, tested on {found.test}.",
        )
    )
    return page(
        title,
        lead,
        [(key, said) for key, said, _ in parts],
        *(section(2, said, *own, key=key) for key, said, own in parts),
    )


def _rows_of(measures: Measures) -> str:
    return "the rows it was made from" if measures.against == "train" else "the test rows"


def _likeness(found: Compared) -> Iterator[Part]:
    measures = found.measures
    if measures is None:
        return
    good = measures.subsample
    if good is not None:
        yield tag(
            "p",
            tag("strong", f"As good as a subsample of {good} of the real rows. "),
            "So many of the real rows, drawn at random, are as far from the rest of them as the"
            " release is from them all, in the mean total variation of pairs of columns.",
            class_="status",
        )
    rows = [(name, _figure(value), _figure(floor)) for name, value, floor in measures.lines()]
    yield table(
        f"The release beside {_rows_of(measures)}; and other real rows beside the same, which is"
        " what chance alone makes of real rows (the floor). 0 is best, but for the last line, where"
        " it is 0.5.",
        ("measure", "release", "other real rows"),
        rows,
        numbers=(1, 2),
    )
    if good is not None:
        yield table(
            "Subsamples of the real rows, each held against the rest",
            ("part of the rows", "2-way total variation"),
            [
                (f"{100 * part:g}%", _figure(error))
                for part, error in zip(good.parts, good.errors, strict=True)
            ],
            numbers=(0, 1),
        )


def _columns(found: Compared) -> Iterator[Part]:
    measures = found.measures
    if measures is None:
        return
    own, floor = measures.release.fidelity, _floor(measures)
    apart = np.array(own.columns)
    chosen = np.argsort(-apart, kind="stable")[:_MOST_NAMED]
    names = [own.names[at] for at in chosen.tolist()]
    beside = None if floor is None else np.array(floor.columns)[chosen]
    worst = f"; furthest off is {names[0]} at {charts.percent(float(apart[chosen[0]]))}"
    said = f"Total variation of {len(names)} columns between the release and {_rows_of(measures)}"
    drawn = charts.columns_of_words(charts.Bars(apart[chosen], beside=beside), names, said + worst)
    grey = " Grey: other real rows beside the same, the floor." if floor is not None else ""
    caption = f"{said}, the furthest first: the part of the rows that would have to change.{grey}"
    yield tag("figure", drawn, tag("figcaption", caption))
    rows = [
        (name, _figure(float(apart[at])), _figure(None if floor is None else floor.columns[at]))
        for name, at in zip(names, chosen.tolist(), strict=True)
    ]
    head = ("column", "release", "other real rows")
    yield table("The same in figures", head, rows, numbers=(1, 2))


def _pairs(found: Compared) -> Iterator[Part]:
    measures = found.measures
    if measures is None or len(measures.release.fidelity.names) < 2:
        return
    own, floor = measures.release.fidelity, _floor(measures)
    names = own.names[:_MOST_MAPPED]
    few = slice(len(names))
    both = np.tril(np.array(own.pairs)[few, few])
    if floor is not None:
        both += np.triu(np.array(floor.pairs)[few, few])
    most = float(both.max()) or 1.0
    where = " Below the diagonal the release, above it other real rows." if floor else ""
    where = where or " Below the diagonal."
    said = f"Total variation of each pair of columns; the darkest is {charts.percent(most)}"
    yield tag(
        "figure", charts.shades(names, both / most, said), tag("figcaption", f"{said}.{where}")
    )
    apart = np.array(own.associations)[few, few].copy()
    np.fill_diagonal(apart, np.nan)
    most = max(0.1, float(np.nanmax(np.abs(apart))))
    said = (
        "How columns go together: the release less the real rows, in correlations or Cramér's V;"
        f" the darkest is {most:.2f}"
    )
    caption = f"{said}. Blue: more in the release; violet: less."
    yield tag("figure", charts.shades(names, apart / most, said), tag("figcaption", caption))
    pairs = np.argwhere(np.triu(np.ones((len(names), len(names))), 1)).tolist()
    off = np.array(own.pairs)
    pairs.sort(key=lambda pair: -off[pair[0], pair[1]])
    rows = [
        (
            f"{names[left]} and {names[right]}",
            _figure(float(off[left, right])),
            _figure(None if floor is None else floor.pairs[left][right]),
            f"{apart[left, right]:+.2f}",
        )
        for left, right in pairs[:20]
    ]
    yield table(
        f"The {len(rows)} pairs that are furthest off",
        ("pair", "release", "other real rows", "difference of association"),
        rows,
        numbers=(1, 2, 3),
    )


def _models(found: Compared) -> Iterator[Part]:
    if found.models:
        rows: list[tuple[Part, ...]] = []
        for name, own in found.models.items():
            real = own.real
            rows.append(
                (f"{name}: accuracy", _score(own.synthetic), "-" if real is None else _score(real))
            )
            if own.synthetic.auc is not None:
                rows.append(
                    (
                        f"{name}: AUC",
                        _figure(own.synthetic.auc),
                        _figure(None if real is None else real.auc),
                    )
                )
        target = "the label" if found.target is None else f"“{found.target}”"
        yield table(
            f"Models that predict {target}, tested on real rows, by what they were trained on",
            ("model", "release", "real rows"),
            rows,
            numbers=(1, 2),
        )
        yield from _by_class(found)
    if found.regressions is not None:
        real_fits = found.regressions.real or {}
        yield table(
            f"Models that predict “{found.target}”, tested on real rows: R2, and the mean absolute"
            " error",
            ("model", "release", "real rows"),
            [
                (
                    name,
                    f"{fit.r2:.3f}, {number(fit.error)}",
                    f"{real_fits[name].r2:.3f}, {number(real_fits[name].error)}"
                    if name in real_fits
                    else "-",
                )
                for name, fit in found.regressions.synthetic.items()
            ],
            numbers=(1, 2),
        )


def _by_class(found: Compared) -> Iterator[Html]:
    name, own = next(iter(found.models.items()))
    real = own.real
    rows = [
        (each, _figure(score), _figure(None if real is None else real.per_class[at]))
        for at, (each, score) in enumerate(
            zip(found.classes, own.synthetic.per_class, strict=False)
        )
    ]
    yield table(
        f"Accuracy of {name} by class",
        ("class", "release", "real rows"),
        rows[:_MOST_CLASSES],
        numbers=(1, 2),
    )


def _attacks(found: Compared) -> Iterator[Part]:
    if not found.attacks:
        return
    yield tag(
        "p",
        "Somebody who has the release tries to tell records that it was made from and others apart,"
        " by how far the nearest synthetic row is, or by how likely the rows are. 0.5 is guessing."
        " Another attack may do better: only the guarantee bounds them all.",
    )
    rows = []
    for each in found.attacks:
        rows.append(
            (each["name"], f"{each['auc']:.3f}", f"{each['low']:.3f} to {each['high']:.3f}")
        )
    for each in found.attacks:
        scores = each["scores"]
        if each["name"] == "nearest neighbour" and scores["members"] and scores["others"]:
            yield _distances(scores)
    yield table(
        "Membership attacks",
        ("attack", "AUC", "with 95% confidence"),
        rows,
        numbers=(1, 2),
    )
    caught = [
        (
            each["name"],
            charts.percent(one["false_alarms"]),
            charts.percent(one["members"]),
            f"{charts.percent(one['low'])} to {charts.percent(one['high'])}",
        )
        for each in found.attacks
        for one in each["caught"]
    ]
    if caught:
        yield table(
            "Members that are caught where few others are",
            ("attack", "others called members", "members caught", "with 95% confidence"),
            caught,
            numbers=(1, 2, 3),
        )


def _distances(scores: Mapping[str, Any]) -> Html:
    """A score is minus a distance, so the last part of the scores has the nearest."""
    backwards = (reversed(scores[name]) for name in ("parts", "members", "others"))
    return table(
        "Distance from a record to the nearest synthetic row of its class, in the units in which"
        " records are summed. If records that the release was made from lay nearer than others, its"
        " rows would give them away.",
        ("of the records, nearer than", "records it was made from", "other records"),
        [
            (f"{1 - part:.0%}", number(abs(member)), number(abs(other)))
            for part, member, other in zip(*backwards, strict=True)
        ],
        numbers=(0, 1, 2),
    )


def _floor(measures: Measures) -> Fidelity | None:
    return None if measures.floor is None else measures.floor.fidelity


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _score(score: Score) -> str:
    if score.spread is None:
        return f"{score.accuracy:.3f}"
    return f"{score.accuracy:.3f} ± {score.spread:.3f}"
