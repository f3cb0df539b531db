"""Who speaks for a site, before a run begins: a challenge out, the site's signature back.

What is signed can be taken neither for a message of the protocol, which starts with other words,
nor for the answer to another challenge, under another roster, or of another site.
"""

from __future__ import annotations

import secrets
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from capemix import documents
from capemix.protocol.roster import Roster
from capemix.protocol.wire import canonical

_PREFIX: Final = b"capemix hello|"
_NONCE: Final = 32


def new_challenge() -> bytes:
    """For one node, once."""
    return _PREFIX + secrets.token_bytes(_NONCE)


def is_challenge(raw: bytes) -> bool:
    return raw.startswith(_PREFIX) and len(raw) == len(_PREFIX) + _NONCE


def _signed_bytes(challenge: bytes, roster: Roster, site: int) -> bytes:
    nonce = challenge[len(_PREFIX) :]
    bound = {"nonce": nonce.hex(), "roster": roster.digest().hex(), "site": site}
    return _PREFIX + canonical(bound)


def introduce(challenge: bytes, roster: Roster, site: int, identity: Ed25519PrivateKey) -> bytes:
    """The site's answer."""
    signature = identity.sign(_signed_bytes(challenge, roster, site))
    said = {"site": site, "roster": roster.digest().hex(), "signature": signature.hex()}
    return canonical(said)


def site_of(challenge: bytes, reply: bytes, roster: Roster) -> int | str:
    """The site that answered this challenge, or why it is none of ours."""
    try:
        found = documents.parse(reply.decode(), name="hello")
        site, digest = found["site"], found["roster"]
        signature = bytes.fromhex(found["signature"])
    except (ValueError, KeyError, TypeError):
        return "its agent does not say who it is"
    if digest != roster.digest().hex():
        return "its agent has another roster"
    if type(site) is not int or not 0 <= site < len(roster.sites):
        return "its agent has no place in the roster"
    try:
        key = Ed25519PublicKey.from_public_bytes(roster.sites[site].key)
        key.verify(signature, _signed_bytes(challenge, roster, site))
    except (InvalidSignature, ValueError):
        return f"it says that it is site {site}, and that site did not sign it"
    return site
