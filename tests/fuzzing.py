"""Outside input, bent: strategies that change valid bytes and valid JSON a little, or wildly."""

from __future__ import annotations

import copy
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from capemix.errors import CapemixError

TIMES = int(os.environ.get("CAPEMIX_FUZZ_TIMES", "1"))
"""A longer session: so many times the examples, and other ones each time."""

SECONDS = 20


def fuzz(examples: int) -> Any:
    return settings(
        max_examples=examples * TIMES,
        derandomize=TIMES == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def no_hang() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise AssertionError(f"still busy after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def taken_or_refused(action: Callable[..., Any], *args: Any) -> Any:
    """What the action gives; None if it refuses with an error of our own, in a readable text."""
    with no_hang():
        try:
            return action(*args)
        except CapemixError as error:
            said = str(error)
    assert 10 < len(said) < 20_000
    return None


# -- bytes -----------------------------------------------------------------------------------------


@st.composite
def bent_bytes(draw: st.DrawFn, valid: bytes, most: int = 4) -> bytes:
    """Flipped bits, cuts, repeats, runs of one byte."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        span = draw(st.integers(1, 16))
        match draw(st.integers(0, 6)):
            case 0 if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del data[at:]
            case 2:
                del data[at : at + span]
            case 3:
                data[at:at] = draw(st.binary(min_size=1, max_size=16))
            case 4:
                data[at:at] = data[at : at + span]
            case 5:
                data[at : at + span] = bytes([draw(st.sampled_from([0, 0x7F, 0x80, 0xFF]))]) * span
            case _ if data:
                data[at] = draw(st.integers(0, 255))
    return bytes(data)


# -- JSON ------------------------------------------------------------------------------------------

NUMBERS = (0, -1, 1, 2, 3, 51, 1000, 10**6, 2**31, 2**63, 10**30, 10**400, -(10**30))
FLOATS = (0.5, -0.0, 1e-320, 1e308, 1e-5, float("nan"), float("inf"), float("-inf"))
WORDS = ("", "x", "0", "../../x", "/etc/passwd", "a\0b", "\ud800", "cape", "none", "é" * 300)


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


ODD: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(FLOATS),
    st.sampled_from(WORDS),
    st.sampled_from([None, True, False]),
    st.sampled_from([[], {}, [[]], {"a": 1}, [None], [1, 2, 3], ["a", "a"], [[1], [2]], deep(60)]),
).map(copy.deepcopy)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in list(items):
        yield value, key
        if isinstance(one, (dict, list)):
            yield from _places(one)


@st.composite
def bent_json(draw: st.DrawFn, valid: Any, most: int = 3) -> Any:
    """The same with other values, types and lengths in places, or with places that are gone."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, most))):
        places = list(_places(value))
        if not places:
            break
        inside, key = draw(st.sampled_from(places))
        match draw(st.integers(0, 5)):
            case 0:
                del inside[key]
            case 1 if isinstance(inside, list):
                inside.append(draw(ODD))
            case 1:
                inside[draw(st.sampled_from(WORDS))] = draw(ODD)
            case 2 if isinstance(inside[key], (int, float)):
                number = draw(st.sampled_from((*NUMBERS, *FLOATS)))
                inside[key] = number
            case 3:
                inside[key] = [inside[key]]
            case 4:
                inside[key] = str(inside[key])
            case _:
                inside[key] = draw(ODD)
    return value


@st.composite
def bent_text(draw: st.DrawFn, valid: Any) -> str:
    """JSON text: bent values, twice the same key, bent bytes, brackets without end."""
    match draw(st.integers(0, 5)):
        case 0:
            text = json.dumps(valid)
            return draw(bent_bytes(text.encode())).decode("utf-8", "surrogateescape")
        case 1:
            text = json.dumps(valid)
            at = text.index("{") + 1
            again = draw(st.sampled_from(sorted(valid))) if isinstance(valid, dict) else "a"
            odd = json.dumps(draw(ODD))
            return (
                f"{text[:at]}{json.dumps(again)}: {odd}, {text[at:-1]}, {json.dumps(again)}:{odd}}}"
            )
        case 2:
            return draw(st.sampled_from("[{")) * draw(st.sampled_from([1, 900, 200_000]))
        case _:
            return json.dumps(draw(bent_json(valid)))
