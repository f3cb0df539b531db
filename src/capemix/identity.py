"""Who signs: an Ed25519 key with a name, kept in two files. NAME.key is for its owner's eyes only,
and NAME.json is what others know it by."""

from __future__ import annotations

import json
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from capemix import documents
from capemix.errors import InputError

OWN: Final = "curator"
"""What the key is called that a user's own releases are signed with, unless they name it."""


@dataclass(frozen=True)
class Member:
    """An organisation and its Ed25519 identity: 32 bytes, in hexadecimal digits."""

    name: str
    identity: str

    def __post_init__(self) -> None:
        named = self.name.isprintable() and self.name.strip()
        if not named or not re.fullmatch("[0-9a-f]{64}", self.identity):
            raise InputError(
                "roster",
                "has a member without a printable name or a 32-byte key",
                fix="run capemix keygen",
            )

    @property
    def key(self) -> bytes:
        return bytes.fromhex(self.identity)

    def __str__(self) -> str:
        return f"{self.name}, {in_groups(self.identity)}"


@dataclass(frozen=True)
class Identity:
    """A key with its owner's name, to sign with."""

    name: str
    key: Ed25519PrivateKey = field(repr=False, compare=False)

    @property
    def member(self) -> Member:
        """What others may know."""
        return Member(self.name, self.key.public_key().public_bytes_raw().hex())

    def sign(self, said: bytes) -> str:
        return self.key.sign(said).hex()


def is_signed_by(member: Member, said: bytes, signature: str) -> bool:
    """Whether a signature, in hexadecimal digits, is this member's."""
    try:
        raw = bytes.fromhex(signature)
        Ed25519PublicKey.from_public_bytes(member.key).verify(raw, said)
    except (InvalidSignature, ValueError):
        return False
    return raw.hex() == signature


def in_groups(digits: str) -> str:
    """Hexadecimal digits as people read them to each other."""
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


def new_identity(name: str, folder: Path) -> tuple[Path, Path]:
    """NAME.key, the private key, for its owner's eyes only; NAME.json, for the roster."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.key", folder / f"{name}.json"
    member = json.dumps(documents.as_json(Identity(name, key).member)) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if public.exists():
            raise FileExistsError
        handle, partial = tempfile.mkstemp(prefix=f".{name}.", dir=folder)  # for its owner alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            os.link(partial, private)  # nobody sees half a key, and none is written over
        finally:
            Path(partial).unlink()
        public.write_text(member)
    except FileExistsError:
        raise InputError(
            "name", "has a key already", value=name, fix="choose another name"
        ) from None
    except OSError as error:
        raise InputError(
            "the key",
            f"cannot be written: {(error.strerror or 'unknown error').lower()}",
            value=private,
            fix="name a folder that this user may write to",
        ) from None
    return private, public


def load_identity(path: Path) -> Ed25519PrivateKey:
    """The key that a file holds."""
    try:
        pem = path.read_bytes()
    except OSError as error:
        absent = isinstance(error, FileNotFoundError)
        raise InputError(
            "identity",
            f"cannot be read: {(error.strerror or 'unknown error').lower()}",
            value=path,
            fix="name the file that capemix keygen wrote" if absent else "let this user read it",
        ) from None
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            "identity", "is not a key file", value=path, fix="run capemix keygen"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError("identity", "is not an Ed25519 key", value=path, fix="run capemix keygen")
    return key


def identity_at(path: Path) -> Identity:
    """NAME.key with the name that NAME.json beside it says; without one, the file's own."""
    key, public = load_identity(path), path.with_suffix(".json")
    found = Identity(path.stem, key)
    if not public.exists():
        return found
    member = documents.read(Member, public, name="member")
    if member.identity != found.member.identity:
        raise InputError(
            "identity", "is not the key of the file beside it", value=public, fix="bring both back"
        )
    return Identity(member.name, key)


def own_identity(folder: Path) -> tuple[Identity, bool]:
    """The key that this user's releases are signed with, in their state folder, and whether it was
    made just now: the first time."""
    path = folder / f"{OWN}.key"
    if path.exists():
        return identity_at(path), False
    with suppress(OSError):  # which is said of the key
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        new_identity(OWN, folder)
    except InputError:
        if not path.exists():
            raise
        return identity_at(path), False  # another process was quicker
    return identity_at(path), True
