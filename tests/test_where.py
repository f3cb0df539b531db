"""Conditions choose among released rows: strictly read, at no cost, and with no row that does not
meet them."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capemix.api import Synthesizer
from capemix.data import Cells, Table
from capemix.data.schema import Category, Identifier, Moment, Number
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.where import SIGNS, Condition, conditions, evenly, matching
from conftest import Capemix

STAFF = Table(
    columns=(
        Number("age", 18, 80, type="integer"),
        Number("pay <= cap", 0.0, 9000.0),
        Category("sex", ("F", "M"), missing=True),
        Category("manager", (False, True)),
        Moment("since", "2001-01-01", "2020-12-31", type="date", missing=True),
        Identifier("badge"),
    ),
    label=Category("left", ("no", "yes")),
)


YEARS = [*range(2001, 2021), 0]


def staff(records: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 81, records),
            "pay <= cap": rng.uniform(1000, 8000, records).round(2),
            "sex": rng.choice(["F", "M", None], records),
            "manager": rng.random(records) < 0.2,
            "since": [f"{year}-06-30" if year else None for year in rng.choice(YEARS, records)],
            "badge": [f"B{at}" for at in range(records)],
            "left": rng.choice(["no", "yes"], records),
        }
    )


@pytest.fixture(scope="module")
def fitted() -> Synthesizer:
    asked: dict[str, Any] = {"schema": STAFF, "method": "class-gaussian", "test_seed": 1}
    return Synthesizer(20.0, **asked).fit(staff())


@pytest.fixture(scope="module")
def release(fitted: Synthesizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted.release_.save(tmp_path_factory.mktemp("staff") / "release")


# -- from the command line -------------------------------------------------------------------------


def test_rows_that_meet_all_conditions_are_written(
    capemix: Capemix, release: Path, tmp_path: Path
) -> None:
    asked = ("--where", "age >= 50", "--where", "sex=F", "--where", "pay <= cap < 6e3")
    words = ("sample", release, *asked, "--json")
    whole = pd.read_parquet(release / "synthetic.parquet")
    fit = whole[(whole["age"] >= 50) & (whole["sex"] == "F") & (whole["pay <= cap"] < 6000)]
    found = capemix(*words, "--out", tmp_path / "all.parquet").json
    assert (found["rows"], found["fit"], found["of"]) == (len(fit), len(fit), len(whole))
    written = pd.read_parquet(tmp_path / "all.parquet")
    assert written.equals(fit.reset_index(drop=True))
    few = capemix(*words, "--rows", 5, "--out", tmp_path / "few.csv").json
    assert few["rows"] == 5
    assert list(pd.read_csv(tmp_path / "few.csv").columns) == list(whole.columns)
    many = capemix("sample", release, *asked, "--rows", 999, "--out", tmp_path / "many.csv")
    assert f"There are no more than {len(fit)}" in many.out


def test_a_release_has_nothing_new_beside_it(
    capemix: Capemix, release: Path, tmp_path: Path
) -> None:
    ran = capemix("sample", release, "--out", release / "more.csv")
    assert "--out lies in a release" in ran.err
    assert "--out has an unknown suffix" in capemix("sample", release, "--out", "x.txt").err
    (tmp_path / "there.csv").write_text("")
    assert (
        "--out is there already" in capemix("sample", release, "--out", tmp_path / "there.csv").err
    )
    away = tmp_path / "away" / "x.csv"
    assert "--out lies in no folder that there is" in capemix("sample", release, "--out", away).err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("salary > 3", "--where names no column of the release (got salary)"),
        ("> 3", "--where is no condition"),
        ("age 50", "--where is no condition"),
        ("age >= old", "--where has no value of 'age' (got old); it is: integer from 18 to 80."),
        ("age >= ", "--where has no value of 'age'"),
        ("sex = X", '--where has no value of \'sex\' (got X); it is: "F", "M", or missing.'),
        ("manager = ", "--where has no value of 'manager'"),
        ("sex > F", "--where has no order for 'sex', which is a category (got sex > F)"),
        ("left = maybe", "--where has no value of 'left'"),
        ("since > lately", "--where has no value of 'since' (got lately); it is: date from 2001"),
        ("badge = B7", "--where asks for what is made anew (got badge)"),
        ("age > 800", "--where is met by no row of the release"),
    ],
)
def test_a_condition_that_says_nothing_is_refused_by_its_column(
    capemix: Capemix, release: Path, tmp_path: Path, text: str, said: str
) -> None:
    ran = capemix("sample", release, "--where", text, "--out", tmp_path / "x.csv")
    assert ran.code != 0
    assert said in " ".join(ran.err.split())
    assert not (tmp_path / "x.csv").exists()


# -- from Python -----------------------------------------------------------------------------------


def test_values_lists_and_ranges_choose_rows(fitted: Synthesizer) -> None:
    where = {"age": (30, 50), "sex": ["F", None], "manager": False, "left": "yes"}
    found, labels = fitted.sample(where=where)
    assert ((found["age"] >= 30) & (found["age"] <= 50)).all()
    assert set(found["sex"].fillna("none")) == {"F", "none"}
    assert set(found["manager"]) == {False}
    assert set(labels) == {"yes"}
    rows = len(labels)
    many, names = fitted.sample(3 * rows, where=where)
    assert many["age"].tolist()[:rows] == found["age"].tolist()  # those that were released, first
    assert len(many) == len(names) == 3 * rows
    assert ((many["age"] >= 30) & (many["age"] <= 50)).all()
    assert set(names) == {"yes"}
    assert fitted.sample(3 * rows, where=where)[0].equals(many)  # the same call, the same rows
    with pytest.raises(InputError, match=r"is met by 0 of [\d,]+ rows that were drawn"):
        fitted.sample(5, where={"age": (30, 50), "since": ("2015-01-01", "2000-01-01")})
    few, _ = fitted.sample(4, where=where)
    assert len(few["age"]) == 4
    late, _ = fitted.sample(where={"since": ("2015-01-01", None)})
    assert late["since"].astype(str).min() >= "2015-01-01"
    unknown, _ = fitted.sample(where={"since": None})
    assert unknown["since"].isna().all()
    open_end, _ = fitted.sample(where={"age": (60, None)})
    assert open_end["age"].min() >= 60
    for wrong, said in (
        ({"salary": 3}, "names no column"),
        ({"age": (1, 2, 3)}, "must have two ends"),
        ({"age": (70, 20)}, "is met by no released row"),
        ({"age": "old"}, "has no value of 'age'"),
    ):
        with pytest.raises(InputError, match=said):
            fitted.sample(where=wrong)


PYTHONS = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
NUMBERS = st.one_of(st.integers(-20, 20), st.floats(-20, 20))


@given(st.lists(NUMBERS, min_size=1, max_size=30), NUMBERS, st.sampled_from(sorted(SIGNS)))
def test_numbers_compare_as_python_compares_them(
    values: list[float], wanted: float, sign: str
) -> None:
    facts = Facts(("a",), "y", (0, 1))
    cells = Cells(len(values), {"a": np.array(values, dtype=object)}, "y")
    truth = [PYTHONS[sign](value, wanted) for value in values]
    for asked in (Condition("a", sign, (wanted,)), Condition.parse(f"a{sign}{wanted!r}", ["a"])):
        assert matching(facts, cells, [asked]).tolist() == truth
    assert conditions({"a": wanted}) == [Condition("a", "=", (wanted,))]


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 50))
def test_rows_are_picked_among_those_that_fit_and_none_twice(fit: list[bool], wanted: int) -> None:
    found = evenly(np.flatnonzero(fit), wanted).tolist()
    assert all(fit[place] for place in found)
    assert len(set(found)) == len(found) == min(sum(fit), wanted)
