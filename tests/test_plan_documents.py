"""A plan comes back from its text as it was, for every method; a text that is no plan, or a plan
that cannot keep its promise, is refused."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from capemix import documents
from capemix.data.schema import Category, Number, Table
from capemix.errors import CapemixError, InputError
from capemix.facts import Facts, map_of
from capemix.methods import BUILT_IN, Method
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.image_diffusion import ImageDiffusion
from capemix.methods.mixing import Mixing
from capemix.methods.mixing.planning import plan_mixtures
from capemix.methods.tables import Tables
from capemix.plan import Plan, make_plan
from capemix.sums.steps import ColumnMap, PublicMap, SiteZScore

TABLE = Table((Number("a", -4, 5), Category("b", ("u", "v"))), Category("y", ("no", "yes")))
MAP = ColumnMap((0.0,) * 2, (1.0,) * 2, (-1.0,) * 2, (1.0,) * 2)
PAIR = Facts(("a", "b"), "y", ("no", "yes"))
DECLARED = replace(PAIR, class_sizes=(50, 60), normalise=PublicMap.of_range(0, 1))
IMAGES = Facts(
    tuple(map(str, range(64))), "y", (0, 1), normalise=PublicMap.of_range(0, 1), image_shape=(8, 8)
)


def calibrated(facts: Facts, method: Method, **who: Any) -> Plan:
    return make_plan(facts, method, **who).calibrate(2.0)


def measured(method: Method) -> Plan:
    plan = calibrated(PAIR, method)
    found = replace(PAIR, class_sizes=(50, 60), normalise=MAP)
    found = replace(found, clip_norm=1.0) if plan.drawn else found
    return replace(plan, measured=found)


PLANS: dict[str, Plan] = {
    "mixing": calibrated(DECLARED, Mixing(samples=(3, 4), mixture=5)),
    "mixing, not calibrated": make_plan(DECLARED, Mixing()),
    "mixing, no privacy": make_plan(DECLARED, Mixing()).calibrate(math.inf),
    "mixing, to be measured": calibrated(PAIR, Mixing()),
    "mixing, measured": measured(Mixing()).settled(),
    "mixing, redrawn": calibrated(DECLARED, Mixing(redraw=20, tune=True)),
    "mixing, a list": calibrated(replace(PAIR, classes=None), Mixing()),
    "dp-mix": calibrated(DECLARED, Mixing(pool="all", label_noise=True)),  # type: ignore[arg-type]
    "published": plan_mixtures(
        width=2, class_sizes=(50, 60), samples=9, mixture=2, accountant="paper",
        normalise=SiteZScore(), printed_theorem=True,
    ).calibrate(9.0),
    "class Gaussians": calibrated(PAIR, ClassGaussian()),
    "class Gaussians, measured and chosen": replace(
        measured(ClassGaussian(samples=7)), chosen={"rank": 1, "octave": 7}
    ),
    "class Gaussians of a table": calibrated(
        Facts(TABLE.names, "y", TABLE.classes, normalise=map_of(TABLE), table=TABLE),
        ClassGaussian(),
    ),
    "class Gaussians over sites": calibrated(
        DECLARED, ClassGaussian(), scheme="cape", sites=60, colluding=15, peers=18
    ),
    "a table": calibrated(
        Facts(TABLE.names, "y", TABLE.classes, normalise=map_of(TABLE), table=TABLE), Tables()
    ),
    "a table, chosen": replace(
        calibrated(DECLARED, Tables(samples=9), scheme="cape", sites=4),
        chosen={"pairs": 1, "fineness": 16, "bins": 5, "slices": 9, "rank": 0, "octave": 0},
    ),
    "image diffusion": calibrated(IMAGES, ImageDiffusion(rounds=2, channels=8, deskew=True)),
    "image clusters": calibrated(IMAGES, ImageClusters(soft_labels=True, deskew=True)),
    "image clusters, chosen": replace(
        calibrated(IMAGES, ImageClusters(), scheme="cape", sites=4, masks="gaussian"),
        chosen={"rank": 3, "clusters": 2},
    ),
}  # fmt: skip


def read(found: Any) -> Plan:
    return documents.from_json(Plan, found, name="the plan")


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_comes_back_from_its_text(name: str) -> None:
    plan = PLANS[name]
    text = json.dumps(documents.as_json(plan), allow_nan=False)
    back = read(documents.parse(text, name="the plan"))
    assert back == plan
    assert (back.names, back.outline) == (plan.names, plan.outline)
    if plan.multiplier is not None:
        assert back.guarantee() == plan.guarantee()


def test_every_method_is_tried_here() -> None:
    assert {plan.method.kind for plan in PLANS.values()} == set(BUILT_IN)


def places(found: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where there is something in a document."""
    inside = found.items() if isinstance(found, dict) else enumerate(found)
    out = []
    for key, part in inside:
        out.append((*path, key))
        if isinstance(part, (dict, list)):
            out += places(part, (*path, key))
    return out


STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 1e308, -1e308, 2**63, "", "magic", [], [None], {}, {"kind": "magic"},
)  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_whatever_stands_in_a_plan_it_is_refused_or_a_plan_that_can_be_accounted(name: str) -> None:
    """One part of it changed at a time: no error but one that says so, and what passes has a
    guarantee, or none to give."""
    whole = documents.as_json(PLANS[name])
    passed = 0
    for path in places(whole):
        if path[0] == "facts" and len(path) > 3:
            continue  # names, and the ends of ranges
        for strange in STRANGE:
            found = copy.deepcopy(whole)
            inner = found
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = strange
            try:
                plan = read(found)
                if plan.multiplier is None or (plan.opening and plan.opening_multiplier is None):
                    continue
                guarantee = plan.guarantee()
                for query in plan.queries():
                    assert query.l2_norm_bound > 0
                    assert query.noise_multiplier >= 0
                    assert query.site_deviation >= 0
            except CapemixError:
                continue
            passed += 1
            assert guarantee.epsilon is None or guarantee.epsilon >= 0
    assert passed or PLANS[name].multiplier is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"multiplier": -1.0}, "noise must be 0 or more"),
        ({"opening_multiplier": -1.0}, "noise must be 0 or more"),
        ({"epsilon": -1.0}, "epsilon must be above 0"),
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"delta": 0.0}, "delta must be between"),
        ({"chosen": {"rank": 1}}, "chosen has no meaning"),
        ({"measured": documents.as_json(DECLARED)}, "measured must be the declared facts"),
        ({"seed": 7}, "part that is not known"),
        ({"law": "magic"}, "law"),
        ({"method": {"kind": "magic"}}, "unknown kind"),
        ({"method": {"kind": "mixing", "seed": 1}}, "part that is not known"),
        ({"method": {"kind": "mixing", "clip": -1.0}}, "clip must be a positive number"),
    ],
    ids=str,
)
def test_a_plan_that_cannot_keep_its_promise_is_refused(change: dict[str, Any], says: str) -> None:
    found = documents.as_json(PLANS["mixing"])
    assert read(found) == PLANS["mixing"]
    with pytest.raises(InputError, match=says):
        read({**found, **change})


def test_a_z_score_is_not_smuggled_in_as_a_measured_map() -> None:
    """It would count as paid for, though what a record adds depends on the others."""
    found = documents.as_json(PLANS["mixing, measured"])
    found["measured"]["normalise"] = {"kind": "site-zscore"}
    with pytest.raises(InputError, match="measured must be the declared facts"):
        read(found)
