"""What runs at a site inside Flower: a relay between the network and the site's agent.

Whoever submits a run ships the code that runs here, so this process holds no row, no key and no
policy: it passes bytes to the agent's socket and the answer back. A hostile relay can lose
messages; it cannot read a row.
"""

from __future__ import annotations

import socket
from typing import Final

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from capemix.engines.flower.envelope import QUERY, Refused, pack, pack_refusal, unpack

AGENT_SOCKET: Final = "agent-socket"
"""The key of a SuperNode's ``--node-config`` that says where the agent listens."""

AGENT_SOCKETS: Final = "agent-sockets"
"""For simulated nodes, which have a number and no configuration: the run config's pattern of the
sockets, with ``{}`` for the number."""

ROUND_SECONDS: Final = "round-seconds"
"""The run config's key that says how long the coordinator waits for an answer, and so the relay."""

_SECONDS: Final = 600.0
_BUFFER: Final = 1 << 20


def ask_agent(path: str, raw: bytes, seconds: float = _SECONDS) -> bytes:
    """One question, one answer; `Refused` if the agent says no, or is not heard in time."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(seconds)
            stream.connect(path)
            stream.sendall(len(raw).to_bytes(8, "big") + raw)
            status = _read(stream, 1)
            reply = _read(stream, int.from_bytes(_read(stream, 8), "big"))
    except OSError as error:
        raise Refused(f"the agent cannot be reached: {error.strerror or error}") from None
    if status != b"\0":
        raise Refused(reply.decode("utf-8", "replace"))
    return reply


def _read(stream: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = stream.recv(min(_BUFFER, count - len(found)))
        if not part:
            raise Refused("the agent ended the connection")
        found += part
    return bytes(found)


def agent_path(context: Context) -> str:
    """Where this node's agent listens."""
    own = context.node_config.get(AGENT_SOCKET)
    pattern = context.run_config.get(AGENT_SOCKETS)
    if isinstance(own, str):
        return own
    if isinstance(pattern, str) and "partition-id" in context.node_config:
        return pattern.replace("{}", str(context.node_config["partition-id"]))
    raise Refused(f"the SuperNode's --node-config has no {AGENT_SOCKET}")


def patience(context: Context) -> float:
    """How long an answer is worth waiting for, in seconds."""
    said = context.run_config.get(ROUND_SECONDS)
    return float(said) if isinstance(said, int | float) and 0 < said < 1e6 else _SECONDS


def relay(message: Message, context: Context) -> Message:
    """Pass a request to the agent; pass on what it says."""
    try:
        content = pack(ask_agent(agent_path(context), unpack(message.content), patience(context)))
    except Refused as refused:
        content = pack_refusal(str(refused))
    return Message(content, reply_to=message)


def client_app() -> ClientApp:
    """The app of a SuperNode."""
    app = ClientApp()
    app.query(QUERY)(relay)
    return app
