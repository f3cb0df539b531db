"""What is typed again and again can stand in `capemix.toml`: a table for each command, with options
by their names. What is typed wins, and what the file adds is said."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from capemix.errors import InputError, printable

if TYPE_CHECKING:
    import click

FILE: Final = "capemix.toml"
_FOR_FILES: Final = "FILE"
"""The metavar of options that name one."""


def words_of_file(
    command: Sequence[str], params: Sequence[click.Parameter], typed: Sequence[str], *, more: bool
) -> list[str]:
    """What the nearest file adds to the words that were typed for a command; said on the error
    stream. ``more``: the command has options beside ``params``, which it checks itself."""
    place = _nearest(Path.cwd())
    if place is None:
        return []
    words: list[str] = []
    given = {word.partition("=")[0] for word in typed}
    options = {word: each for each in params for word in each.opts if word.startswith("--")}
    for name, value in _table(place, command).items():
        word = f"--{name.replace('_', '-')}"
        param = options.get(word)
        if param is None and not more:
            raise InputError(
                FILE,
                f"has an option that `{' '.join(command)}` does not have",
                value=printable(name),
                fix="leave it out",
            )
        if not given & set((word,) if param is None else (*param.opts, *param.secondary_opts)):
            words += _words(word, value, param, place.parent)
    if words:
        said = printable(" ".join(words))
        print(f"capemix: from {place}: {said}", file=sys.stderr)
    return words


def _nearest(folder: Path) -> Path | None:
    """The file in this folder, or in the first one above that has one; not another user's, who
    would choose what is promised of these rows."""
    for each in (folder, *folder.parents):
        place = each / FILE
        if place.is_file():
            if place.stat().st_uid in (os.getuid(), 0):
                return place
            print(f"capemix: {place} is another user's, and is not read", file=sys.stderr)
            return None
    return None


def _table(place: Path, command: Sequence[str]) -> Mapping[str, Any]:
    """What the file says for this command."""
    try:
        found: Any = tomllib.loads(place.read_text("utf-8"))
    except (OSError, ValueError) as error:
        said = str(error).splitlines()[0] if isinstance(error, ValueError) else "it is not readable"
        raise InputError(
            str(place), "cannot be read", value=printable(said), fix="mend it"
        ) from None
    for name in command[1:]:
        found = found.get(name, {})
        if not isinstance(found, dict):
            raise InputError(
                str(place),
                f"must have a table [{name}]",
                value=printable(str(found)),
                fix="mend it",
            )
    return {name: value for name, value in found.items() if not isinstance(value, dict)}


def _words(word: str, value: Any, param: Any, folder: Path) -> Iterator[str]:
    if value is False:
        return
    yield word
    if value is True:
        return
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    import click

    names_file = param is not None and (
        isinstance(param.type, click.Path) or param.metavar == _FOR_FILES
    )
    beside = folder / text
    yield str(beside) if names_file and beside.exists() else text
