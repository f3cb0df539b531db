"""Messages: canonical bytes, each bound to run, round, roster and plan, and signed.

A message is one line of JSON, in one spelling only. The signature covers everything that gives the
message its meaning, so a message of another run, round, roster, plan or sender does not pass for
this one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from capemix.errors import CapemixError

COORDINATOR: Final = -1
"""The sender number of the coordinator; sites are 0, 1, ..."""

MAX_MESSAGE: Final = 1 << 24
SIGNATURE_BYTES: Final = 64
_FIELDS: Final = {"version", "round", "sender", "run", "body", "signature"}
_VERSION: Final = "capemix-protocol/4"


class ProtocolError(CapemixError):
    """A message or a peer that breaks the protocol: the run ends here, and nothing is revealed."""


@dataclass(frozen=True)
class Context:
    """What every message of a run is bound to. The plan's digest is not yet known to round 0."""

    run: bytes
    roster: bytes
    plan: bytes


@dataclass(frozen=True)
class Message:
    """``body`` is plain JSON; ``raw`` the bytes as they came.

    ``run`` is what the message claims, for routing; what counts is the run that was signed.
    """

    round: str
    sender: int
    body: dict[str, Any]
    signature: bytes = b""
    run: str = ""
    raw: bytes = field(default=b"", repr=False, compare=False)


def canonical(value: Any) -> bytes:
    """JSON in one spelling: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(value: Any) -> bytes:
    return hashlib.sha256(canonical(value)).digest()


def _signed_bytes(context: Context, message: Message) -> bytes:
    return b"capemix message|" + canonical(
        {
            "version": _VERSION,
            "run": context.run.hex(),
            "roster": context.roster.hex(),
            "plan": context.plan.hex(),
            "round": message.round,
            "sender": message.sender,
            "body": message.body,
        }
    )


def sign(context: Context, identity: Ed25519PrivateKey, message: Message) -> str:
    """The signature alone, for whoever knows what the message says."""
    return identity.sign(_signed_bytes(context, message)).hex()


def is_signed(context: Context, message: Message, signature: Any, key: bytes) -> bool:
    """Whether a signature that came alone is the sender's, on exactly this message."""
    try:
        raw = bytes_of({"signature": signature}, "signature", SIGNATURE_BYTES)
        Ed25519PublicKey.from_public_bytes(key).verify(raw, _signed_bytes(context, message))
    except (InvalidSignature, ValueError, ProtocolError):
        return False
    return True


def seal(context: Context, identity: Ed25519PrivateKey, message: Message) -> bytes:
    """The message's bytes, signed."""
    signature = sign(context, identity, message)
    fields = {
        "version": _VERSION,
        "run": context.run.hex(),
        "round": message.round,
        "sender": message.sender,
        "body": message.body,
        "signature": signature,
    }
    return canonical(fields) + b"\n"


def parse(raw: bytes) -> Message:
    """A message whose form is right; its signature is not looked at yet."""
    if len(raw) > MAX_MESSAGE or not raw.endswith(b"\n"):
        raise ProtocolError("a message is cut short, or too long")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise ProtocolError("a message is not JSON") from None
    if not isinstance(found, dict) or set(found) != _FIELDS or found["version"] != _VERSION:
        raise ProtocolError("a message has other fields than this version's")
    kinds = {"round": str, "sender": int, "run": str, "body": dict}
    if any(type(found[name]) is not kind for name, kind in kinds.items()):
        raise ProtocolError("a message has fields of another type")
    try:
        spelled = canonical(found) + b"\n"
        signature = bytes.fromhex(found["signature"])
    except (ValueError, TypeError, RecursionError):
        raise ProtocolError("a message cannot be read") from None
    if spelled != raw:
        raise ProtocolError("a message is not in canonical form")
    return Message(
        round=found["round"],
        sender=found["sender"],
        body=found["body"],
        signature=signature,
        run=found["run"],
        raw=raw,
    )


def open_message(context: Context, raw: bytes, key: bytes, *, round: str, sender: int) -> Message:
    """Parse a message and check that ``sender`` signed it for this run, round, roster and plan."""
    message = parse(raw)
    if message.round != round or message.sender != sender or message.run != context.run.hex():
        raise ProtocolError(f"expected a {round} message of this run from {sender}")
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(
            message.signature, _signed_bytes(context, message)
        )
    except (InvalidSignature, ValueError):
        raise ProtocolError(f"the signature of {sender} on a {round} message is wrong") from None
    return message


def open_text(context: Context, text: str, key: bytes, *, round: str, sender: int) -> Message:
    """`open_message` for a message that came inside another one."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise ProtocolError(f"a {round} message from {sender} is not text") from None
    return open_message(context, raw, key, round=round, sender=sender)


def must_have(body: dict[str, Any], *names: str) -> None:
    """Whatever else a message carried would travel on to sites that do not expect it."""
    if set(body) != set(names):
        raise ProtocolError("it has other fields than this version's")


def bytes_of(body: dict[str, Any], name: str, length: int) -> bytes:
    """A field of fixed length, written in hexadecimal."""
    value = body.get(name)
    if not isinstance(value, str) or len(value) != 2 * length:
        raise ProtocolError(f"the field {name} must have {length} bytes")
    try:
        found = bytes.fromhex(value)
    except ValueError:
        raise ProtocolError(f"the field {name} is not hexadecimal") from None
    if found.hex() != value:  # spaces and capitals, which fromhex lets pass
        raise ProtocolError(f"the field {name} is not plain hexadecimal")
    return found


def sites_of(body: dict[str, Any], name: str, sites: int) -> tuple[int, ...]:
    """A sorted list of distinct site numbers."""
    value = body.get(name)
    if (
        not isinstance(value, list)
        or any(type(site) is not int or not 0 <= site < sites for site in value)
        or value != sorted(set(value))
    ):
        raise ProtocolError(f"the field {name} must list distinct sites in order")
    return tuple(value)
