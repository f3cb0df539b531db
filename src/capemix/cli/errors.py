"""The library's errors name fields, a person types options: what is between is here alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from capemix.errors import InputError

_LIST: Final = re.compile(r"(, | and )")
_UNDERSCORED: Final = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")
_QUOTED: Final = re.compile(r"(['\"`])([a-z][a-z0-9]*)\1")


def speak_of_options(error: InputError, options: Mapping[str, str]) -> None:
    """Write the error's sentence anew, with options in the place of fields. ``options`` has, by the
    name of a field, what is typed for it: ``public_range`` is ``--public-range``."""
    said = InputError(
        _field(error.field, options),
        _text(error.problem, options),
        value=error.value,
        fix=_text(error.fix, options),
    )
    error.args = said.args


def _field(field: str, options: Mapping[str, str]) -> str:
    """A field, or a list of fields; anything else is a thing of its own and stays."""
    parts = _LIST.split(field)
    if all(name in options for name in parts[::2]):
        return "".join(options.get(part, part) for part in parts)
    return field


def _text(text: str, options: Mapping[str, str]) -> str:
    """Words are options where nothing else can be meant: with an underscore, or in quotes."""
    found = _UNDERSCORED.sub(lambda word: options.get(word[0], word[0]), text)
    return _QUOTED.sub(lambda word: options.get(word[2], word[0]), found)
