"""What is written down and read back: plans, policies, rosters, manifests. One way in, one way out.

A document is a frozen dataclass; msgspec turns it into JSON and back, strictly: a value of another
type, a part that is not known, a key that stands twice or a number that is not finite is refused.
Where a field may hold one of several kinds (a method, a statistic, a column), they have a base
class that is declared with `family`, and each has a field (``kind``, say) whose type is a `Literal`
of its name. Parts that have a default may be left out.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from capemix.errors import InputError

T = TypeVar("T")

_MOST_NUMBERS: Final = 1 << 24
"""In an array that a message brings: more would be a slip, or meant ill."""

_FAMILIES: dict[type, tuple[str, Callable[[], Iterable[type]]]] = {}


def family(base: type, members: Callable[[], Iterable[type]], tag: str = "kind") -> None:
    """Declare that a field of type ``base`` holds one of ``members``, told apart by the field
    ``tag``."""
    _FAMILIES[base] = tag, members


def names_of(member: type, tag: str = "kind") -> tuple[str, ...]:
    """What a member of a family may be called in a document."""
    return get_args(get_type_hints(member)[tag])


def as_json(value: Any) -> Any:
    """A document as JSON has it: objects, lists, texts, numbers."""
    return json.loads(msgspec.json.encode(value, enc_hook=_encoded))


def from_json(cls: type[T], found: Any, *, name: str) -> T:
    """The document that `as_json` wrote, or a person. A part that does not come back the same is
    refused.

    ``name`` is what the error calls the document.
    """
    try:
        made = msgspec.convert(found, cls, dec_hook=_decoded)
        same = _holds(as_json(made), found)
    except InputError:
        raise
    except msgspec.ValidationError as error:
        raise InputError(
            name, "cannot be read", value=str(error), fix="correct it, or write it again"
        ) from None
    except (TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
        same = False
    if not same:
        raise InputError(
            name,
            "has a part that is not known, lacks one, or has one of a wrong kind",
            fix="correct it, or write it again",
        )
    return made


def _holds(made: Any, found: Any) -> bool:
    """Whether everything that was found has been read."""
    if isinstance(made, dict) and isinstance(found, dict):
        return all(key in made and _holds(made[key], found[key]) for key in found)
    if isinstance(made, list) and isinstance(found, list):
        return len(made) == len(found) and all(map(_holds, made, found))
    whole = type(made) is float and type(found) is int
    return (whole or type(made) is type(found)) and bool(made == found)


def parse(text: str, *, name: str) -> Any:
    """JSON from a text, in which no key stands twice and every number is finite."""
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=_not_finite)
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


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value, dtype="<f8").tobytes()).decode()
        return {"shape": list(value.shape), "f8": data}
    if hasattr(value, "as_json"):
        return value.as_json()
    raise TypeError(f"a {type(value).__name__} has no place in a document")


def _decoded(cls: type, found: Any) -> Any:
    if cls in _FAMILIES:
        tag, members = _FAMILIES[cls]
        kind = found.get(tag) if isinstance(found, dict) else None
        for member in members():
            if kind in names_of(member, tag):
                return msgspec.convert(found, member, dec_hook=_decoded)
        raise InputError(
            cls.__name__.lower(), f"has an unknown {tag}", value=kind, fix="correct its name"
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
