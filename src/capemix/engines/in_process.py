"""The whole protocol in one process: every message of a federation, and no network.

To see what the protocol itself costs. The sums have the law of `LocalEngine`'s, and their bits
under ring masks with the same test seed.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from capemix.collector import Origin
from capemix.data.rows import LabeledRows
from capemix.engines.local import check_sites, checked_source, counted_rows, origin_of
from capemix.errors import InputError
from capemix.plan import Plan
from capemix.protocol.agreement import public_bytes
from capemix.protocol.chunks import DEFAULT_CHUNK
from capemix.protocol.coordinator import Run
from capemix.protocol.roster import Member, Roster
from capemix.protocol.site import Site
from capemix.protocol.step import ReleaseStep
from capemix.randomness.source import Source
from capemix.sums.query import SumQuery
from capemix.sums.share import SiteShare, SourceDraws, prepare_records, site_share
from capemix.zerosum.masks import SiteKeys


@dataclass(frozen=True)
class Stage:
    """What a stage took: seconds over all sites, one after the other, and bytes over all sites."""

    name: str
    seconds: float
    bytes_out: int = 0
    bytes_in: int = 0


class InProcessEngine:
    """Every site of a cape federation, answering in turn, so that one upload is in memory.
    ``stages`` has what each stage of each sum took."""

    def __init__(
        self,
        sites: Sequence[LabeledRows],
        source: Source | None = None,
        *,
        chunk_bytes: int = DEFAULT_CHUNK,
    ) -> None:
        self._sites, self._source = list(sites), checked_source(source)
        self._chunk_bytes = chunk_bytes
        self._release = secrets.token_bytes(16)
        self.stages: list[Stage] = []

    def check(self, plan: Plan) -> None:
        self._source.check_unused()
        if not plan.federation.masked or plan.federation.sites < 2:
            raise InputError(
                "scheme",
                "must be cape, of two sites or more: the protocol carries no other",
                value=f"{plan.federation.scheme}, {plan.federation.sites}",
                fix="plan so, or use the LocalEngine",
            )
        check_sites(plan, self._sites)

    def origin(self, plan: Plan) -> Origin:
        return origin_of(plan, self._sites, self._source)

    def list_classes(self, *_asked: object) -> dict[str, float]:
        raise InputError("classes", "must be declared in a federation", fix="list them")

    def sum(self, plan: Plan, query: SumQuery) -> npt.NDArray[np.floating[Any]]:
        """One run of the protocol."""
        source = plan.source_of(query, self._source)
        keys = [Ed25519PrivateKey.generate() for _ in range(len(self._sites) + 1)]
        members = [Member(f"member {n}", public_bytes(key).hex()) for n, key in enumerate(keys)]
        roster = Roster(members[0], tuple(members[1:]))
        made = [
            _site(number, keys[number + 1], roster, rows, source)
            for number, rows in enumerate(counted_rows(plan, self._sites))
        ]
        with tempfile.TemporaryDirectory(prefix="capemix-spool-") as spool:
            run = Run(
                ReleaseStep(self._release, plan, query.name, query.summed),
                roster,
                keys[0],
                secrets.token_bytes(16),
                Path(spool),
                chunk_bytes=self._chunk_bytes,
            )
            while run.round is not None:
                self.stages.append(_one_round(run, made))
            started = time.monotonic()
            sums = run.release_sums()
            self.stages.append(Stage("sum", time.monotonic() - started))
        return sums


def _site(
    number: int, identity: Ed25519PrivateKey, roster: Roster, rows: LabeledRows, source: Source
) -> Site:
    draws = source.child("site", number)

    def make_share(query: SumQuery, masks: SiteKeys) -> SiteShare:
        prepared = prepare_records(query, rows.features, rows.labels, rows.persons)
        try:
            return site_share(query, number, prepared, SourceDraws(query, draws), masks)
        finally:
            draws.erase()

    keys = source.child("protocol", number)
    return Site(number, identity, roster, keys, lambda _step: None, make_share)


def _one_round(run: Run, sites: Sequence[Site]) -> Stage:
    name, started = str(run.round), time.monotonic()
    bytes_out = bytes_in = 0
    for site, raw in run.requests():
        reply = sites[site].answer(raw)
        run.receive(site, reply)
        bytes_out += len(raw)
        bytes_in += len(reply)
        for whose, index in run.wanted():  # this site's: the others' are in, or not announced yet
            asked = run.chunk_request(whose, index)
            chunk = sites[whose].chunk(asked)
            run.receive_chunk(whose, index, chunk)
            bytes_out += len(asked)
            bytes_in += len(chunk)
        if name == "upload":
            sites[site].free_upload()  # all sites share one memory here
    run.close()
    return Stage(name, time.monotonic() - started, bytes_out, bytes_in)
