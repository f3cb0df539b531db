"""The shares that sites reveal in the end: good ones are kept, wrong ones have a name on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from capemix.protocol import shamir
from capemix.protocol.dealing import KINDS, is_share_of

_SECRETS: Final = {"own": "self mask", "pair": "mask key"}


class Revealed:
    """``blamed`` says of a site which share of its was wrong; its other ones count."""

    def __init__(self, threshold: int) -> None:
        self.good: dict[tuple[str, int], dict[int, bytes]] = {}
        self.blamed: dict[int, str] = {}
        self._threshold = threshold

    def take(self, holder: int, body: dict[str, Any], dealt: Mapping[int, dict[str, Any]]) -> None:
        """A holder's shares, held against the points that their dealers signed."""
        for kind in KINDS:
            for name, share in body[kind].items():
                dealer, raw = int(name), bytes.fromhex(share)
                if is_share_of(dealt[dealer][kind][str(holder)], raw):
                    self.good.setdefault((kind, dealer), {})[holder] = raw
                else:
                    secret = f"the {_SECRETS[kind]} of site {dealer}"
                    self.blamed[holder] = f"it revealed a wrong share of {secret}"

    def lacking(self, wanted: Mapping[str, tuple[int, ...]]) -> str | None:
        """Of which secret too few good shares came, or None. ``wanted`` has sites by kind."""
        for kind, of in wanted.items():
            for site in of:
                count = len(self.good.get((kind, site), ()))
                if count < self._threshold:
                    wrong = "; ".join(f"site {s}: {why}" for s, why in sorted(self.blamed.items()))
                    return (
                        f"of the {_SECRETS[kind]} of site {site} {count} good shares came;"
                        f" {self._threshold} are needed ({wrong or 'none was wrong'})"
                    )
        return None

    def secret(self, kind: str, site: int) -> bytearray:
        """From as many good shares as it takes."""
        found = sorted(self.good[kind, site].items())
        return shamir.combine(dict(found[: self._threshold]))
