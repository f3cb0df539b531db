"""Who takes part: names and public keys that organisations verify with each other out of band."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from capemix.errors import InputError
from capemix.protocol.wire import digest


@dataclass(frozen=True)
class Member:
    """An organisation and its Ed25519 identity."""

    name: str
    identity: bytes


@dataclass(frozen=True)
class Roster:
    """The coordinator and the sites, in the order that numbers them."""

    coordinator: Member
    sites: tuple[Member, ...]

    def __post_init__(self) -> None:
        members = (self.coordinator, *self.sites)
        if not self.sites:
            raise InputError("roster", "has no sites", fix="list at least one")
        for what, values in (
            ("name", [member.name for member in members]),
            ("identity", [member.identity for member in members]),
        ):
            if len(set(values)) != len(values):
                raise InputError(
                    "roster", f"gives one {what} twice", fix="every member has its own"
                )
        if any(len(member.identity) != 32 or not member.name for member in members):
            raise InputError(
                "roster", "has a member without a name or a 32-byte key", fix="run capemix keygen"
            )

    def digest(self) -> bytes:
        """What organisations compare over the telephone."""
        return digest(self.as_json())

    def as_json(self) -> dict[str, Any]:
        def member(of: Member) -> dict[str, str]:
            return {"name": of.name, "identity": of.identity.hex()}

        return {
            "coordinator": member(self.coordinator),
            "sites": [member(site) for site in self.sites],
        }

    @classmethod
    def from_json(cls, text: str) -> Roster:
        def member(of: Any) -> Member:
            return Member(str(of["name"]), bytes.fromhex(of["identity"]))

        try:
            found = json.loads(text)
            return cls(member(found["coordinator"]), tuple(member(s) for s in found["sites"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                "roster", "is not a roster file", fix="start from the template"
            ) from None
