"""A table with categories over a federation: every site codes its own file by the schema that its
people have read, declines every other without looking at a row, and what is released is what one
process would release, decoded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from capemix import documents
from capemix.agent import Agent, SiteState
from capemix.data import LabeledRows, Table, UnlistedRows, open_data, partition
from capemix.data.schema import Category, Number
from capemix.data.writing import write_table
from capemix.engines.flower.files import plan_text, read_plan_file
from capemix.errors import InputError
from capemix.facts import Facts, map_of
from capemix.ledger import Account
from capemix.methods.class_gaussian import ClassGaussian
from capemix.plan import Plan, make_plan
from capemix.private import PRIVATE
from capemix.protocol.policy import Policy
from capemix.protocol.step import ReleaseStep
from capemix.release import read_release
from capemix.run import run as carry_out
from capemix.sums.steps import PublicMap
from conftest import Capemix
from test_agent import an_agent, keys
from test_programs import SEED, SITES, Federation, allowing, coordinated, local, next_step, of
from test_tables import PEOPLE, coded, people

__all__ = ["an_agent", "coordinated", "keys"]  # fixtures


def untidy(records: int = 600) -> pd.DataFrame:
    """With cells of every kind that the schema does not know, and rows of no class of its own."""
    frame = people(records)
    for column, odd in (("work", "a private word"), ("smokes", "perhaps"), ("rooms", "7")):
        frame[column] = frame[column].astype(object)
        frame.loc[frame.index % 7 == 1, column] = odd
    frame["age"] = frame["age"].astype(float)
    frame.loc[frame.index % 11 == 2, "age"] = 300.0
    frame.loc[frame.index % 11 == 3, "age"] = 41.5
    frame.loc[frame.index % 17 == 5, "weight"] = -3.0  # by its logarithm, which it does not have
    frame.loc[frame.index % 17 == 6, "weight"] = 1e9
    frame.loc[frame.index % 13 == 4, "income"] = "unsaid"
    return frame


def files(folder: Path, frame: pd.DataFrame) -> list[Path]:
    """Dealt out by age, so that no site has what another has; one site has Parquet."""
    found = []
    for site, part in enumerate(np.array_split(np.argsort(frame["age"].to_numpy()), SITES)):
        mine = frame.iloc[part].drop(columns="note", errors="ignore")
        mine["note"] = "a private note"  # a column that the schema does not name
        found.append(folder / f"site-{site}.{'parquet' if site == 3 else 'csv'}")
        if site == 3:
            mine.astype(dict.fromkeys(("work", "smokes", "rooms"), str)).to_parquet(found[-1])
        else:
            mine.to_csv(found[-1], index=False)
    return found


def a_plan(table: Table = PEOPLE) -> Plan:
    who = {"scheme": "cape", "sites": SITES, "colluding": 1, "dropouts": 1}
    facts = Facts.of(table.no_rows())
    return make_plan(facts, ClassGaussian(samples=300), **who).calibrate(8.0)


# -- the protocol ----------------------------------------------------------------------------------


def test_sites_with_files_of_their_own_release_what_one_process_does(
    coordinated: Callable[..., Any], tmp_path: Path
) -> None:
    """Whichever site has which rows; and the release is decoded."""
    plan = a_plan()
    sites = [open_data(file, table=PEOPLE).train for file in files(tmp_path, untidy())]
    out, _ = coordinated(plan, lambda _site, _asked: False, sites)
    frame = untidy()
    together = coded(frame)
    assert len(together) == sum(map(len, sites)) < len(frame)
    local(plan, partition(together, SITES, "iid", seed=1)).save(tmp_path / "local")
    ours, theirs = (folder / "synthetic.parquet" for folder in (out, tmp_path / "local"))
    assert ours.read_bytes() == theirs.read_bytes()
    made = pd.read_parquet(ours)
    assert list(made.columns) == [*PEOPLE.names, "income"]
    kinds = {"age": "int64", "weight": "float64", "smokes": "bool", "rooms": "int64"}
    assert {name: str(made[name].dtype) for name in kinds} == kinds
    assert set(made["work"].dropna()) <= {"office", "field", "none"}
    assert made["work"].isna().any()
    assert made["age"].between(17, 90).all()
    assert read_release(out).rows.table == PEOPLE
    said = "".join(path.read_text() for path in (out / "manifest.json", tmp_path / "plan.json"))
    assert not any(odd in said for odd in ("a private", "perhaps", "unsaid"))


def proposal(plan: Plan) -> ReleaseStep:
    """Its first sum."""

    class Never(Federation):
        def __init__(self) -> None: ...

        def sum(self, *_: Any) -> Any:
            raise AssertionError

    return next_step(plan, Never(), 0)


OTHERS = {
    "a wider range": replace(
        PEOPLE, columns=(Number("age", 0, 90, type="integer"), *PEOPLE.columns[1:])
    ),
    "one more category": replace(
        PEOPLE,
        columns=(
            *PEOPLE.columns[:2],
            Category("work", ("office", "field", "a private word"), missing=True),
            *PEOPLE.columns[3:],
        ),
    ),
    "numbers for truth values": replace(
        PEOPLE, columns=(*PEOPLE.columns[:3], Category("smokes", (0, 1)), *PEOPLE.columns[4:])
    ),
    "another order": replace(PEOPLE, columns=PEOPLE.columns[::-1]),
    "another label": replace(PEOPLE, label=Category("outcome", PEOPLE.classes)),
    "fewer columns": replace(PEOPLE, columns=PEOPLE.columns[:3]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_site_takes_part_by_no_other_schema_than_its_own(tmp_path: Path, name: str) -> None:
    other = OTHERS[name]
    world = Federation(tmp_path, allowing(a_plan()), [coded(people(100))] * SITES)
    assert world.answer(proposal(a_plan())) is None
    said = world.answer(proposal(a_plan(other)))
    assert said is not None
    assert "not coded by the plan's schema: its agent was started with another plan's" in said
    assert world.charges == 0


def test_coded_rows_and_rows_of_numbers_are_not_taken_for_each_other(tmp_path: Path) -> None:
    coded_by = a_plan().facts
    plain = replace(coded_by, features=PEOPLE.no_rows().feature_names, table=None)
    numbers = of(proposal(a_plan()), facts=plain)
    world = Federation(tmp_path / "coded", allowing(a_plan()), [coded(people(100))] * SITES)
    assert "must be started without --plan" in str(world.answer(numbers))
    uncoded = [replace(coded(people(100)), table=None)] * SITES
    world = Federation(tmp_path / "plain", allowing(a_plan()), uncoded)
    assert world.answer(numbers) is None
    said = str(world.answer(proposal(a_plan())))
    assert "its agent was started without --plan, and must be started with this --plan" in said


def test_a_policy_judges_a_schemas_columns_by_their_own_names(tmp_path: Path) -> None:
    rows = [coded(people(100))] * SITES
    for number, (columns, says) in enumerate(
        (
            ((*PEOPLE.names, "income"), None),
            ((*PEOPLE.names[1:], "income"), "columns that are not allowed"),
            (PEOPLE.names, "columns that are not allowed"),  # nor may the label be
        )
    ):
        policy = allowing(a_plan(), columns=columns, classes=PEOPLE.classes)
        world = Federation(tmp_path / str(number), policy, rows)
        said = world.answer(proposal(a_plan()))
        assert (said is None) == (says is None)
        assert says is None or says in str(said)
    for features in (rows[0].feature_names, PEOPLE.names[::-1], ("age",)):
        with pytest.raises(InputError, match="schema does not fit the rows"):
            replace(a_plan().facts, features=features)


def test_a_schemas_ranges_are_the_ones_that_columns_are_mapped_by(tmp_path: Path) -> None:
    """A site's people read ranges in the schema, so no others may stand elsewhere in the plan."""
    world = Federation(tmp_path, allowing(a_plan()), [coded(people(100))] * SITES)
    wide = replace(map_of(PEOPLE), high=(1e6,) * PEOPLE.width)
    step = proposal(a_plan())
    for how in (wide, PublicMap.of_range(0, 1), None):
        facts = replace(step.plan.facts, normalise=how)
        said = world.answer(of(step, facts=facts, opening_multiplier=step.plan.multiplier))
        assert "in another way than its schema says" in str(said)
        assert "must be the declared facts with those" in str(
            world.answer(of(step, measured=facts))
        )


def test_what_a_site_answers_to_a_schema_does_not_depend_on_its_rows(tmp_path: Path) -> None:
    """Rows that fit, rows of which no cell does, and none at all: the same bytes, yes or no."""
    frame = people(40)
    for column in ("work", "smokes", "rooms"):
        frame[column] = "a private word"
    frame["age"] = -1e300
    kept = [coded(people(100)), coded(frame), PEOPLE.no_rows()]
    world = Federation(tmp_path, allowing(a_plan()), [kept[0]] * SITES)
    own = world.agents[0]._state
    asked = [
        dict(world.run(proposal(a_plan(table))).requests())[0]
        for table in (PEOPLE, *OTHERS.values())
    ]

    def heard(rows: LabeledRows) -> list[bytes]:
        agent = Agent(
            SiteState(0, own.identity, own.roster, own.policy, rows, own.budget, own.test_seed)
        )
        return [agent.answer(raw) for raw in asked]

    first, *others = map(heard, kept)
    assert all(other == first for other in others)
    assert [b'"accept":true' in one for one in first] == [True] + [False] * len(OTHERS)
    assert not any(b"private" in one for one in first)


def test_a_site_without_a_fitting_cell_uploads_noise(tmp_path: Path) -> None:
    """The release goes on: it is that of the other sites' rows, and of blocks of zeros."""
    frame = people(40)
    frame[["work", "smokes", "rooms", "income"]] = "a private word"
    rows = [coded(people(200, seed)) for seed in (1, 2, 3)]
    frame.to_csv(tmp_path / "odd.csv", index=False)
    odd = open_data(tmp_path / "odd.csv", table=PEOPLE).train
    assert len(odd) == 0
    plan = a_plan()
    world = Federation(tmp_path / "world", allowing(plan), [*rows, odd])
    found = carry_out(plan, world)
    same = local(plan, [*rows, PEOPLE.no_rows()])
    assert found.features.tobytes() == same.features.tobytes()


# -- files -----------------------------------------------------------------------------------------


def test_coded_rows_come_back_from_the_file_of_a_trial(tmp_path: Path) -> None:
    rows = coded(untidy())
    write_table(rows, tmp_path / "rows.parquet")
    again = open_data(tmp_path / "rows.parquet", table=PEOPLE).train
    assert again.features.tobytes() == rows.features.tobytes()
    assert again.labels.tolist() == rows.labels.tolist()
    assert PEOPLE.strays(again) == PEOPLE.strays(rows)
    none = np.zeros((2, PEOPLE.width))
    none[:, 1] = PEOPLE.columns[1].ends[0]  # of what has a logarithm, the least
    write_table(replace(rows, features=none, labels=rows.labels[:2]), tmp_path / "none.parquet")
    listed = open_data(tmp_path / "none.parquet", table=PEOPLE).train.features
    assert listed[:, PEOPLE.places[2]].tolist() == [[0, 0, 0, 1]] * 2  # missing is a value there
    others = np.delete(np.arange(PEOPLE.width), PEOPLE.places[2])
    assert np.array_equal(listed[:, others], none[:, others])


def test_a_plan_file_has_the_schema_and_no_other_names(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan_text(a_plan()))
    plan = read_plan_file(tmp_path / "plan.json")
    assert plan == a_plan()
    assert (plan.facts.table, plan.facts.features) == (PEOPLE, PEOPLE.names)
    said = json.loads(plan_text(a_plan()))
    for change in ({"features": ["age"]}, {"label": "age"}, {"image_shape": [3, 4]}):
        (tmp_path / "plan.json").write_text(json.dumps(said | {"facts": said["facts"] | change}))
        with pytest.raises(InputError, match="does not fit the rows"):
            read_plan_file(tmp_path / "plan.json")


# -- commands --------------------------------------------------------------------------------------


def proposed(capemix: Capemix, folder: Path, *words: object) -> Any:
    (folder / "schema.json").write_text(json.dumps(documents.as_json(PEOPLE)))
    return capemix(
        *("federate", "plan", "--method", "class-gaussian", "--epsilon", 3, "--sites", SITES),
        *("--schema", folder / "schema.json", "--out", folder / "plan.json", "--json", *words),
    )


def test_a_plan_with_a_schema_is_written_set_up_and_checked(
    capemix: Capemix, tmp_path: Path
) -> None:
    made = proposed(capemix, tmp_path)
    assert made.json["epsilon"] == pytest.approx(3, rel=1e-3)
    plan = read_plan_file(tmp_path / "plan.json")
    assert plan.method == ClassGaussian()
    assert (plan.facts.table, plan.facts.normalise) == (PEOPLE, map_of(PEOPLE))
    words = ("federate", "init", tmp_path / "fed", "--plan", tmp_path / "plan.json")
    assert capemix(*words).code == 0
    policy = documents.read(Policy, tmp_path / "fed" / "policy.json", name="policy")
    assert (policy.columns, policy.classes) == ((*PEOPLE.names, "income"), PEOPLE.classes)
    assert not list(policy.objections(ReleaseStep.first_of(plan), Account(policy.limit)))
    file = files(tmp_path, untidy())[0]
    rows = open_data(file, table=PEOPLE).train
    words = ("site", "check", "--data", file, "--plan", tmp_path / "plan.json")
    assert f"start the agent with --plan {tmp_path / 'plan.json'}" in capemix(*words).out
    found = capemix(*words, "--json").json
    assert found["private"] == PRIVATE
    assert found["outside_schema"] == PEOPLE.strays(rows)
    assert found["outside_schema"]["smokes"] > 0 == found["outside_schema"]["gain"]
    assert found["outside_schema"]["weight"] > 0
    said = capemix(*words).out
    assert found["label"] == "income"
    assert "in 'income':" in said
    assert f'work: "office", "field", "none", or missing ({PEOPLE.strays(rows)["work"]})' in said
    assert "age: integer from 17 to 90" in said
    assert "a private" not in said
    words_of_others = replace(
        PEOPLE, columns=(Category("work", ("\x1b[2J", "office")), *PEOPLE.columns[:2])
    )
    (tmp_path / "plan.json").write_text(plan_text(a_plan(words_of_others)))
    assert "\x1b" not in capemix(*words).out
    file.write_text("age,income\n3,low\n4,high\n")
    odd = replace(PEOPLE, columns=(Category("w\x1b[2Jork", ("a", "b")), *PEOPLE.columns[1:]))
    (tmp_path / "plan.json").write_text(plan_text(a_plan(odd)))
    ran = capemix(*words)
    assert ran.code == 2
    assert "schema names no column" in ran.err
    assert "\x1b" not in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--features", "a,b"), "--features is the schema's to say"),
        (("--label", "income"), "--label is the schema's to say"),
        (("--classes", "a,b"), "--classes is the schema's to say"),
        (("--public-range", "0,1"), "--public-range is the schema's to say"),
        (("--method", "mixing"), "--schema"),
        (("--method", "image-clusters"), "--method is for images"),
        (("--mixture", 4), "--mixture"),
    ],
)
def test_what_a_schema_says_is_not_said_twice(
    capemix: Capemix, tmp_path: Path, words: tuple[object, ...], says: str
) -> None:
    ran = proposed(capemix, tmp_path, *words)
    assert ran.code == 2
    assert says in ran.err
    assert not (tmp_path / "plan.json").exists()


def test_without_a_schema_columns_are_named(capemix: Capemix, tmp_path: Path) -> None:
    words = ("federate", "plan", "--epsilon", 3, "--sites", 4, "--out", tmp_path / "plan.json")
    ran = capemix(*words, "--features", "a,b", "--label", "y")
    assert ran.code == 2
    assert "--classes must be given, or a schema" in ran.err


def test_an_agent_codes_its_file_by_the_plan_that_its_people_have_read(
    an_agent: Any, capemix: Capemix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proposed(capemix, tmp_path).code == 0
    held: list[SiteState] = []
    begin = Agent.__init__

    def kept(agent: Agent, state: SiteState) -> None:
        held.append(state)
        begin(agent, state)

    monkeypatch.setattr(Agent, "__init__", kept)
    file = files(tmp_path, untidy())[1]
    words = ("--new-lineage", "--data", file, "--label", "income")
    ran = an_agent(*words, lineage="numbers")  # without a plan, a table is of numbers
    assert ran.code == 0, ran.err
    plain = held.pop().rows
    assert isinstance(plain, UnlistedRows)
    assert plain.feature_names == (*PEOPLE.names, "note")
    assert np.isfinite(plain.columns(("age", "weight")).features).all()
    assert not plain.columns(("age", "work")).fits().any()  # and text is none
    ran = an_agent(*words, "--plan", tmp_path / "plan.json")
    assert ran.code == 0, ran.err
    assert held[0].rows.table == PEOPLE
    assert held[0].rows.features.tobytes() == open_data(file, table=PEOPLE).train.features.tobytes()
    own, schema = tmp_path / "own.txt", tmp_path / "own.json"
    frame = pd.read_csv(file, dtype=str).replace(r"^(-?\d+)\.(\d+)", r"\1,\2", regex=True)
    frame.to_csv(own, sep=";", index=False, encoding="utf-16")
    with own.open("ab") as end:
        end.write('41;"no end\n'.encode("utf-16-le"))
    drafted = ("schema", "draft", own, "--label", "income", "--out", schema)
    assert capemix(*drafted).code == 0
    words = ("--label", "income", "--data", own, "--plan", tmp_path / "plan.json")
    ran = an_agent(*words)
    assert "which says how the file is written" in ran.err
    ran = an_agent(*words, "--written-as", schema)
    assert ran.code == 0, ran.err
    assert held[1].rows.features.tobytes() == held[0].rows.features.tobytes()
    assert held[1].rows.table == PEOPLE  # of the site's own schema nothing else is used
    ran = capemix("site", "check", *words, "--written-as", schema)
    assert "line 152 has no value: a quote does not close in it" in ran.out
    schema.write_text(json.dumps(documents.as_json(PEOPLE)))
    assert "does not say how a file is written" in an_agent(*words, "--written-as", schema).err
    ran = an_agent("--data", file, "--plan", tmp_path / "plan.json")
    assert "label is not the schema's" in ran.err
    numbers = ("--features", "a,b", "--label", "y", "--classes", "no,yes", "--class-sizes", 50)
    other = ("federate", "plan", "--epsilon", 3, "--sites", 4, *numbers)
    assert capemix(*other, "--out", tmp_path / "other.json").code == 0
    ran = an_agent("--plan", tmp_path / "other.json")
    assert ran.code == 2
    assert "--plan has no schema to code rows by" in ran.err


@pytest.mark.long
def test_a_table_through_flower_from_the_command_line(capemix: Capemix, tmp_path: Path) -> None:
    """A trial of agents and simulated nodes gives the bytes of `capemix synth`."""
    (tmp_path / "schema.json").write_text(json.dumps(documents.as_json(PEOPLE)))
    untidy().to_csv(tmp_path / "people.csv", index=False)
    words = ("--data", tmp_path / "people.csv", "--schema", tmp_path / "schema.json")
    words += ("--method", "class-gaussian", "--epsilon", 8, "--sites", 3, "--samples", 200)
    words += ("--class-sizes", "180,420", "--test-seed", SEED, "--no-ledger")
    made = capemix("synth", *words, "--scheme", "cape", "--out", tmp_path / "one", "--json")
    assert made.code == 0, made.err
    trial = ("--engine", "simulation", "--round-seconds", 60, "--json")
    ran = capemix("federate", "local", *words, *trial, "--out", tmp_path / "many")
    assert ran.code == 0, ran.err
    assert ran.json["included"] == [0, 1, 2]
    ours, theirs = (tmp_path / name / "synthetic.parquet" for name in ("many", "one"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert set(pd.read_parquet(ours)["smokes"]) == {False, True}
