"""What was made of real rows and paid for by no budget, as a type of its own: it does not show, it
is not JSON, and a manifest has no place for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, NoReturn, TypeVar, final

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""What a manifest is made of."""

PRIVATE: Final = "This read private rows without a budget: keep it to yourself."
"""The mark on what is shown to the rows' owner."""


@final
class Private(Generic[T]):
    """A value for the eyes of the rows' owner.

    It comes out in two ways, each by name: handed to a function that shows it, or declared public,
    since the rows are.
    """

    __slots__ = ("__value",)

    def __init__(self, value: T) -> None:
        self.__value = value

    def __repr__(self) -> str:
        return "Private(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private value is not copied or written")

    def __getstate__(self) -> NoReturn:
        self.__reduce__()

    def beside(self, other: Private[U] | None, joined: Callable[[T, U | None], V]) -> Private[V]:
        """Both in one, as private as they are."""
        return Private(joined(self.__value, None if other is None else other.__value))

    def for_owner(self, show: Callable[[T], None]) -> None:
        """Show it; nothing comes back."""
        show(self.__value)

    def declared_public(self) -> T:
        """The value, where anyone may see the rows it was made of."""
        return self.__value


def public_text(found: Json) -> str:
    """The text of a manifest. Whatever is no JSON, a private value above all, is refused."""
    return json.dumps(found, indent=2, allow_nan=False, default=_refused) + "\n"


def _refused(value: Any) -> NoReturn:
    kind = "a private value" if isinstance(value, Private) else f"a {type(value).__name__}"
    raise TypeError(f"{kind} has no place in a manifest; leave it out.")
