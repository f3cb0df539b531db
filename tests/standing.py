"""A stand-in for the reverse proxy before a SuperLink that stays up."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BAD_GATEWAY = 502


class ToDoor(http.client.HTTPConnection):
    """HTTP over TLS, through a Unix socket."""

    def __init__(self, door: Path, authority: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._door, self._authority = door, authority

    def connect(self) -> None:
        plain = socket.socket(socket.AF_UNIX)
        try:
            plain.settimeout(60)
            plain.connect(str(self._door))
            trusted = ssl.create_default_context(cafile=str(self._authority))
            self.sock = trusted.wrap_socket(plain, server_hostname="localhost")
        except OSError:
            plain.close()
            raise


@contextmanager
def a_proxy_for(door: Path, tls: Path) -> Iterator[int]:
    """The port at which it listens, with the certificate in ``tls``. What a SuperNode asks goes to
    the door; if nobody opens there, the proxy itself answers, as nginx does."""

    class PassOn(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            inside = ToDoor(door, tls / "ca.pem")
            try:
                inside.request("POST", self.path, body, dict(self.headers))
                found = inside.getresponse()
                status, headers, reply = found.status, found.getheaders(), found.read()
            except (OSError, http.client.HTTPException):
                status, headers, reply = BAD_GATEWAY, [], b""
            finally:
                inside.close()
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None: ...

    class Proxy(ThreadingHTTPServer):
        daemon_threads = True

        def finish_request(self, request: Any, client_address: Any) -> None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "server.pem", tls / "server.key")
            with suppress(OSError), context.wrap_socket(request, server_side=True) as stream:
                PassOn(stream, client_address, self)

    with Proxy(("127.0.0.1", 0), PassOn) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_address[1]
        server.shutdown()
