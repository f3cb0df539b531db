"""What the coordinator's people set: the run config of the Flower app."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capemix.engines.flower.app_folder import CHUNK_BYTES
from capemix.errors import InputError
from capemix.protocol.chunks import LEAST_CHUNK, MOST_CHUNK


@dataclass(frozen=True)
class Settings:
    """What the run config says. Paths are on the coordinator's host, and absolute."""

    plan: Path
    roster: Path
    identity: Path
    out: Path
    wait_seconds: float
    round_seconds: float
    chunk_bytes: int
    give_up: bool = False
    """End the release that was begun, and have its sites take back what they can."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        def path(key: str) -> Path:
            found = Path(str(config.get(key, "")))
            if not found.is_absolute():
                raise InputError(
                    f"run config {key}", "must be an absolute path", value=found, fix="give one"
                )
            return found

        def seconds(key: str) -> float:
            try:
                found = float(config[key])
            except (KeyError, TypeError, ValueError, OverflowError):
                found = 0.0
            if not 0 < found < 1e6:
                raise InputError(
                    f"run config {key}", "must be seconds", value=config.get(key), fix="try 600.0"
                )
            return found

        give_up = config.get("give-up", False)
        if type(give_up) is not bool:
            raise InputError(
                "run config give-up", "must be true or false", value=give_up, fix="try false"
            )
        chunk_bytes = config.get("chunk-bytes", CHUNK_BYTES)
        if type(chunk_bytes) is not int or not LEAST_CHUNK <= chunk_bytes <= MOST_CHUNK:
            raise InputError(
                "run config chunk-bytes",
                f"must be a whole number from {LEAST_CHUNK} to {MOST_CHUNK}",
                value=chunk_bytes,
                fix=f"try {CHUNK_BYTES}",
            )
        return cls(
            plan=path("plan"),
            roster=path("roster"),
            identity=path("identity"),
            out=path("out"),
            wait_seconds=seconds("wait-seconds"),
            round_seconds=seconds("round-seconds"),
            chunk_bytes=chunk_bytes,
            give_up=give_up,
        )
