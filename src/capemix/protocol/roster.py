"""Who takes part: names and public keys that organisations verify with each other out of band."""

from __future__ import annotations

from dataclasses import dataclass

from capemix import documents
from capemix.errors import InputError
from capemix.identity import Member
from capemix.protocol.wire import digest

__all__ = ["Member", "Roster"]


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

    def digest(self) -> bytes:
        """What organisations compare over the telephone."""
        return digest(documents.as_json(self))
