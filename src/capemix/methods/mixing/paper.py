"""Mixing as the paper has it: subsets of a fixed size, and Theorem 1 as it was published."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from capemix.accounting.mint import PublishedClaim
from capemix.accounting.theorem1 import Theorem1
from capemix.errors import InputError
from capemix.queries import Relation

if TYPE_CHECKING:
    from capemix.methods.mixing import Mixing
    from capemix.plan import Plan


def check_fixed(mixing: Mixing, plan: Plan) -> None:
    """Refuse a plan that cannot draw subsets of a fixed size."""
    if plan.federation.masked and not plan.federation.averaged:
        raise InputError(
            "selection",
            "cannot be fixed-size in the joint form: it would need a dealer",
            value=mixing.selection,
            fix="use poisson, or the form algorithm1",
        )
    if plan.relation is Relation.ADD_REMOVE:
        raise InputError(
            "relation",
            "must be replace-one with fixed-size selection",
            value=plan.relation,
            fix="use replace-one, or Poisson selection",
        )
    if plan.facts.class_sizes is None:
        raise InputError(
            "class_sizes",
            "must be declared for fixed-size selection: it needs public lower bounds",
            fix="give them, or use Poisson selection",
        )


def claim(mixing: Mixing, plan: Plan) -> PublishedClaim:
    """Of the plan's noise; of a multiplier of 1 until it is calibrated."""
    noise = mixing.noise(plan if plan.multiplier is not None else replace(plan, multiplier=1.0))
    return PublishedClaim(
        theorem=theorem(mixing, plan),
        noise=noise,
        theorem_noise=noise / plan.federation.theorem_factor,
        multiplier=noise * mixing.mixture / mixing.clip_norm(plan.known),
    )


def theorem(mixing: Mixing, plan: Plan) -> Theorem1:
    """Theorem 1 as a reader would compute it: p = lK/N, as if classes were balanced; for one pool
    of all records, where it has T draws in all of them, p = l/N."""
    return Theorem1(
        samples=sum(mixing.draws(plan)),
        rate=mixing.mixture * mixing.pools(plan) / sum(mixing.class_sizes(plan)),
        mixture=mixing.mixture,
        clip=mixing.clip_norm(plan.known),
        printed=mixing.printed_theorem,
    )
