"""What `capemix evaluate` says of a table with a schema: how like the real rows its release is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from capemix.audit.membership import Attack
    from capemix.data import LabeledRows
    from capemix.evaluate import Measures
    from capemix.private import Private
    from capemix.release import SavedRelease

_ATTACKED: Final = 2_000
"""Members, and others, that an attack is tried on."""


@dataclass(frozen=True)
class Likeness:
    """``attacks``: none where the rows that it was made from were not given."""

    measures: Measures
    attacks: Sequence[Attack] = ()

    @classmethod
    def of(cls, measures: Measures, attacks: Sequence[Attack] | None) -> Likeness:
        return cls(measures, attacks or ())

    def as_json(self) -> dict[str, Any]:
        return {
            "likeness": self.measures.as_json(),
            "membership": [one.as_json() for one in self.attacks],
        }


def likeness(
    saved: SavedRelease, test: LabeledRows, train: LabeledRows | None, *, quiet: bool
) -> Private[Likeness] | None:
    """None for a release that is of no table with a schema."""
    from capemix.cli.progress import spinner
    from capemix.evaluate import measured

    if saved.rows.table is None or test.table is None:
        return None
    with spinner("columns and pairs", quiet=quiet):
        found = measured(saved.rows, test, train)
    with spinner("membership attack", quiet=quiet):
        attacks = None if train is None else _attacks(saved, train, test)
    return found.beside(attacks, Likeness.of)


def _attacks(saved: SavedRelease, train: LabeledRows, test: LabeledRows) -> Private[list[Attack]]:
    """On some of the rows that it was made from, and of the others."""
    from capemix.audit.membership import Target, attack
    from capemix.randomness.simulation import simulation_generator

    draws = simulation_generator(0)
    members, others = (
        rows.take(draws.permutation(len(rows))[:_ATTACKED]) for rows in (train, test)
    )
    return attack(Target(saved.rows, saved.manifest), members, others)
