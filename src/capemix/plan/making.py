"""Plans from options and from JSON: the defaults that go with a scheme and an accountant."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

from capemix.errors import InputError
from capemix.federation import (
    Federation,
    Form,
    MaskKind,
    Scheme,
    SiteNoise,
    default_colluding,
    peers_for,
)
from capemix.guarantee import Guarantee
from capemix.plan.plan import Accountant, BudgetLine, NoiseLaw, Plan
from capemix.prepare.moments import Contribution, contribution_from_json
from capemix.prepare.steps import Coverage, Normalise, PublicMap, normalise_from_json
from capemix.queries import Relation, Selection
from capemix.synthesizers.mixing import Mixing, Pool, spread

_Kind = TypeVar("_Kind", bound=StrEnum)


def _member(kind: type[_Kind], value: str, field: str) -> _Kind:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise InputError(field, "is unknown", value=value, fix=f"use one of {known}") from None


def _site_noise(
    asked: SiteNoise | str | None, averaged: bool, algorithm1: bool, paper: bool
) -> SiteNoise:
    """How a site's noise is scaled, if the scheme and the accountant leave a choice."""
    if algorithm1:
        known = [SiteNoise.MATCHED, SiteNoise.APPENDIX] if paper else [SiteNoise.MATCHED]
    elif averaged:
        known = [SiteNoise.SITES, SiteNoise.SQRT_SITES] if paper else [SiteNoise.SOUND]
    else:
        known = [SiteNoise.MATCHED]
    chosen = known[0] if asked is None else _member(SiteNoise, asked, "--site-noise")
    if chosen not in known or (asked is not None and not averaged):
        fix = f"use one of {', '.join(known)}" if averaged else "leave it out"
        raise InputError(
            "--site-noise", "does not fit the scheme and the accountant", value=chosen, fix=fix
        )
    return chosen


def plan_from_json(found: dict[str, Any]) -> Plan:
    """The plan that `Plan.as_json` wrote. Anything that does not come back the same is refused."""
    try:
        plan = make_plan(
            width=found["width"],
            class_sizes=tuple(found["class_sizes"]),
            samples=tuple(found["samples"]),
            mixture=found["mixture"],
            pool=found["pool"],
            clip=found["clip"],
            classes=tuple(found["classes"]),
            normalise=normalise_from_json(found["normalise"]),
            scheme=found["scheme"],
            form=found["form"] or Form.JOINT,
            sites=found["sites"],
            colluding=found["colluding"],
            dropouts=found["dropouts"],
            masks=found["masks"],
            peers=found["peers"],
            site_noise=found["site_noise"],
            selection=found["selection"],
            relation=found["relation"],
            accountant=found["accountant"],
            law=found["law"],
            label_noise=found["label_noise"],
            printed_theorem=found["printed_theorem"],
            delta=found["delta"],
            noise=found["noise"],
            sizes=Coverage(found["sizes"]),
            redraw=found["redraw"],
            contribution=None
            if found["contribution"] is None
            else contribution_from_json(found["contribution"]),
        )
        same = plan.as_json() == found
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        same = False
    if not same:
        raise InputError(
            "the plan", "cannot be read back as it was written", fix="propose it again"
        )
    return plan


def make_plan(
    *,
    width: int,
    class_sizes: tuple[int, ...],
    samples: int | tuple[int, ...],
    mixture: int,
    pool: Pool | str = Pool.CLASS,
    clip: float = 1.0,
    classes: tuple[str | int, ...] = (),
    normalise: Normalise | None = None,
    scheme: Scheme | str = Scheme.CENTRAL,
    form: Form | str = Form.JOINT,
    sites: int = 1,
    colluding: int | None = None,
    dropouts: int = 0,
    masks: MaskKind | str | None = None,
    peers: int | None = None,
    site_noise: SiteNoise | str | None = None,
    selection: Selection | str | None = None,
    relation: Relation | str | None = None,
    accountant: Accountant | str = Accountant.SOUND,
    law: NoiseLaw | str | None = None,
    label_noise: bool | None = None,
    printed_theorem: bool = False,
    delta: float = 1e-5,
    noise: float | None = None,
    sizes: Coverage = Coverage.PUBLIC,
    earlier: Guarantee | None = None,
    looks: tuple[BudgetLine, ...] = (),
    contribution: Contribution | None = None,
    redraw: int | None = None,
) -> Plan:
    """A plan with the defaults that go with the scheme and the accountant.

    The sound accountant draws by Poisson selection on the lattice and leaves labels alone; the
    paper's draws fixed-size subsets (where it can) and noises labels. ``pool`` "all" is DP-Mix: it
    mixes records of all classes, and their labels.
    """
    pool = _member(Pool, pool, "pool")
    scheme = _member(Scheme, scheme, "scheme")
    form = _member(Form, form, "form")
    accountant = _member(Accountant, accountant, "accountant")
    paper = accountant is Accountant.PAPER
    algorithm1 = scheme is Scheme.CAPE and form is Form.ALGORITHM1
    averaged = algorithm1 or scheme is Scheme.CONVENTIONAL
    for option, value, has_meaning in (
        ("--form", form, scheme is Scheme.CAPE or form is Form.JOINT),
        ("--masks", masks, scheme is Scheme.CAPE or masks in (None, MaskKind.RING)),
        ("--peers", peers, scheme is Scheme.CAPE or peers is None),
        ("--colluding", colluding, scheme is not Scheme.CENTRAL or not colluding),
        ("--dropouts", dropouts, scheme is not Scheme.CENTRAL or not dropouts),
    ):
        if not has_meaning:
            raise InputError(
                option,
                f"has no meaning for --scheme {scheme}",
                value=value,
                fix="leave it out, or use --scheme cape",
            )
    if printed_theorem and not paper:
        raise InputError(
            "--printed-theorem",
            f"has no meaning for --accountant {accountant}",
            fix="leave it out, or use --accountant paper",
        )
    if scheme is Scheme.CENTRAL:
        sites, colluding, dropouts, masks = 1, 0, 0, MaskKind.RING
    if masks is None:
        masks = MaskKind.GAUSSIAN if algorithm1 else MaskKind.RING
    masks = _member(MaskKind, masks, "masks")
    site_noise = _site_noise(site_noise, averaged, algorithm1, paper)
    if selection is None:
        fixed = algorithm1 or (paper and (scheme is not Scheme.CAPE))
        selection = Selection.FIXED if fixed else Selection.POISSON
    selection = _member(Selection, selection, "selection")
    if relation is None:
        relation = (
            Relation.REPLACE_ONE if paper or selection is Selection.FIXED else Relation.ADD_REMOVE
        )
    if law is None:
        gaussian = scheme is Scheme.CAPE and masks is MaskKind.GAUSSIAN
        law = NoiseLaw.GAUSSIAN if gaussian else NoiseLaw.DISCRETE
    if colluding is None:
        colluding = default_colluding(sites)
    if peers is None and scheme is Scheme.CAPE and masks is MaskKind.RING and sites > 50:
        peers = peers_for(sites, colluding, dropouts, delta * 1e-3)
    if label_noise is None:
        label_noise = paper or algorithm1 or pool is Pool.ALL
    if not isinstance(samples, tuple):
        if not isinstance(samples, int):
            raise InputError("--samples", "must be a whole number", value=samples, fix="round it")
        groups = len(class_sizes) if pool is Pool.CLASS else 1
        if 1 <= samples < groups:
            raise InputError(
                "--samples",
                f"must be at least one mixture for each of the {groups} classes",
                value=samples,
                fix="raise it",
            )
        samples = spread(samples, groups)
    return Plan(
        mixing=Mixing(
            width=width,
            class_sizes=tuple(class_sizes),
            samples=tuple(samples),
            mixture=mixture,
            clip=clip,
            selection=selection,
            label_noise=label_noise,
            sites_averaged=sites if averaged else 1,
            pool=pool,
        ),
        federation=Federation(
            scheme=scheme,
            form=form,
            sites=sites,
            colluding=colluding,
            dropouts=dropouts,
            masks=masks,
            site_noise=site_noise,
            pair_ratio=1.0 if algorithm1 else 100.0,
            peers=peers,
        ),
        normalise=normalise if normalise is not None else PublicMap(),
        accountant=accountant,
        relation=_member(Relation, relation, "relation"),
        law=_member(NoiseLaw, law, "law"),
        delta=delta,
        printed_theorem=printed_theorem,
        noise=noise,
        sizes=sizes,
        earlier=earlier,
        looks=looks,
        classes=classes or tuple(range(len(class_sizes))),
        contribution=contribution,
        redraw=redraw,
    )
