"""Recipes beside each other: equal rows, budgets and seeds, chosen by rule, on public rows only."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, get_args

import pytest

from capemix.api import config_of
from capemix.errors import InputError
from capemix.methods.mixing import Mixing
from capemix_research.cli.frontier import RecipeName
from capemix_research.frontier import Point
from capemix_research.sweep import PEERS, RECIPES, Curve, best, method_of, peers_of, table_of
from conftest import Capemix

SMALL = (
    "sweep", "--data", "digits", "--epsilons", "10,3", "--seeds", 2, "--samples", 200,
    "--rows", 300,
)  # fmt: skip


@pytest.mark.long
def test_every_recipe_is_scored_at_every_budget_and_trials_are_kept(
    tmp_path: Path, research: Capemix
) -> None:
    out = tmp_path / "out"
    ran = research(*SMALL, "--out", out, "--json")
    assert ran.code == 0, ran.err
    found = ran.json
    assert [line["recipe"] for line in found["table"]] == [*("mixing", "redraw", "class-gaussian")]
    assert all({"epsilon 3", "epsilon 10"} <= set(line) for line in found["table"])
    assert set(found["best"]) == {"3", "10"}
    assert 0.9 < found["real"] <= 1.0
    trials = (out / "trials.csv").read_text()
    assert len(trials.splitlines()) == 1 + 1 + 3 * 2 * 2
    assert (out / "sweep.png").stat().st_size > 10_000
    again = research(*SMALL, "--out", out, "--json")  # nothing is made twice
    assert again.json["table"] == found["table"]
    assert (out / "trials.csv").read_text() == trials
    shown = research(*SMALL, "--out", out)
    assert "class-gaussian" in shown.out
    assert "±" in shown.out


def test_recipes_ask_for_what_they_are(tmp_path: Path, research: Capemix) -> None:
    mixing = Mixing(mixture=4, samples=9, clip=1.0)
    assert method_of("mixing", mixing, 7) is mixing
    assert method_of("redraw", mixing, 7) == Mixing(clip=1.0, redraw=7, tune=True)
    assert method_of("class-gaussian", mixing, 7) == config_of("class-gaussian", samples=7)
    images = {"samples": 7, "deskew": True}
    for recipe, soft in (("image-clusters", False), ("soft-labels", True)):
        asked = config_of("image-clusters", soft_labels=soft, **images)
        assert method_of(recipe, mixing, 7, deskew=True) == asked
    assert get_args(RecipeName) == RECIPES
    with pytest.raises(InputError, match="recipes has one that is unknown"):
        method_of("magic", mixing, 7)
    for words, said in (
        (("--recipes", "magic"), "--recipes"),
        (("--epsilons", "1,x"), "--epsilons must be numbers"),
        (("--epsilons", "0,1"), "--epsilons must be above 0"),
        (("--method", "class-gaussian"), "No such option"),
        (("--redraw", 5), "No such option"),
        (("--data", "people.csv"), "outside of any budget"),
    ):
        ran = research(*SMALL, *words, "--out", tmp_path / "no")
        assert ran.code == 2
        assert said in ran.err


def test_peers_stand_where_they_were_published() -> None:
    with PEERS.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    assert all(row["reference"] and 10 < float(row["accuracy"]) < 100 for row in rows)
    assert len({(r["dataset"], r["epsilon"], r["method"]) for r in rows}) == len(rows)
    found = peers_of("mnist", [10.0])
    assert {peer.method for peer in found} >= {"DP-FETA", "DP-NTK"}
    assert all(peer.epsilon == 10.0 and peer.accuracy < 1 for peer in found)
    assert not peers_of("digits", [1.0, 10.0])


def test_the_table_has_a_line_for_each_and_the_best_is_named() -> None:
    curves = [
        Curve("mixing", (Point(1.0, (0.5, 0.6)), Point(10.0, (0.9, 0.9)))),
        Curve("moments", (Point(1.0, (0.7, 0.7)), Point(10.0, (0.8, 0.8)))),
    ]
    lines = table_of(curves, peers_of("mnist", [1.0, 10.0]))
    assert lines[0]["epsilon 1"].startswith("0.550 ± 0.07")
    published = {line["recipe"]: line for line in lines[2:]}
    assert published["DP-FETA (published)"]["epsilon 10"] == "0.981"
    assert published["DP-MERF (published)"]["epsilon 10"] == "-"
    assert best(curves) == {1.0: "moments", 10.0: "mixing"}
