"""AES-256-CTR byte streams, keyed by the operating system or, for tests, by a seed.

A source is a tree of keys: ``child`` and ``stream`` derive a fresh key from a label with
HMAC-SHA-256, and a label can be taken once only, so no AES key is ever used for two purposes.

Keys are held in bytearrays and overwritten when they have served (`erase`). What Python does not
allow is in docs/guide/privacy-officer.md.

A fork copies every key, and both processes would draw the same noise: the difference of two
releases would have none. So a source or stream works only in the process that made it (`Process`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from capemix.errors import ForkError, InputError

KEY_BYTES: Final = 32
_ZEROS: Final = bytes(1 << 21)

Label = str | int
Key = bytes | bytearray
Words64 = npt.NDArray[np.uint64]


class _Forks:
    """How many forks lie between this process and the first that imported this module."""

    count = 0

    @classmethod
    def add(cls) -> None:
        cls.count += 1


os.register_at_fork(after_in_child=_Forks.add)


@dataclass(frozen=True, slots=True)
class Process:
    """The process that a secret was made in.

    Told by the number of forks before it, which no descendant shares but which a library's own fork
    does not count, and by the process id, which such a fork changes but which may be given again.
    """

    forks: int
    number: int

    @classmethod
    def current(cls) -> Process:
        return cls(_Forks.count, os.getpid())

    def check(self, what: str) -> None:
        """Refuse to go on in a process that was forked since."""
        if self.forks != _Forks.count or self.number != os.getpid():
            raise ForkError(
                f"{what} was made before this process was forked (in process {self.number}, this"
                f" is {os.getpid()}), and both would draw the same numbers; make a new one in each"
                " process."
            )


def erase(*keys: bytearray) -> None:
    """Overwrite keys that have served."""
    for key in keys:
        key[:] = bytes(len(key))


def derive_key(key: Key, *label: Label) -> bytearray:
    """A key for one purpose: HMAC-SHA-256 over an injective encoding of the label."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    text = b"".join(
        (b"i" if isinstance(part, int) else b"s")
        + len(raw := str(part).encode()).to_bytes(4, "big")
        + raw
        for part in label
    )
    return bytearray(hmac.digest(key, b"capemix/1|" + text, hashlib.sha256))


class ByteStream:
    """The keystream of one AES-256-CTR key, read once from front to back.

    The one place where AES is used. The counter starts at zero, so a key must serve one stream
    only. The key is overwritten when the stream goes.
    """

    __slots__ = ("_born", "_encryptor", "_key", "_ties")

    def __init__(self, key: Key) -> None:
        self._born = Process.current()
        self._key = bytearray(key)
        self._ties: ByteStream | None = None
        self._encryptor = Cipher(algorithms.AES(self._key), modes.CTR(bytes(16))).encryptor()

    def fill(self, out: npt.NDArray[Any]) -> None:
        """Overwrite ``out`` (C-contiguous) with the next bytes of the stream."""
        self._born.check("this stream of random bytes")
        target = memoryview(out.data).cast("B")
        zeros = memoryview(_ZEROS)
        for start in range(0, len(target), len(_ZEROS)):
            part = target[start : start + len(_ZEROS)]
            self._encryptor.update_into(zeros[: len(part)], part)

    def words(self, count: int) -> Words64:
        """The next ``count`` 64-bit words."""
        out = np.empty(count, dtype="<u8")
        if count:
            self.fill(out)
        return out.astype(np.uint64, copy=False)

    def tie_words(self, count: int) -> Words64:
        """Further bits for comparisons that the first ones left open (see `tables`)."""
        self._born.check("this stream of random bytes")
        if self._ties is None:
            further = derive_key(self._key, "ties")
            self._ties = ByteStream(further)
            erase(further)
        return self._ties.words(count)

    def __del__(self) -> None:
        erase(self._key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<key hidden>)"


class _Source:
    """A key from which labelled children, streams and keys are drawn, each label once."""

    __slots__ = ("_born", "_key", "_taken")
    _born: Process
    _key: bytearray
    _taken: set[tuple[Label, ...]]
    _final: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        # A subclass of a source could pass for it where a guarantee depends on the type.
        if any(base._final for base in cls.__bases__ if issubclass(base, _Source)):
            raise TypeError(f"{cls.__bases__[0].__name__} cannot be subclassed")
        cls._final = True

    def _take(self, label: tuple[Label, ...]) -> bytearray:
        self._born.check("this source of randomness")
        if not any(self._key):
            raise RuntimeError("this source was erased: nothing can be drawn from it any more")
        if label in self._taken:
            raise RuntimeError(f"the label {label} was taken before: a key must not serve twice")
        self._taken.add(label)
        return derive_key(self._key, *label)

    def check_unused(self) -> None:
        """Refuse, before anything is charged, to draw what would fail half-way."""
        self._born.check("this source of randomness")
        if self._taken or not any(self._key):
            raise InputError(
                "source",
                "was drawn from already, and each of its keys serves once",
                fix="make a new engine, with a source of its own, for each release",
            )

    @classmethod
    def _of_key(cls, key: Key) -> Self:
        source = object.__new__(cls)
        source._hold(key)
        return source

    def _hold(self, key: Key) -> None:
        self._born = Process.current()
        self._key = bytearray(key)
        self._taken = set()

    def child(self, *label: Label) -> Self:
        """A source of the same kind for the part that ``label`` names."""
        key = self._take(("child", *label))
        try:
            return self._of_key(key)
        finally:
            erase(key)

    def stream(self, *label: Label) -> ByteStream:
        key = self._take(("stream", *label))
        try:
            return ByteStream(key)
        finally:
            erase(key)

    def key(self, *label: Label) -> bytearray:
        """A 32-byte key (for masks) that nothing else uses; whoever asks for it erases it."""
        return self._take(("key", *label))

    def erase(self) -> None:
        """Overwrite the key. What was drawn from it stays with whoever has it."""
        erase(self._key)

    def __del__(self) -> None:
        if hasattr(self, "_key"):
            erase(self._key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<key hidden>)"

    def __reduce__(self) -> str:
        raise TypeError("a source of randomness cannot be copied or stored")


class SystemSource(_Source):
    """Keyed by the operating system: the only source that may make noise for a release."""

    __slots__ = ()

    def __init__(self) -> None:
        self._hold(os.urandom(KEY_BYTES))


class SeededSource(_Source):
    """Keyed by a test seed: reproducible, and therefore not private."""

    __slots__ = ()

    def __init__(self, seed: int) -> None:
        text = b"capemix test seed|" + str(int(seed)).encode()
        self._hold(hashlib.sha256(text).digest())


Source = SystemSource | SeededSource
