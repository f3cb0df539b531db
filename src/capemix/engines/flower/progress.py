"""How far a run is, for those who wait for it: in the log, and in the outcome file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from capemix.engines.flower.files import RoundOpen, RoundOver
from capemix.protocol.coordinator import Run

_EVERY: Final = 1.0


class Progress:
    """Told at most once a second while a round is open.

    The time left is for the rounds of this sum, called ``name`` where a release has several; what
    follows them (masks off, other sums, release written) is not in it.
    Uploads: the bytes to come at the pace of those that came, from the first one on. Other rounds:
    each as long as the mean of those that are over. Before the first chunk is in, nobody knows.
    """

    def __init__(
        self,
        run: Run,
        done: Sequence[RoundOver],
        show: Callable[[RoundOpen], None],
        name: str | None = None,
    ) -> None:
        self._run = run
        self._number = run.rounds.index(str(run.round))
        self._upload = run.rounds.index("upload")
        small = [each.seconds for each in done if each.round != "upload"]
        self._mean = sum(small) / len(small) if small else None
        self._show = show
        self._name = name
        self._started = self._next = time.monotonic()
        self._pace_from: float | None = None

    def __call__(self) -> None:
        now = time.monotonic()
        uploading = self._number == self._upload
        if uploading and self._pace_from is None and any(self._run.wanted()):
            self._pace_from = now
        if now < self._next:
            return
        self._next = now + _EVERY
        came, expected = self._run.uploaded if uploading else (0, 0)
        self._show(
            RoundOpen(
                sum=self._name,
                round=self._run.rounds[self._number],
                number=self._number + 1,
                of=len(self._run.rounds),
                sites_in=len(self._run.answered),
                sites_waited_for=len(self._run.waiting_for),
                sites_lost=len(self._run.lost),
                uploaded_bytes=came,
                expected_bytes=expected,
                seconds_left=self._seconds_left(now, came, expected),
            )
        )

    def _seconds_left(self, now: float, came: int, expected: int) -> float | None:
        if self._mean is None or self._number < self._upload:
            return None
        after = self._mean * (len(self._run.rounds) - 1 - self._number)
        if self._number > self._upload:
            left = after + max(0.0, self._mean - (now - self._started))
            return round(left, 1) or None  # a last round that takes longer than the others did
        if self._pace_from is None or not came:
            return None
        return round(after + (now - self._pace_from) * (expected - came) / came, 1)
