"""A folder that somebody sent, read so that nothing in it leads elsewhere or fills the memory:
links are not followed, only plain files are opened, and a document has a longest length."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from capemix.errors import InputError

MOST_FILES: Final = 10_000
MOST_BYTES: Final = 1 << 26
"""Of a document that is read whole."""

_DEEPEST: Final = 3
_PIECE: Final = 1 << 20
_PLAIN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass
class Contents:
    """The digest of each plain file by its name, and why something else was not read."""

    sha256: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Folder:
    """An open folder: names are looked up in it, whatever its path leads to later."""

    descriptor: int

    @classmethod
    @contextmanager
    def at(cls, path: Path) -> Iterator[Folder]:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(
                "the folder",
                f"cannot be read: {(error.strerror or 'unknown error').lower()}",
                value=path,
                fix="name the folder of a release",
            ) from None
        try:
            yield cls(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """A plain file that lies directly in the folder; OSError if there is none."""
        if name != Path(name).name:
            raise FileNotFoundError(name)
        with os.fdopen(os.open(name, _PLAIN, dir_fd=self.descriptor), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError("not a plain file")
            yield file

    def read(self, name: str) -> bytes | None:
        """All of a plain file; None if there is none, or if it is longer than any document."""
        try:
            with self.open(name) as file:
                found = file.read(MOST_BYTES + 1)
        except OSError:
            return None
        return None if len(found) > MOST_BYTES else found

    def contents(self) -> Contents:
        """What lies in the folder and in those in it."""
        found = Contents()
        for name, why, digest in _walk(self.descriptor, "", _DEEPEST):
            if len(found.sha256) + len(found.left_out) >= MOST_FILES:
                found.left_out["the rest"] = f"there are more than {MOST_FILES:,} files"
                break
            if digest is None:
                found.left_out[name] = why
            else:
                found.sha256[name] = digest
        return found


def _walk(descriptor: int, before: str, deeper: int) -> Iterator[tuple[str, str, str | None]]:
    """Of each entry its name, why it was not read, or its digest."""
    with os.scandir(descriptor) as entries:
        for entry in entries:
            name = before + entry.name
            try:
                mode = os.stat(entry.name, dir_fd=descriptor, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode):
                    yield name, "", _digest(entry.name, descriptor)
                elif not stat.S_ISDIR(mode):
                    yield name, "is a link or no plain file", None
                elif not deeper:
                    yield name, "lies too deep", None
                else:
                    flags = _PLAIN | os.O_DIRECTORY
                    inner = os.open(entry.name, flags, dir_fd=descriptor)
                    try:
                        yield from _walk(inner, f"{name}/", deeper - 1)
                    finally:
                        os.close(inner)
            except OSError as error:
                yield name, f"cannot be read: {(error.strerror or 'no plain file').lower()}", None


def _digest(name: str, descriptor: int) -> str:
    found = hashlib.sha256()
    with os.fdopen(os.open(name, _PLAIN, dir_fd=descriptor), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a plain file")
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()
