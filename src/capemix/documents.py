"""What is written down and read back: plans, policies, rosters, manifests. One way in, one way out.

A document is a frozen dataclass; msgspec turns it into JSON and back, strictly: a value of another
type, a part that is not known, a key that stands twice or a number that is not finite is refused.
Where a field may hold one of several kinds (a method, a statistic, a column), they have a base
class that is declared with `family`, and each has a field (``kind``, say) whose type is a `Literal`
of its name. Parts that have a default may be left out.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from capemix.errors import InputError

T = TypeVar("T")

_MOST_NUMBERS: Final = 1 << 24
"""In an array that a message brings: more would be a slip, or meant ill."""

ENTRY_POINT: Final = "capemix.methods"
"""Under this name an installed package says which of its modules register methods, statistics and
types of column."""

_LOG: Final = logging.getLogger(__name__)

_FAMILIES: dict[type, tuple[str, Callable[[], Iterable[type]]]] = {}


def family(base: type, members: Callable[[], Iterable[type]], tag: str = "kind") -> None:
    """Declare that a field of type ``base`` holds one of ``members``, told apart by the field
    ``tag``."""
    _FAMILIES[base] = tag, members


@functools.cache
def load_plugins() -> None:
    """Have installed packages enlist what they bring to any family."""
    for found in entry_points(group=ENTRY_POINT):
        try:
            found.load()
        except Exception as error:  # somebody else's code: the others are not to blame
            _LOG.error("%s cannot be loaded: %s", found.value, error)


@functools.cache
def names_of(member: type, tag: str = "kind") -> tuple[str, ...]:
    """What a member of a family may be called in a document."""
    return get_args(get_type_hints(member)[tag])


def enlist(known: dict[str, Any], member: type, *, word: str, tag: str = "kind") -> None:
    """Make a member known by its names. No two may share one: whoever allows a name allows what it
    stands for. A module that is imported again brings the same member."""
    for name in names_of(member, tag):
        other = known.get(name, member)
        if (other.__module__, other.__qualname__) != (member.__module__, member.__qualname__):
            raise ValueError(f"two {word} are called {name}")
        known[name] = member


def as_json(value: Any) -> Any:
    """A document as JSON has it: objects, lists, texts, numbers."""
    return json.loads(msgspec.json.encode(value, enc_hook=_encoded))


def from_json(cls: type[T], found: Any, *, name: str) -> T:
    """The document that `as_json` wrote, or a person. A part that does not come back the same is
    refused.

    ``name`` is what the error calls the document; it also says which part is wrong.
    """
    try:
        made = _converted(cls, found, name)
        lost = _lost(as_json(made), found)
    except InputError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError):
        raise InputError(
            name, "has a part of a wrong kind", fix="correct it, or write it again"
        ) from None
    if lost is not None:
        path, problem, value, fix = lost
        raise InputError(_place(name, found, path), problem, value=value, fix=fix)
    return made


def read(cls: type[T], path: str | Path, *, name: str) -> T:
    """The document that a file holds."""
    return from_json(cls, load(path, name=name), name=name)


def load(path: str | Path, *, name: str) -> Any:
    """The JSON that a file holds, as `parse` has it."""
    try:
        text = Path(path).read_text()
    except (OSError, ValueError):
        raise InputError(name, "is not a readable file", value=path, fix="check the path") from None
    return parse(text, name=f"{name} {path}")


def _converted(cls: type[T], found: Any, name: str) -> T:
    try:
        return msgspec.convert(found, cls, dec_hook=_decoded)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InputError):  # a document's own rule
            raise error.__cause__ from None
        problem, _, where = str(error).partition(" - at `$")
        path = [int(at) if at else key for key, at in _STEP.findall(where)]
        allowed = _allowed(cls, path)
        raise InputError(
            _place(name, found, path),
            f"cannot be read: {problem[:1].lower()}{problem[1:]}",
            fix=f"write {' or '.join(allowed)}" if allowed else "correct it, or write it again",
        ) from None


_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")
"""A step to a part, as msgspec writes it."""


def _place(name: str, found: Any, path: Sequence[str | int]) -> str:
    """Where a part is: each step to it, and what is on the way by its name, where it has one."""
    place = name
    for step in (None, *path):
        if isinstance(step, int):
            place += f"[{step}]"
        elif step is not None:
            place += f" {step}"
        try:
            found = found if step is None else found[step]
        except (LookupError, TypeError):
            found = None
        if isinstance(found, dict) and isinstance(found.get("name"), str):
            place += f" '{found['name']}'"
    return place


def _allowed(cls: Any, path: Sequence[str | int]) -> list[str]:
    """The words that a part is one of, where it is one of some."""
    for step in path:
        if not dataclasses.is_dataclass(cls):  # one that may be left out
            cls = next((each for each in get_args(cls) if dataclasses.is_dataclass(each)), None)
        if cls is None:
            return []
        cls = get_type_hints(cls).get(str(step))
    words = cls if isinstance(cls, enum.EnumMeta) else get_args(cls)
    listed = isinstance(cls, enum.EnumMeta) or get_origin(cls) is Literal
    return [str(word) for word in words] if listed else []


_Lost = tuple[tuple[str | int, ...], str, str | None, str]
"""Where, what is wrong with it, the part, and what to do."""


def _lost(made: Any, found: Any, path: tuple[str | int, ...] = ()) -> _Lost | None:
    """The first of what was found that has not been read."""
    if isinstance(made, dict) and isinstance(found, dict):
        for key, part in found.items():
            if key not in made:
                known = f"write {', '.join(made)}"
                return path, "has a part that is not known", str(key), known
            if (lost := _lost(made[key], part, (*path, key))) is not None:
                return lost
        return None
    if isinstance(made, list) and isinstance(found, list) and len(made) == len(found):
        each = (_lost(*pair, (*path, at)) for at, pair in enumerate(zip(made, found, strict=True)))
        return next((lost for lost in each if lost is not None), None)
    same = type(made) is type(found) or (type(made) is float and type(found) is int)
    if same and made == found:
        return None
    return path, "has a value of a wrong kind", None, "correct it, or write it again"


def parse(text: str, *, name: str) -> Any:
    """JSON from a text, in which no key stands twice and every number is finite."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_each_once,
            parse_constant=_not_finite,
            parse_float=_finite,
        )
    except _TwiceError as error:
        raise InputError(
            name, "has a key twice", value=error.args[0], fix="leave one of them out"
        ) from None
    except (ValueError, RecursionError):
        raise InputError(name, "is not readable JSON", fix="write it again") from None


class _TwiceError(Exception):
    pass


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _TwiceError(next(key for key in keys if keys.count(key) > 1))
    return found


def _not_finite(_text: str) -> NoReturn:
    raise ValueError("a number is not finite")


def _finite(text: str) -> float:
    """1e400 has no double but infinity."""
    number = float(text)
    return number if math.isfinite(number) else _not_finite(text)


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value, dtype="<f8").tobytes()).decode()
        return {"shape": list(value.shape), "f8": data}
    if hasattr(value, "as_json"):
        return value.as_json()
    raise TypeError(f"a {type(value).__name__} has no place in a document")


def _decoded(cls: type, found: Any) -> Any:
    if cls in _FAMILIES:
        load_plugins()
        tag, members = _FAMILIES[cls]
        kind = found.get(tag) if isinstance(found, dict) else None
        for member in members():
            if kind in names_of(member, tag):
                return _converted(member, found, cls.__name__.lower())
        known = [name for member in members() for name in names_of(member, tag)]
        raise InputError(
            _place(cls.__name__.lower(), found, ()),
            f"has an unknown {tag}",
            value=kind,
            fix=f"write {' or '.join(known)}, or install the package that has it",
        )
    if cls is np.ndarray:
        return _array(found)
    if hasattr(cls, "from_json"):
        return cls.from_json(found)
    raise TypeError(f"a {cls.__name__} has no place in a document")


def _array(found: Any) -> npt.NDArray[np.float64]:
    """Numbers that are finite, and as many as the shape says."""
    shape = tuple(found["shape"])
    if not all(type(n) is int and n > 0 for n in shape) or math.prod(shape) > _MOST_NUMBERS:
        raise ValueError("shape")
    data = base64.b64decode(found["f8"], validate=True)
    values = np.frombuffer(data, dtype="<f8").reshape(shape).astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("not finite")
    return values
