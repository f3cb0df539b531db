"""What a coordinator took in and decided, on disk before it acts on it.

Whatever a coordinator sends in a round follows from what is in its journal when the round opens. So
one that died goes on with the same messages, to the byte, and can never sign a second, different
list of who is included. Nothing is in it that the coordinator did not see anyway.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Final

from capemix.errors import InputError
from capemix.protocol.wire import canonical

_HEADER: Final = "run"


class Journal:
    """One run's file of lines. A line that was cut short by a crash counts as never written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InputError(
                "journal",
                "is in use: another coordinator goes on with this run",
                value=path,
                fix="wait for it, or stop it",
            ) from None
        self._file.seek(0)
        raw = self._file.read()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        try:
            found = [json.loads(line) for line in whole.splitlines()]
        except ValueError:  # not the end of it: what was kept is no more what it was
            self._file.close()
            raise InputError(
                "journal", "cannot be read", value=path, fix="propose the release again"
            ) from None
        self.header: dict[str, Any] | None = found[0] if found else None
        self.events: tuple[dict[str, Any], ...] = tuple(found[1:])

    @property
    def run(self) -> bytes | None:
        """The run that it is of, if it was begun."""
        return None if self.header is None else bytes.fromhex(self.header[_HEADER])

    def begin(self, run: bytes, bound_to: dict[str, Any]) -> None:
        """Make this the journal of a run, or refuse to go on with another one."""
        header = {_HEADER: run.hex(), **bound_to}
        if self.header is None:
            self.header = header
            self.note(**header)
            self.keep()
            folder = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(folder)  # that there is such a file outlasts a crash, too
            os.close(folder)
        elif self.header != header:
            raise InputError(
                "journal",
                "is of another run, plan, roster or length of chunks",
                value=self.path,
                fix="go on with what it is of, or remove it: sites that uploaded have paid",
            )

    def note(self, **event: Any) -> None:
        """One more thing that happened."""
        self._file.write(canonical(event) + b"\n")

    def keep(self) -> None:
        """All that happened so far outlasts a crash from here on."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let another process go on with it."""
        self._file.close()
