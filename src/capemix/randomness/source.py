"""AES-256-CTR byte streams, keyed by the operating system or, for tests, by a seed.

A source is a tree of keys: ``child`` and ``stream`` derive a fresh key from a label with
HMAC-SHA-256, and a label can be taken once only, so no AES key is ever used for two purposes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

KEY_BYTES: Final = 32
_ZEROS: Final = bytes(1 << 21)

Label = str | int
Words64 = npt.NDArray[np.uint64]


def derive_key(key: bytes, *label: Label) -> bytes:
    """A key for one purpose: HMAC-SHA-256 over an injective encoding of the label."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    text = b"".join(
        (b"i" if isinstance(part, int) else b"s")
        + len(raw := str(part).encode()).to_bytes(4, "big")
        + raw
        for part in label
    )
    return hmac.digest(key, b"capemix/1|" + text, hashlib.sha256)


class ByteStream:
    """The keystream of one AES-256-CTR key, read once from front to back."""

    __slots__ = ("_encryptor", "_key", "_ties")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._ties: ByteStream | None = None
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def fill(self, out: npt.NDArray[Any]) -> None:
        """Overwrite ``out`` (C-contiguous) with the next bytes of the stream."""
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
        if self._ties is None:
            self._ties = ByteStream(derive_key(self._key, "ties"))
        return self._ties.words(count)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<key hidden>)"


class _Source:
    """A key from which labelled children, streams and keys are drawn, each label once."""

    __slots__ = ("_key", "_taken")
    _key: bytes
    _taken: set[tuple[Label, ...]]
    _final: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        # A subclass of a source could pass for it where a guarantee depends on the type.
        if any(base._final for base in cls.__bases__ if issubclass(base, _Source)):
            raise TypeError(f"{cls.__bases__[0].__name__} cannot be subclassed")
        cls._final = True

    def _take(self, label: tuple[Label, ...]) -> bytes:
        if label in self._taken:
            raise RuntimeError(f"the label {label} was taken before: a key must not serve twice")
        self._taken.add(label)
        return derive_key(self._key, *label)

    @classmethod
    def _of_key(cls, key: bytes) -> Self:
        source = object.__new__(cls)
        source._key = key
        source._taken = set()
        return source

    def child(self, *label: Label) -> Self:
        """A source of the same kind for the part that ``label`` names."""
        return self._of_key(self._take(("child", *label)))

    def stream(self, *label: Label) -> ByteStream:
        return ByteStream(self._take(("stream", *label)))

    def key(self, *label: Label) -> bytes:
        """A 32-byte key (for masks) that nothing else uses."""
        return self._take(("key", *label))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<key hidden>)"

    def __reduce__(self) -> str:
        raise TypeError("a source of randomness cannot be copied or stored")


class SystemSource(_Source):
    """Keyed by the operating system: the only source that may make noise for a release."""

    __slots__ = ()

    def __init__(self) -> None:
        self._key = os.urandom(KEY_BYTES)
        self._taken = set()


class SeededSource(_Source):
    """Keyed by a test seed: reproducible, and therefore not private."""

    __slots__ = ()

    def __init__(self, seed: int) -> None:
        self._key = hashlib.sha256(b"capemix test seed|" + str(int(seed)).encode()).digest()
        self._taken = set()


Source = SystemSource | SeededSource
