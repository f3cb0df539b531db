"""What can go wrong, said once: what is wrong, the value, how to mend it."""

from __future__ import annotations


def printable(text: str) -> str:
    """Others' words, without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " for c in text)


class CapemixError(Exception):
    """Base of every error that capemix raises on purpose."""


class InputError(CapemixError, ValueError):
    """A value from outside that cannot be used.

    The text is one sentence: ``field`` names what is wrong, ``value`` is what was given (never a
    private value: give a count, a position or a name instead), ``fix`` says what to do.
    """

    def __init__(self, field: str, problem: str, *, value: object = None, fix: str) -> None:
        self.field = field
        self.problem = problem
        self.value = value
        self.fix = fix
        got = "" if value is None else f" (got {value})"
        super().__init__(printable(f"{field} {problem}{got}; {fix}."))


class BudgetError(InputError):
    """A release that a lineage's budget cannot pay for."""


class ForkError(CapemixError, RuntimeError):
    """A secret that is asked for in another process than it was made in."""
