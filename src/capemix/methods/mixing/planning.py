"""Plans to mix rows, with the defaults that go with the scheme and the accountant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from capemix.errors import member
from capemix.facts import Facts, unnamed_columns
from capemix.federation import Form, MaskKind, Scheme, SiteNoise
from capemix.methods.mixing import MIXTURES, Accountant, Mixing, Pool
from capemix.plan import Plan, make_plan
from capemix.queries import Relation, Selection
from capemix.sums.query import NoiseLaw, SumQuery
from capemix.sums.steps import Normalise, PublicMap


def usual_mixing(
    *,
    scheme: Scheme | str,
    form: Form | str = Form.JOINT,
    accountant: Accountant | str | None = None,
    pool: Pool | str | None = None,
    selection: Selection | str | None = None,
    label_noise: bool | None = None,
    **config: Any,
) -> Mixing:
    """The config, with what was not said (None) as the scheme and the accountant have it.

    The sound accountant draws by Poisson selection and leaves labels alone; the paper's draws
    fixed-size subsets (where it can) and noises labels.
    """
    accounted = member(Accountant, accountant or Accountant.SOUND, "accountant")
    pooled = member(Pool, pool or Pool.CLASS, "pool")
    paper, algorithm1 = accounted is Accountant.PAPER, scheme == "cape" and form == "algorithm1"
    if selection is None:
        fixed = algorithm1 or (paper and scheme != "cape")
        selection = Selection.FIXED if fixed else Selection.POISSON
    if label_noise is None:
        label_noise = paper or algorithm1 or pooled is Pool.ALL
    given = {name: value for name, value in config.items() if value is not None}
    return Mixing(
        accountant=accounted,
        pool=pooled,
        selection=member(Selection, selection, "selection"),
        label_noise=label_noise,
        **given,
    )


def plan_mixtures(
    *,
    width: int,
    class_sizes: tuple[int, ...] | None,
    samples: int | tuple[int, ...],
    mixture: int,
    clip: float | None = 1.0,
    classes: tuple[str | int, ...] | None = None,
    normalise: Normalise | None = None,
    pool: Pool | str | None = None,
    selection: Selection | str | None = None,
    label_noise: bool | None = None,
    accountant: Accountant | str | None = None,
    printed_theorem: bool = False,
    redraw: int | None = None,
    scheme: Scheme | str = Scheme.CENTRAL,
    form: Form | str = Form.JOINT,
    sites: int = 1,
    colluding: int | None = None,
    dropouts: int = 0,
    masks: MaskKind | str | None = None,
    peers: int | None = None,
    site_noise: SiteNoise | str | None = None,
    relation: Relation | str | None = None,
    law: NoiseLaw | str | None = None,
    delta: float = 1e-5,
    noise: float | None = None,
) -> Plan:
    """A plan to mix rows of ``width`` columns that have no names, by declared numbers alone.

    ``noise`` is TAU, the deviation of the noise on a released mixture; None: calibrate it.
    """
    mixing = usual_mixing(
        scheme=scheme,
        form=form,
        accountant=accountant,
        pool=pool,
        selection=selection,
        label_noise=label_noise,
        samples=samples,
        mixture=mixture,
        clip=clip,
        printed_theorem=printed_theorem,
        redraw=redraw,
    )
    facts = Facts(
        features=unnamed_columns(width),
        label="label",
        classes=tuple(range(len(class_sizes or ()))) if classes is None else classes,
        class_sizes=class_sizes,
        normalise=PublicMap() if normalise is None else normalise,
    )
    plan = make_plan(
        facts,
        mixing,
        scheme=scheme,
        form=form,
        sites=sites,
        colluding=colluding,
        dropouts=dropouts,
        masks=masks,
        peers=peers,
        site_noise=site_noise,
        relation=relation,
        law=law,
        delta=delta,
        multiplier=0.0 if noise == 0.0 else None,  # without noise, other plans are allowed
    )
    return plan if noise is None else with_noise(plan, noise)


def with_noise(plan: Plan, noise: float) -> Plan:
    """The plan whose released mixtures have noise of deviation ``noise``."""
    if noise == 0.0:
        return replace(plan, multiplier=0.0)
    unit = replace(plan, multiplier=1.0).query(MIXTURES).deviation
    return replace(plan, multiplier=noise / unit)


def mixture_sum(plan: Plan) -> SumQuery:
    """The sum of drawn rows that a plan to mix rows asks for."""
    if not isinstance(plan.method, Mixing):
        raise ValueError("the plan mixes no rows")
    return plan.query(MIXTURES, plan.method.statistic(plan))
