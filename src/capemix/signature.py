"""Who vouches for a release: a signature of its manifest, in a file of its own beside it.

What is signed is `capemix release|` and then the SHA-256 of `manifest.json`, in hexadecimal digits.
The manifest holds the digests of all other files and names the signer, so that nothing else need be
signed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final, Literal

from capemix import documents
from capemix.identity import Identity, Member, is_signed_by

SIGNATURE: Final = "signature.json"
_PREFIX: Final = b"capemix release|"


@dataclass(frozen=True)
class Signature:
    """By the member whom the manifest names as its signer."""

    signature: str
    format: Literal["capemix-signature/1"] = "capemix-signature/1"

    def holds(self, manifest: bytes, signer: Member) -> bool:
        return is_signed_by(signer, _said(manifest), self.signature)


def signature_of(manifest: bytes, identity: Identity) -> str:
    """The text of the signature's file."""
    made = Signature(identity.sign(_said(manifest)))
    return json.dumps(documents.as_json(made)) + "\n"


def _said(manifest: bytes) -> bytes:
    return _PREFIX + hashlib.sha256(manifest).hexdigest().encode()
