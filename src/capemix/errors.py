"""What can go wrong, said once: what is wrong, the value, how to mend it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar


def printable(text: str) -> str:
    """Others' words, without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " for c in text)


_QUOTED = 8
"""So many names are listed in an error, at most."""


def quoted(names: Sequence[str]) -> str:
    """A list of names."""
    more = f" and {len(names) - _QUOTED} more" if len(names) > _QUOTED else ""
    return ", ".join(f"'{name}'" for name in names[:_QUOTED]) + more


class CapemixError(Exception):
    """Base of every error that capemix raises on purpose."""


class StoppedError(CapemixError):
    """Somebody stopped a command, by Ctrl-C. The text says what came of it."""


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

    def __reduce__(self) -> tuple[Any, ...]:
        """It comes back whole from another process."""
        return _again, (type(self), self.args, vars(self))


def _again(kind: type[InputError], args: tuple[Any, ...], parts: dict[str, Any]) -> InputError:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(parts)
    return error


def unreadable(field: str, kind: str) -> InputError:
    """Says nothing of the cause: the libraries' messages quote cells."""
    return InputError(field, f"is not a readable {kind} file", fix="write or copy the file again")


_Kind = TypeVar("_Kind", bound=StrEnum)


def member(kind: type[_Kind], value: str, field: str) -> _Kind:
    """One of the values that a field may have."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise InputError(field, "is unknown", value=value, fix=f"use one of {known}") from None


class EpsilonError(InputError):
    """An epsilon so large that nothing proves it: the noise for it would prove none at all, and
    noise that proves some keeps ``most`` or less. Less than was asked is not given in its place."""

    def __init__(self, epsilon: float, most: float) -> None:
        self.most = most
        super().__init__(
            "epsilon",
            "is more than can be delivered: what the samplers may be off by weighs e^epsilon"
            " in delta, so that beyond some epsilon nothing is proved",
            value=f"{epsilon:g}",
            fix=f"give at most {math.floor(10 * most) / 10:g}, or inf for no guarantee",
        )


class BudgetError(InputError):
    """A release that a lineage's budget cannot pay for."""


class ForkError(CapemixError, RuntimeError):
    """A secret that is asked for in another process than it was made in."""
