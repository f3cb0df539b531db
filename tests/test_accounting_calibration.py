"""Calibration undoes accounting, and what it returns keeps the target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

from capemix.accounting.calibration import smallest_noise
from capemix.accounting.sampled import epsilon_rdp
from capemix.accounting.theorem1 import Theorem1
from capemix.errors import EpsilonError, InputError
from capemix.queries import Participation, Relation, Selection

DELTA = 1e-5
CLASSES = [Participation(draws=6000, selected=64, among=6000)] * 10
SIZED = [Participation(draws=6000, selected=64, among=6000, selection=Selection.FIXED)]
PAPER = Theorem1(samples=60000, rate=4 / 6000, mixture=4, clip=1.0)


def paper(noise: float) -> float:
    return PAPER.epsilon(noise, DELTA)


def add_remove(noise: float) -> float:
    return epsilon_rdp(CLASSES, noise, DELTA, Relation.ADD_REMOVE)


def replace_one(noise: float) -> float:
    return epsilon_rdp(CLASSES, noise, DELTA, Relation.REPLACE_ONE)


def fixed_size(noise: float) -> float:
    return epsilon_rdp(SIZED, noise, DELTA, Relation.REPLACE_ONE)


@pytest.mark.parametrize("target", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("account", [paper, add_remove, replace_one, fixed_size])
def test_accounting_and_calibration_undo_each_other(
    account: Callable[[float], float], target: float
) -> None:
    begin = time.process_time()
    noise = smallest_noise(account, target)
    assert time.process_time() - begin < 5
    assert account(noise) <= target
    assert account(noise) == pytest.approx(target, rel=1e-3)
    assert smallest_noise(account, account(2 * noise)) == pytest.approx(2 * noise, rel=1e-3)


@pytest.mark.parametrize("start", [1e-6, 1.0, 1e6])
def test_the_start_does_not_matter(start: float) -> None:
    noise = smallest_noise(lambda sigma: 1 / sigma, 4.0, start=start)
    assert 1 / noise <= 4.0
    assert noise == pytest.approx(0.25, rel=2e-5)


def test_takes_few_evaluations() -> None:
    calls = 0

    def account(noise: float) -> float:
        nonlocal calls
        calls += 1
        return 1 / noise

    smallest_noise(account, 3.0)
    assert calls <= 25


def test_keeps_the_target_across_a_jump() -> None:
    def account(noise: float) -> float:
        return 1.0 if noise >= 0.7 else 5.0

    noise = smallest_noise(account, 2.0)
    assert account(noise) == 1.0
    assert noise == pytest.approx(0.7, rel=3e-5)


def test_infinite_cost_at_little_noise_is_no_obstacle() -> None:
    noise = smallest_noise(lambda sigma: math.inf if sigma < 8 else 80 / sigma, 5.0, start=1.0)
    assert noise == pytest.approx(16.0, rel=3e-5)


def test_a_target_beyond_which_nothing_is_proved_is_refused_with_what_can_be() -> None:
    def account(noise: float) -> float:
        return 1 / noise if noise >= 0.02 else math.inf

    assert smallest_noise(account, 49.9) == pytest.approx(1 / 49.9, rel=3e-5)
    with pytest.raises(EpsilonError, match=r"got 1000.*at most (49.9|50), or inf") as refused:
        smallest_noise(account, 1000.0)
    assert refused.value.most == pytest.approx(50.0, rel=1e-4)


def test_no_privacy_asked_needs_no_noise() -> None:
    assert smallest_noise(add_remove, math.inf) == 0.0


def test_a_cost_that_is_always_kept_needs_next_to_none() -> None:
    assert smallest_noise(lambda _: 0.0, 1.0) < 1e-20


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan])
def test_a_target_that_is_not_positive_is_refused(target: float) -> None:
    with pytest.raises(InputError, match="not positive"):
        smallest_noise(add_remove, target)


@pytest.mark.parametrize(
    "account", [paper, lambda noise: 0.02 + 1 / noise, lambda _noise: math.inf]
)
def test_a_target_below_what_any_noise_gives_is_refused(
    account: Callable[[float], float],
) -> None:
    with pytest.raises(InputError, match="cannot be reached"):
        smallest_noise(account, 0.01)
