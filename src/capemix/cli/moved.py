"""Commands and methods that were here once: each says in one sentence what it is called now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from capemix.errors import CapemixError

if TYPE_CHECKING:
    from collections.abc import Callable

_ANYTHING: Final = {"ignore_unknown_options": True, "allow_extra_args": True}
_METHODS: Final = ("random-projection", "local-perturbation")


class MovedError(CapemixError):
    """A command or a method of the laboratory, which is a package of its own."""


def check_moved(method: str) -> None:
    """Say of a method of the laboratory where it is."""
    if method in _METHODS:
        raise _moved(f"--synthesizer {method}", f"capemix-research baseline --method {method}")


def add_moved(group: typer.Typer, *names: str, before: str = "") -> None:
    """Hidden commands that take any words and say where the command of that name is now;
    ``before`` is what stands before the name on the command line."""
    for name in names:
        hidden: dict[str, Any] = {"hidden": True, "add_help_option": False}
        group.command(name, context_settings=_ANYTHING, **hidden)(_says(f"{before}{name}"))


def _says(command: str) -> Callable[[], None]:
    def say() -> None:
        raise moved(command)

    return say


def moved(command: str) -> MovedError:
    """What is said of a command, given with its words, that the laboratory has now."""
    return _moved(f"capemix {command}", f"capemix-research {command}")


def _moved(old: str, new: str) -> MovedError:
    return MovedError(
        f"`{old}` is now `{new}`, which comes with the package capemix-research (the folder"
        " research of the source tree)."
    )
