"""A loopback that other accounts of the machine cannot reach.

Flower's programs listen on loopback, and some of what they serve asks nobody who they are: whoever
can connect can start code as this user. So they run in a network of their own (a Linux network
namespace): loopback and nothing else, which only this user and root can enter.

This file is run by itself, too, without the package: as the process that makes the network and
keeps it, and in front of each command that joins it.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

HOST: Final = "127.0.0.1"

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
_READY: Final = "ready"
_FIRST_PORT: Final = 8000


class Network(Protocol):
    """Where processes listen, and find each other."""

    def joining(self, command: Sequence[str | Path]) -> list[str | Path]:
        """The command that runs this command there."""
        ...

    def free_port(self) -> int: ...

    def listens(self, port: int) -> bool:
        """Whether somebody listens on this port of loopback."""
        ...


class EnclosureError(Exception):
    """The system makes no network of a process's own. The text is the system's reason."""


class Enclosure:
    """A network of this user's own, until the end of a ``with``, or of this process."""

    def __init__(self) -> None:
        self._next_port = _FIRST_PORT

    def __enter__(self) -> Self:
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", __file__, "keep"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline().decode().strip()
        if said != _READY:
            self.__exit__(None, None, None)
            raise EnclosureError(said or "it ended at once")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keeper.kill()
        self._keeper.communicate()

    @property
    def keeper(self) -> int:
        """The process that keeps the network."""
        return self._keeper.pid

    def joining(self, command: Sequence[str | Path]) -> list[str | Path]:
        return joining(self.keeper, command)

    def door(self, path: Path, port: int) -> list[str | Path]:
        """The command that lets whoever may open this Unix socket in to one port, and no other."""
        return self.joining([sys.executable, "-I", __file__, "door", path, str(port)])

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def listens(self, port: int) -> bool:
        return port in listening(self._keeper.pid)


class SharedLoopback:
    """The machine's own loopback, for a machine that nobody else has an account on."""

    def joining(self, command: Sequence[str | Path]) -> list[str | Path]:
        return list(command)

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            return int(probe.getsockname()[1])

    def listens(self, port: int) -> bool:
        try:
            with socket.create_connection((HOST, port), timeout=1.0):
                return True
        except OSError:
            return False


def joining(keeper: int, command: Sequence[str | Path]) -> list[str | Path]:
    """The command that runs this command in the network that a process keeps."""
    return [sys.executable, "-I", __file__, str(keeper), *command]


def listening(pid: int) -> set[int]:
    """The TCP ports on which somebody listens in this process's network."""
    found = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == "0A":
                    found.add(int(local.rpartition(":")[2], 16))
    return found


# -- on its own, in a process of its own ----------------------------------------------------------


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _keep() -> None:
    """Make the network and keep it until standard input ends: as root at once, for others in a user
    namespace in which they stay who they are."""
    user, group = os.geteuid(), os.getegid()
    try:
        try:
            _call("unshare", _NEW_NET)
        except OSError:
            _call("unshare", _NEW_USER | _NEW_NET)
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                Path(f"/proc/self/{name}").write_text(text)
        with socket.socket() as any_one:
            asked = struct.pack("16sh14x", b"lo", 0)
            name, flags = struct.unpack("16sh14x", fcntl.ioctl(any_one, _GET_FLAGS, asked))
            fcntl.ioctl(any_one, _SET_FLAGS, struct.pack("16sh14x", name, flags | _UP))
    except (OSError, AttributeError) as error:
        print(error, flush=True)
        return
    print(_READY, flush=True)
    sys.stdin.buffer.read()


def _join(keeper: str, command: list[str]) -> None:
    """Become this command in the network that this process keeps."""
    for kind, flag in (("user", _NEW_USER), ("net", _NEW_NET)):
        theirs, ours = (os.open(f"/proc/{who}/ns/{kind}", os.O_RDONLY) for who in (keeper, "self"))
        if not os.path.sameopenfile(theirs, ours):
            _call("setns", theirs, flag)
        os.close(theirs)
        os.close(ours)
    os.execvp(command[0], command)


async def _door(path: str, port: int) -> None:
    """A Unix socket that this user and a group may open, and what comes in goes to a port here."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while part := await reader.read(1 << 16):
                writer.write(part)
                await writer.drain()
        with suppress(OSError):
            writer.close()

    async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(HOST, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer))

    os.umask(0o117)
    server = await asyncio.start_unix_server(let_in, path)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        _keep()
    elif sys.argv[1] == "door":
        asyncio.run(_door(sys.argv[2], int(sys.argv[3])))
    else:
        _join(sys.argv[1], sys.argv[2:])
