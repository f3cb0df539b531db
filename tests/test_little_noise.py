"""Too little noise for the lattice: nothing is promised of it, a release of it is refused with a
reason before any row is read, and no draw breaks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from capemix.api import synthesize
from capemix.data import LabeledRows, partition
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.guarantee import Status
from capemix.methods import Method
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.mixing import Mixing
from capemix.plan import make_plan
from capemix.sums.steps import PublicMap

METHODS: dict[str, Method] = {
    "mixing": Mixing(samples=20, mixture=10),
    "class Gaussians": ClassGaussian(samples=20),
}
WHO: dict[int, dict[str, Any]] = {1: {}, 4: {"scheme": "cape", "sites": 4}}


def rows() -> LabeledRows:
    rng = np.random.default_rng(0)
    return LabeledRows(
        rng.random((200, 2)), (np.arange(200) % 2).astype(np.int64), (0, 1), ("a", "b")
    )


@pytest.mark.parametrize("multiplier", [2e-5, 1e-4, 2e-4])
@pytest.mark.parametrize("sites", WHO)
@pytest.mark.parametrize("name", METHODS)
def test_too_little_noise_promises_nothing_and_breaks_no_draw(
    name: str, sites: int, multiplier: float
) -> None:
    facts = Facts(("a", "b"), "y", (0, 1), (100, 100), PublicMap())
    plan = make_plan(facts, METHODS[name], multiplier=multiplier, **WHO[sites])
    guarantee = plan.guarantee()
    assert guarantee.status is Status.NO_PRIVACY
    assert guarantee.epsilon is None
    with pytest.raises(InputError, match="gives no privacy"):
        plan.costs()
    own = rows() if sites == 1 else partition(rows(), sites, "iid", seed=1)
    if min(query.site_deviation for query in plan.queries()) < 1.0:
        with pytest.raises(InputError, match="noise is too little"):
            synthesize(plan, own)
    else:
        assert math.isfinite(float(synthesize(plan, own).features.sum()))
