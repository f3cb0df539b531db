"""An engine refuses rows that the plan is not for, before anything is charged or drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capemix.api import synthesize
from capemix.data import LabeledRows, UnlistedRows
from capemix.data.arrays import cells_of_arrays
from capemix.engines.local import LocalEngine
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.ledger import Ledger, Limit
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.mixing import Mixing
from capemix.plan import Plan, make_plan
from capemix.protocol.step import ReleaseStep
from capemix.randomness.source import SystemSource
from capemix.run import run
from capemix.statistics.moments import NormHistogram
from capemix.statistics.projection import Projection
from capemix.sums.steps import ColumnMap, PublicMap
from world import labeled_rows


def people(names: tuple[str, ...] = ("age", "bmi")) -> LabeledRows:
    rng = np.random.default_rng(0)
    columns = {"age": rng.normal(50, 5, 400), "bmi": rng.normal(25, 2, 400)}
    rows = labeled_rows(
        np.stack([columns[name] for name in names], axis=1), np.arange(400) % 2, (0, 1)
    )
    return replace(rows, feature_names=names)


def a_plan(sites: int = 1) -> Plan:
    facts = Facts.of(people(), normalise=PublicMap.of_range(0, 100))
    who = {"scheme": "cape", "sites": sites} if sites > 1 else {}
    return make_plan(facts, ClassGaussian(samples=40), **who).calibrate(10.0)  # type: ignore[arg-type]


def test_columns_in_another_order_are_refused_and_not_added_up_by_their_places() -> None:
    swapped = people(("bmi", "age"))
    with pytest.raises(InputError, match=r"in its order: column 1 is 'age' \(got bmi\)"):
        synthesize(a_plan(4), [people(), people(), people(), swapped])
    plan = a_plan(4)
    chosen = swapped.columns(plan.facts.features)
    release = synthesize(plan, [people(), people(), people(), chosen])
    assert release.features[:, 0].mean() == pytest.approx(50, abs=5)


def test_unlisted_rows_of_another_width_are_refused_before_the_ledger_is_charged(
    tmp_path: Path,
) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db").lineage("people")
    ledger.set_limit(Limit(10.0, 2e-5))
    rows = UnlistedRows.of(cells_of_arrays(np.ones((30, 2)), np.arange(30) % 2), "label")
    facts = Facts(("a", "b", "c"), "label", None)
    plan = make_plan(facts, ClassGaussian()).calibrate(1.0)
    with pytest.raises(InputError, match="must have the plan's 3 columns"):
        run(plan, LocalEngine(rows, SystemSource()), ledger)
    assert ledger.account().total.charges == 0


def test_a_sum_that_measures_a_fact_looks_at_records_as_they_are() -> None:
    """A frame has a site keep what it makes of all records, which a plan that mixes counts on
    nowhere; and images are set upright only where the release has images of that shape."""
    facts = Facts(tuple(f"x{n}" for n in range(16)), "y", (0, 1))
    plan = make_plan(facts, Mixing(samples=20, mixture=4), scheme="cape", sites=4).calibrate(4.0)
    ranges = ColumnMap((0.0,) * 16, (1.0,) * 16, (-1.0,) * 16, (1.0,) * 16)
    plain = Projection(ranges, 16, 2)
    turned = Projection(ranges, 16, 2, basis=np.eye(16))

    def misfit(frame: Projection) -> str | None:
        return ReleaseStep(bytes(16), plan, "clip norm", NormHistogram(frame)).misfit()

    assert misfit(plain) is None
    assert "as they are" in str(misfit(turned))
    upright = Projection(PublicMap.of_range(0, 1), 16, 2, upright=(4, 4))
    assert "upright" in str(misfit(upright))
