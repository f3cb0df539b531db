"""Uploads on the coordinator's disk, a file for each site, while their chunks come in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.protocol.chunks import Cut
from capemix.protocol.wire import ProtocolError

_PIECE: Final = 1 << 20
"""How many numbers of an upload are in memory beside the sum."""


class Spool:
    """``due`` has, for each announced upload, the chunks that are not in. ``lasts`` is for one that
    must outlast a crash."""

    def __init__(self, folder: Path, cut: Cut, *, lasts: bool) -> None:
        self.folder, self.cut = folder, cut
        self.due: dict[int, set[int]] = {}
        self._announced: dict[int, Sequence[str]] = {}
        self._lasts = lasts

    def expect(self, site: int, announced: Sequence[str]) -> None:
        """A site's upload will come in chunks of these digests. What is on disk of it stands."""
        self._announced[site] = announced
        with self._path(site).open("ab") as file:
            file.truncate(self.cut.size)
        self.due[site] = set(range(self.cut.chunks))

    def find(self) -> None:
        """Look for what came before a crash."""
        for site, due in self.due.items():
            if due:
                with self._path(site).open("rb") as file:
                    for index, announced in enumerate(self._announced[site]):
                        data = file.read(self.cut.length(index))
                        if hashlib.sha256(data).hexdigest() == announced:
                            due.discard(index)

    def put(self, site: int, index: int, data: bytes) -> None:
        """A chunk that is due. Any other bytes than the announced ones are refused."""
        whole = self.cut.length(index)
        if len(data) != whole:
            raise ProtocolError(f"chunk {index} of its upload has {len(data)} bytes, not {whole}")
        if hashlib.sha256(data).hexdigest() != self._announced[site][index]:
            raise ProtocolError(f"chunk {index} of its upload is not the one that it announced")
        with self._path(site).open("r+b") as file:
            file.seek(self.cut.span(index).start)
            file.write(data)
            self.due[site].remove(index)
            if self._lasts and not self.due[site]:
                file.flush()
                os.fsync(file.fileno())

    def is_part(self, site: int) -> bool:
        """Whether an upload was announced, and is not whole yet."""
        return bool(self.due.get(site))

    def missing_bytes(self, site: int) -> int:
        return sum(map(self.cut.length, self.due.get(site, range(self.cut.chunks))))

    def came(self, site: int) -> str:
        chunks = self.cut.chunks
        return f"{chunks - len(self.due[site])} of its upload's {chunks} chunks came"

    def pieces(self, site: int, dtype: np.dtype[Any]) -> Iterator[npt.NDArray[Any]]:
        with self._path(site).open("rb") as file:
            while len(piece := np.fromfile(file, dtype, _PIECE)):
                yield piece

    def remove(self, site: int) -> None:
        self._path(site).unlink(missing_ok=True)

    def _path(self, site: int) -> Path:
        return self.folder / f"{site}.upload"
