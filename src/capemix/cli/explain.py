"""What a plan's cost is made of: each sum's, the tight and the conservative figure, and what more
epsilon would buy."""

from __future__ import annotations

from typing import Any

from capemix.cli.show import cost_lines, print_table
from capemix.errors import InputError
from capemix.plan import Plan


def explanation_of(plan: Plan) -> dict[str, Any]:
    """``sums`` has a line for each sum. ``epsilon_conservative`` is what the same noise costs by
    Rényi accounting, which is never less than what is proved. ``one_more_epsilon`` says by which
    factor the noise of every sum would shrink."""
    guarantee = plan.guarantee()
    found: dict[str, Any] = {"sums": cost_lines(plan.budget(), guarantee)}
    if not plan.countable or guarantee.epsilon is None:
        return found
    found["epsilon_conservative"] = plan.conservative_epsilon()
    more = guarantee.epsilon + 1.0
    try:
        found["one_more_epsilon"] = {"epsilon": more, "noise_factor": _less_noise(plan, more)}
    except InputError:  # nothing more can be delivered
        found["one_more_epsilon"] = None
    return found


def _less_noise(plan: Plan, epsilon: float) -> float | None:
    """The noise at this epsilon, over the plan's own."""
    then = plan.calibrate(epsilon).multiplier
    return then / plan.multiplier if then and plan.multiplier else None


def print_explanation(found: dict[str, Any]) -> None:
    print_table("What each sum costs, against the strongest observer", found["sums"])
    if found.get("epsilon_conservative") is not None:
        print(
            f"By Rényi accounting the same noise costs epsilon {found['epsilon_conservative']:.4g}:"
            " a looser bound, which is not used."
        )
    more = found.get("one_more_epsilon")
    if more and more["noise_factor"]:
        less = 1 - more["noise_factor"]
        print(f"One more epsilon ({more['epsilon']:.4g}) buys {less:.0%} less noise in every sum.")
