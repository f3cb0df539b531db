"""No released row breaks a constraint that its schema declares, rows that break none are left as
they are, and records are counted as if there were no constraint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capemix import documents
from capemix.api import Synthesizer, synthesize
from capemix.cli.schema import public_lines
from capemix.data import Table, partition
from capemix.data.arrays import cells_of_columns
from capemix.data.constraints import Combinations, Dependence, Inequality
from capemix.data.mending import mended, read_back
from capemix.data.schema import Category, Moment, Number
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.methods.tables import Tables
from capemix.plan import make_plan
from capemix.randomness.source import SeededSource

CITIES = {"Rome": "IT", "Milan": "IT", "Lyon": "FR", "Bern": "CH"}
TRIPS = Table(
    columns=(
        Moment("leaves", "2020-01-01", "2024-12-31", type="date"),
        Moment("returns", "2020-01-01", "2024-12-31", type="date", missing=True),
        Number("least", 0, 500, type="integer"),
        Number("price", 10.0, 900.0, decimals=2),
        Number("most", 5.0, 2000.0, scale="log", missing=True),
        Category("city", tuple(CITIES)),
        Category("land", ("IT", "FR", "CH"), missing=True),
        Category("by", ("train", "plane", "ship")),
    ),
    label=Category("again", ("no", "yes")),
    constraints=(
        Inequality("leaves", "returns"),
        Inequality("least", "price"),
        Inequality("price", "most"),
        Dependence("city", "land", tuple(CITIES.items())),
        Combinations(
            ("land", "by"),
            (("IT", "train"), ("IT", "plane"), ("IT", "ship"), ("FR", "train"), ("CH", "plane")),
        ),
    ),
)
FREE = replace(TRIPS, constraints=())


def trips(records: int = 600, seed: int = 0) -> pd.DataFrame:
    """Of which some break each of the constraints."""
    rng = np.random.default_rng(seed)
    leaves, days = rng.integers(0, 1500, records), rng.integers(-20, 60, records)
    start = pd.Timestamp("2020-03-01")
    returns = [str((start + pd.Timedelta(days=d)).date()) for d in (leaves + days).tolist()]
    price = rng.uniform(10, 900, records).round(2)
    city = rng.choice([*CITIES], records)
    return pd.DataFrame(
        {
            "leaves": [str((start + pd.Timedelta(days=d)).date()) for d in leaves.tolist()],
            "returns": np.where(rng.random(records) < 0.1, None, returns),
            "least": rng.integers(0, 500, records),
            "price": price,
            "most": price * rng.choice([0.9, 1.5, 2, np.nan], records, p=[0.3, 0.3, 0.3, 0.1]),
            "city": city,
            "land": np.where(rng.random(records) < 0.1, "CH", [CITIES[each] for each in city]),
            "by": rng.choice(["train", "plane", "ship"], records),
            "again": rng.choice(["no", "yes"], records),
        }
    )


def coded(frame: pd.DataFrame, table: Table) -> Any:
    return table.rows(cells_of_columns(frame, table.names, table.label_name))


def broken(found: dict[str, Any]) -> np.ndarray:
    """Rows that break a constraint of the trips, looked at by hand."""
    get = {name: pd.Series(list(found[name])) for name in found}
    late = pd.to_datetime(get["leaves"]) > pd.to_datetime(get["returns"])
    dear = (get["least"] > get["price"]) | (get["price"] > get["most"].astype(float))
    allowed = {("IT", by) for by in ("train", "plane", "ship")} | {("FR", "train"), ("CH", "plane")}
    lost = [
        CITIES[city] != land or (land, by) not in allowed
        for city, land, by in zip(get["city"], get["land"], get["by"], strict=True)
    ]
    return np.array(late | dear | np.array(lost))


def chance_of(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return lambda _name, count: rng.random(count)


# -- releases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tables", "class-gaussian"])
def test_no_row_of_a_release_breaks_a_constraint(method: str) -> None:
    frame = trips()
    made = {}
    for table in (TRIPS, FREE):
        asked: dict[str, Any] = {"schema": table, "method": method, "test_seed": 3, "samples": 500}
        made[table] = Synthesizer(4.0, **asked).fit(frame).release_
    kept, free = made[TRIPS].columns(), made[FREE].columns()
    wrong = broken(free)
    assert wrong.sum() > 50
    assert not broken(kept).any()
    # Records were counted as they are: rows that broke nothing are the same.
    assert (made[TRIPS].features[~wrong] == made[FREE].features[~wrong]).all()
    assert (made[TRIPS].labels == made[FREE].labels).all()
    assert made[TRIPS].plan.budget() == made[FREE].plan.budget()


def test_sites_have_the_rows_of_one_curator_that_break_no_constraint() -> None:
    rows = coded(trips(200), TRIPS)
    parts = partition(rows, 3, "iid", seed=1)
    found = []
    for at_hand, who in ((rows, {}), (parts, {"scheme": "cape", "sites": 3})):
        plan = make_plan(Facts.of(rows), Tables(samples=90), multiplier=0.0, **who)
        plan = replace(plan, opening_multiplier=0.0)
        found.append(synthesize(plan, at_hand, source=SeededSource(1)))
    assert (found[0].features == found[1].features).all()
    assert not broken(found[0].columns()).any()


# -- how rows are mended ---------------------------------------------------------------------------


def test_what_is_mended_is_as_little_as_can_be() -> None:
    frame = trips(2000, 5)
    rows = coded(frame, TRIPS)
    before = TRIPS.cells(rows.features, rows.labels)
    out, labels = mended(TRIPS, rows.features, rows.labels, chance_of(1))
    after = TRIPS.cells(out, labels)
    wrong = broken(before)
    assert wrong.any()
    assert not broken(after).any()
    assert (out[~wrong] == rows.features[~wrong]).all()
    assert list(after["city"]) == list(before["city"])  # it decides, and stays
    late = pd.Series(before["leaves"]) > pd.Series(before["returns"])
    swapped = pd.DataFrame(after)[late][["leaves", "returns"]].to_numpy()
    assert (swapped[:, ::-1] == pd.DataFrame(before)[late][["leaves", "returns"]].to_numpy()).all()
    assert pd.Series(after["returns"]).isna().sum() == pd.Series(before["returns"]).isna().sum()
    assert TRIPS.strays(replace(rows, features=out)) == TRIPS.strays(rows)  # what is missing


KINDS = (
    lambda name, low, high: Number(name, low, high, type="integer"),
    lambda name, low, high: Number(name, low, high, decimals=1),
    lambda name, low, high: Number(name, low + 0.25, high + 0.5, missing=True),
    lambda name, low, high: Number(name, low + 0.5, high + 1.0, scale="log"),
    lambda name, low, _high: Number(name, low, low, type="integer", missing=True),
)


@settings(max_examples=60)
@given(st.data())
def test_numbers_of_any_kind_are_put_in_any_order_that_their_ranges_allow(data: Any) -> None:
    names = "abcd"
    columns = tuple(
        data.draw(st.sampled_from(KINDS))(name, low, low + data.draw(st.integers(1, 6)))
        for name in names
        for low in [data.draw(st.integers(0, 4))]
    )
    pairs = data.draw(st.sets(st.sampled_from([(a, b) for a in names for b in names if a < b])))
    try:
        table = Table(
            columns=(*columns, Number("other", 0.0, 1.0)),
            constraints=tuple(Inequality(*pair) for pair in sorted(pairs)),
        )
    except InputError as error:
        if "cannot be met within the ranges" not in str(error):
            raise
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    drawn = [rng.uniform(0, 12, 40) for _ in table.columns]
    drawn[0][:5] = 1e6  # beyond a range
    for column, values in zip(table.columns, drawn, strict=True):
        if column.missing:
            values[rng.random(40) < 0.2] = np.nan
    rows = table.coded(drawn, np.zeros(40, dtype=np.int64))
    features = np.array(rows.features)
    table.restore(features)
    out, _ = mended(table, features, rows.labels, chance_of(0))
    before, after = (
        {
            column.name: read_back(column, block[:, place])
            for column, place in zip(table.columns, table.places, strict=True)
        }
        for block in (features, out)
    )
    wrong = np.zeros(40, dtype=bool)
    for low, high in pairs:
        assert not (after[low] > after[high]).any()
        wrong |= before[low] > before[high]
    assert (out[~wrong] == features[~wrong]).all()
    assert (out[:, -1] == features[:, -1]).all()
    assert all((np.isnan(after[name]) == np.isnan(before[name])).all() for name in names)
    mine, theirs = (table.strays(replace(rows, features=each)) for each in (out, features))
    assert mine == theirs  # what is missing, and no value that is not declared


@settings(max_examples=60)
@given(st.data())
def test_categories_of_any_rules_are_put_together_as_these_allow(data: Any) -> None:
    sizes = {name: data.draw(st.integers(2, 4)) for name in "pqr"}
    columns = [
        Category(name, tuple(range(size)), missing=data.draw(st.booleans()))
        for name, size in sizes.items()
    ]
    label = Category("y", (0, 1))
    lists: dict[str, list[Any]] = {"y": [0, 1]}
    for each in columns:
        lists[each.name] = [*each.categories, *([None] if each.missing else [])]
    among = tuple(data.draw(st.permutations([*lists])))[: data.draw(st.integers(2, 3))]
    allowed = data.draw(
        st.sets(st.tuples(*(st.sampled_from(lists[name]) for name in among)), min_size=1)
    )
    decided = data.draw(
        st.dictionaries(st.sampled_from(lists["p"]), st.sampled_from(lists["q"]), min_size=1)
    )
    rules = (
        Combinations(among, tuple(sorted(allowed, key=str))),
        Dependence("p", "q", tuple(decided.items())),
    )
    try:
        table = Table(columns=tuple(columns), label=label, constraints=rules)
    except InputError as error:
        if "allow no combination at all" not in str(error):
            raise
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    drawn = [rng.integers(0, len(lists[each.name]), 60) for each in columns]
    rows = table.coded(drawn, rng.integers(0, 2, 60))
    out, labels = mended(table, rows.features, rows.labels, chance_of(0))
    found = [table.cells(*each) for each in ((rows.features, rows.labels), (out, labels))]
    for at in range(60):
        before, after = ({name: cells[name][at] for name in lists} for cells in found)

        def breaks(row: dict[str, Any]) -> bool:
            off = tuple(row[name] for name in among) not in allowed
            return off or decided.get(row["p"], row["q"]) != row["q"]

        assert not breaks(after)
        assert breaks(before) or before == after


# -- what is declared ------------------------------------------------------------------------------


def test_constraints_are_read_confirmed_and_shown() -> None:
    found = documents.from_json(Table, documents.as_json(TRIPS), name="schema")
    assert found == TRIPS
    assert TRIPS.digest() != FREE.digest()
    drafted = replace(TRIPS, drafted=True)
    assert not replace(drafted.confirm(), constraints=TRIPS.constraints[:1]).is_confirmed
    assert "No released row breaks this: leaves <= returns." in list(public_lines(drafted))
    assert str(TRIPS.constraints[1]) == "least <= price"
    assert str(TRIPS.constraints[3]).startswith('city decides land: "Rome", "IT"; "Milan", "IT"')
    assert str(TRIPS.constraints[4]).endswith('"FR", "train" and 1 more')


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        ((Inequality("least", "city"),), "must compare two columns of numbers"),
        ((Inequality("least", "leaves"),), "must compare two columns of numbers"),
        ((Inequality("least", "least"),), "must compare two columns of numbers"),
        ((Inequality("least", "lots"),), r"name no column of the schema \(got lots\)"),
        ((Inequality("least", "price"), Inequality("price", "least")), "go round in a circle"),
        ((Dependence("city", "price", (("Rome", 1),)),), "and 'price' is none"),
        ((Dependence("city", "land", (("Oslo", "IT"),)),), "that 'city' does not list: Oslo"),
        ((Dependence("city", "land", (("Rome", "IT"),) * 2),), "must map each value once"),
        ((Combinations(("city", "by"), (("Rome",),)),), "must list 2 values together"),
        ((Combinations(("city", "by"), (("Rome", None),)),), "that 'by' does not list: None"),
        ((Combinations(("city", "city"), (("Rome", "Rome"),)),), "of two columns or more"),
        (
            (
                Dependence("city", "land", (("Rome", "IT"),)),
                Combinations(("city", "land"), (("Rome", "FR"),)),
            ),
            "allow no combination at all of the columns",
        ),
    ],
)
def test_what_no_row_can_meet_is_refused_when_it_is_declared(constraints: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        replace(FREE, constraints=constraints)
    narrow = (Number("a", 5, 9, type="integer"), Number("b", 0, 4, type="integer"))
    with pytest.raises(InputError, match="cannot be met within the ranges of the columns"):
        Table(columns=narrow, constraints=(Inequality("a", "b"),))
    for scale in ("linear", "log"):  # by 2.5, 3 and 3
        whole = Number("b", 1, 5, type="integer", scale=scale)
        met = (Number("a", 2.5, 2.5), whole, Number("c", 0.0, 3.0))
        Table(columns=met, constraints=(Inequality("a", "b"), Inequality("b", "c")))
