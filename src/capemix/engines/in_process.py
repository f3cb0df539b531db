"""The whole protocol in one process: every message of a federation, and no network.

To see what the protocol itself costs. The release has the law of `run_local`, and its bits under
ring masks with the same test seed; so have the rounds of `sums_in_process` and `sums_local`.
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

from capemix.data.rows import LabeledRows, read_from_rows_of
from capemix.errors import InputError
from capemix.moments import SumOf
from capemix.pipeline import SiteShare, SourceDraws, prepare_records, site_share
from capemix.plan import MomentsPlan, Plan
from capemix.protocol.agreement import public_bytes
from capemix.protocol.chunks import DEFAULT_CHUNK
from capemix.protocol.coordinator import Run
from capemix.protocol.part import Part
from capemix.protocol.roster import Member, Roster
from capemix.protocol.site import Site
from capemix.randomness.source import SeededSource, Source, SystemSource
from capemix.release import Release
from capemix.zerosum.masks import SiteKeys


@dataclass(frozen=True)
class Stage:
    """What a stage took: seconds over all sites, one after the other, and bytes over all sites."""

    name: str
    seconds: float
    bytes_out: int = 0
    bytes_in: int = 0


def run_in_process(
    plan: Plan,
    sites: Sequence[LabeledRows],
    *,
    source: Source | None = None,
    chunk_bytes: int = DEFAULT_CHUNK,
) -> tuple[Release, list[Stage]]:
    """Carry out a calibrated cape plan; sites answer in turn, so that one upload is in memory."""
    source = SystemSource() if source is None else source
    means, stages = sum_in_process(plan, sites, source=source, chunk_bytes=chunk_bytes)
    guarantee = plan.guarantee(
        seeded=isinstance(source, SeededSource),
        one_process=True,
        read_from_rows=read_from_rows_of(sites),
    )
    return Release.from_means(plan, means, guarantee, schema_of=sites[0]), stages


def sums_in_process(sites: Sequence[LabeledRows], source: Source) -> SumOf:
    """The rounds of a release, each a run with a source of its own."""
    release = secrets.token_bytes(16)

    def sum_of(whole: MomentsPlan, name: str, plan: Plan) -> npt.NDArray[np.floating[Any]]:
        part = Part(release, whole, name)
        return sum_in_process(plan, sites, source=source.child("round", name), part=part)[0]

    return sum_of


def sum_in_process(
    plan: Plan,
    sites: Sequence[LabeledRows],
    *,
    source: Source,
    chunk_bytes: int = DEFAULT_CHUNK,
    part: Part | None = None,
) -> tuple[npt.NDArray[np.floating[Any]], list[Stage]]:
    """One run: the noisy sums over the plan's divisor."""
    if len(sites) != plan.federation.sites:
        raise InputError(
            "sites",
            f"must be {plan.federation.sites} for this plan",
            value=len(sites),
            fix="repartition",
        )
    keys = [Ed25519PrivateKey.generate() for _ in range(len(sites) + 1)]
    members = [Member(f"member {n}", public_bytes(key).hex()) for n, key in enumerate(keys)]
    roster = Roster(members[0], tuple(members[1:]))
    made = [
        _site(number, keys[number + 1], roster, rows, source) for number, rows in enumerate(sites)
    ]
    stages: list[Stage] = []
    with tempfile.TemporaryDirectory(prefix="capemix-spool-") as spool:
        run = Run(
            plan,
            sites[0].schema(),
            roster,
            keys[0],
            secrets.token_bytes(16),
            Path(spool),
            chunk_bytes=chunk_bytes,
            part=part,
        )
        while run.round is not None:
            stages.append(_one_round(run, made))
        started = time.monotonic()
        means = run.release_sums()
        stages.append(Stage("sum", time.monotonic() - started))
    return means, stages


def _site(
    number: int, identity: Ed25519PrivateKey, roster: Roster, rows: LabeledRows, source: Source
) -> Site:
    draws = source.child("site", number)

    def make_share(plan: Plan, masks: SiteKeys) -> SiteShare:
        prepared = prepare_records(plan, rows.features, rows.labels)
        try:
            return site_share(plan, number, prepared, SourceDraws(plan, draws), masks)
        finally:
            draws.erase()

    keys = source.child("protocol", number)
    return Site(number, identity, roster, keys, lambda *_: None, make_share)


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
            sites[site].let_go()  # all sites share one memory here
    run.close()
    return Stage(name, time.monotonic() - started, bytes_out, bytes_in)
