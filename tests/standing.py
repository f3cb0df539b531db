"""A stand-in for the reverse proxy before a SuperLink that stays up."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def a_proxy_for(door: Path) -> Iterator[int]:
    """The port at which it listens: whatever comes in goes to the door, if somebody opens."""

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                target.sendall(part)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    class PassOn(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as inside, suppress(OSError):
                inside.connect(str(door))
                back = threading.Thread(target=carry, args=(inside, self.request))
                back.start()
                carry(self.request, inside)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), PassOn) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_address[1]
        server.shutdown()
