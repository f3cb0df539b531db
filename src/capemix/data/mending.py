"""Rows that break no constraint of their schema, from rows that may: post-processing.

What is changed in a row is as little as can be: a pair of numbers in the wrong order changes
places, and a combination that is not allowed becomes the nearest that is, by chance among those,
as often as the other rows have them. A value that decides others stays, and they follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from capemix.data.cells import Cells
from capemix.data.column import Column
from capemix.data.columns import Number
from capemix.data.constraints import (
    MOST,
    Codes,
    Combinations,
    Constraint,
    Dependence,
    Inequality,
    check_all,
)
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data.schema import Table

Real = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Chance = Callable[[str, int], Real]
"""So many numbers from 0 to 1, by a name that is used once."""

_A_LITTLE: Final = 1e-9
"""Of a value: so much more is the next one, where none is declared."""

_LARGEST: Final = 1e300
"""Of numbers that a column can code."""


@dataclass(frozen=True)
class Together:
    """Columns with the combinations of places in their lists that are ``allowed``. Some ``decide``
    others, and some ``follow`` them."""

    names: tuple[str, ...]
    allowed: frozenset[Codes]
    decide: frozenset[str] = frozenset()
    follow: frozenset[str] = frozenset()

    @property
    def weights(self) -> Real:
        """What it counts that a column stays as it is. One that decides outweighs all others, and
        one that follows none."""
        many = len(self.names)
        free = [many if name in self.decide else 1.0 for name in self.names]
        return np.where([name in self.follow for name in self.names], 0.5 / many, free)


@dataclass(frozen=True)
class Rules:
    """All constraints of a schema, put together: those on categories that share a column are one,
    and of numbers the lower column of each pair comes first. ``least`` are values that meet all
    inequalities."""

    together: tuple[Together, ...] = ()
    order: tuple[tuple[str, str], ...] = ()
    least: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, constraints: Sequence[Constraint], types: Mapping[str, Column]) -> Rules:
        """Refuses those that no row can meet."""
        check_all(constraints, types)
        parts: list[Together] = []
        for each in constraints:
            if isinstance(each, Combinations | Dependence):
                new = Together(each.columns, each.places(types))
                if isinstance(each, Dependence):
                    decide, follow = frozenset([each.column]), frozenset([each.decides])
                    new = replace(new, decide=decide, follow=follow)
                if len(new.allowed) > MOST:
                    raise _unmet(f"allow more than {MOST} combinations", new.names)
                for part in [part for part in parts if set(part.names) & set(new.names)]:
                    parts.remove(part)
                    new = _joined(part, new)
                parts.append(new)
        pairs = [(each.low, each.high) for each in constraints if isinstance(each, Inequality)]
        names = _rising(pairs)
        place = {name: at for at, name in enumerate(names)}
        order = tuple(sorted(set(pairs), key=lambda pair: (place[pair[1]], place[pair[0]])))
        return cls(tuple(parts), order, _least(names, order, types))


def _joined(one: Together, other: Together) -> Together:
    """What both allow."""
    shared = [name for name in one.names if name in other.names]
    more = [at for at, name in enumerate(other.names) if name not in shared]
    by_shared: dict[Codes, list[Codes]] = {}
    for values in other.allowed:
        key = tuple(values[other.names.index(name)] for name in shared)
        by_shared.setdefault(key, []).append(tuple(values[at] for at in more))
    found: set[Codes] = set()
    for values in one.allowed:
        key = tuple(values[one.names.index(name)] for name in shared)
        found.update(values + rest for rest in by_shared.get(key, ()))
        if len(found) > MOST:
            raise _unmet(f"allow more than {MOST} combinations", (*one.names, *other.names))
    names = (*one.names, *(other.names[at] for at in more))
    if not found:
        raise _unmet("allow no combination at all", names)
    follow, decide = one.follow | other.follow, one.decide | other.decide
    return Together(names, frozenset(found), decide, follow)


def _rising(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The columns of all pairs, the lower one of each before the higher."""
    left, found = {name for pair in pairs for name in pair}, []
    while left:
        free = sorted(left - {high for low, high in pairs if low in left})
        if not free:
            raise _unmet("go round in a circle", sorted(left))
        found += free
        left -= set(free)
    return found


def _least(
    names: Sequence[str], order: Sequence[tuple[str, str]], types: Mapping[str, Column]
) -> tuple[tuple[str, float], ...]:
    """The lowest declared values that meet all."""
    found: dict[str, float] = {}
    for name in names:
        column = types[name]
        bound = max((found[low] for low, high in order if high == name), default=-_LARGEST)
        value = float(nearest(column, np.array([bound]))[0])
        if value < bound:  # rounded down
            apart = column.apart if isinstance(column, Number) else column.step
            more = max(apart or 0.0, abs(bound) * _A_LITTLE)
            value = float(nearest(column, np.array([value + more]))[0])
        if value < bound:
            raise _unmet("cannot be met within the ranges", [name])
        found[name] = value
    return tuple(found.items())


def _unmet(problem: str, names: Sequence[str]) -> InputError:
    return InputError(
        "constraints",
        f"{problem} of the columns",
        value=", ".join(dict.fromkeys(names)),
        fix="correct them, or leave one out",
    )


# -- values ----------------------------------------------------------------------------------------


def read_back(column: Column, block: Real) -> Real:
    """What a cell of each row says once it is written."""
    cells = {column.name: column.arrow(column.cells(block))}
    return np.asarray(column.read(Cells(len(block), cells, None)), dtype=np.float64)


def coded(column: Column, values: Real) -> Real:
    block = np.zeros((len(values), column.width))
    column.code_into(block, values)
    return block


def nearest(column: Column, values: Real) -> Real:
    """The declared values that stand for these in a release."""
    return read_back(column, column.restored(coded(column, values)))


# -- rows ------------------------------------------------------------------------------------------


def mended(table: Table, rows: Real, labels: Places, chance: Chance) -> tuple[Real, Places]:
    """Rows of which none breaks a constraint of the table; the same where there are none."""
    rules = table.rules
    types = {column.name: column for column in table.columns}
    places = dict(zip(types, table.places, strict=True))
    names = {name for part in rules.together for name in part.names} | dict(rules.least).keys()
    label = None if table.label is None else table.label.name
    values = {
        name: read_back(types[name], rows[:, places[name]]) for name in sorted(names - {label})
    }
    if label in names:
        values[str(label)] = labels.astype(np.float64)
    before = {name: each.copy() for name, each in values.items()}
    for at, part in enumerate(rules.together):
        _put_together(part, values, chance(f"constraint {at}", len(rows)))
    _put_in_order(rules, values, types)
    out = rows.copy() if values else rows
    for name, each in values.items():
        changed = np.flatnonzero((each != before[name]) & ~np.isnan(each))
        if name == label:
            labels = each.astype(np.int64)
        elif len(changed) and types[name].width:
            out[changed, places[name]] = coded(types[name], each[changed])
    return out, labels


def _put_together(part: Together, values: dict[str, Real], chance: Real) -> None:
    """In place: each combination that is not allowed becomes one that is, of the nearest."""
    held = np.stack([values[name] for name in part.names], axis=1).astype(np.int64)
    allowed = np.array(sorted(part.allowed), dtype=np.int64)
    present, which = np.unique(held, axis=0, return_inverse=True)
    which = which.reshape(-1)
    by_which, many = np.argsort(which, kind="stable"), np.bincount(which, minlength=len(present))
    ends = np.cumsum(many).tolist()
    counts = dict(zip(map(tuple, present.tolist()), many.tolist(), strict=True))
    often = np.array([counts.get(tuple(each), 0) for each in allowed.tolist()]) + 1e-6
    for at, each in enumerate(present.tolist()):
        if tuple(each) in part.allowed:
            continue
        near = (allowed == each) @ part.weights
        law = np.cumsum(often * (near >= near.max() - 1e-12))
        some = by_which[ends[at] - many[at] : ends[at]]
        place = np.searchsorted(law, chance[some] * law[-1], side="right")
        held[some] = allowed[np.minimum(place, len(allowed) - 1)]
    for at, name in enumerate(part.names):
        values[name] = held[:, at].astype(np.float64)


def _put_in_order(rules: Rules, values: dict[str, Real], types: Mapping[str, Column]) -> None:
    """In place: pairs in the wrong order change places, as often as a chain of them may need it;
    where ranges forbid that, the higher one is raised, or the lower one lowered."""
    for _ in range(len(rules.order) ** 2):
        moved = False
        for low, high in rules.order:
            some = _wrong(values, low, high)
            one = nearest(types[low], values[high][some])
            other = nearest(types[high], values[low][some])
            fits = one <= other
            values[low][some[fits]], values[high][some[fits]] = one[fits], other[fits]
            moved |= bool(fits.any())
        if not moved:
            break
    for low, high in rules.order:
        some = _wrong(values, low, high)
        values[high][some] = nearest(types[high], values[low][some])
    for low, high in reversed(rules.order):
        some = _wrong(values, low, high)
        values[low][some] = nearest(types[low], values[high][some])
    still = [_wrong(values, low, high) for low, high in rules.order]
    some = np.unique(np.concatenate([np.empty(0, dtype=np.intp), *still]))
    for name, least in rules.least:
        there = some[~np.isnan(values[name][some])]
        values[name][there] = least


def _wrong(values: Mapping[str, Real], low: str, high: str) -> npt.NDArray[np.intp]:
    """Rows in which a pair is in the wrong order; where one is missing, it is in none."""
    return np.flatnonzero(values[low] > values[high])
