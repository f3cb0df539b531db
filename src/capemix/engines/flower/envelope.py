"""Protocol messages as Flower records: raw bytes in, raw bytes out, or a reason."""

from __future__ import annotations

from typing import Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

QUERY: Final = "round"
MESSAGE_TYPE: Final = f"query.{QUERY}"
_MESSAGE, _REFUSED, _BYTES, _REASON = "message", "refused", "bytes", "reason"
_LONGEST_REASON: Final = 500


class Refused(Exception):
    """A site's agent, or the way to it, said no. The text comes from there."""


def pack(raw: bytes) -> RecordDict:
    """Bytes as one array; Flower cuts it into chunks on its way."""
    values = np.frombuffer(raw, dtype=np.uint8)
    return RecordDict({_MESSAGE: ArrayRecord({_BYTES: Array(values)})})


def pack_refusal(reason: str) -> RecordDict:
    return RecordDict({_REFUSED: ConfigRecord({_REASON: reason[:_LONGEST_REASON]})})


def unpack(content: RecordDict) -> bytes:
    """The bytes, or `Refused`. Whatever else a peer sends is refused too."""
    try:
        refused = content.config_records.get(_REFUSED)
        if refused is None:
            return _bytes_of(content.array_records[_MESSAGE][_BYTES])
        reason = str(refused.get(_REASON, "no reason"))[:_LONGEST_REASON]
    except Exception:  # it comes from another machine: any shape of nonsense
        raise Refused("the reply is not a message") from None
    raise Refused("".join(c if c.isprintable() else " " for c in reason))


def _bytes_of(array: Array) -> bytes:
    values = array.numpy()  # an archive of arrays is none, whatever Flower's types say
    if not isinstance(values, np.ndarray) or values.dtype != np.uint8 or values.ndim != 1:
        raise ValueError("no bytes")
    return values.tobytes()
