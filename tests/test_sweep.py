"""Recipes beside each other: equal rows, budgets and seeds, chosen by rule, on public rows only."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from capemix.errors import InputError
from capemix_research.frontier import Point
from capemix_research.sweep import PEERS, Curve, asked_by, best, peers_of, table_of
from conftest import Capemix

SMALL = (
    "sweep", "--data", "digits", "--epsilons", "10,3", "--seeds", 2, "--samples", 200,
    "--rows", 300,
)  # fmt: skip


def test_every_recipe_is_scored_at_every_budget_and_trials_are_kept(
    tmp_path: Path, research: Capemix
) -> None:
    out = tmp_path / "out"
    ran = research(*SMALL, "--out", out, "--json")
    assert ran.code == 0, ran.err
    found = ran.json
    assert [line["recipe"] for line in found["table"]] == ["mixing", "redraw", "moments"]
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
    assert "moments" in shown.out
    assert "±" in shown.out


def test_recipes_ask_for_what_they_are(tmp_path: Path, research: Capemix) -> None:
    asked = {"mixture": 4, "samples": 9, "clip": 1.0, "scheme": "cape", "class_sizes": (5, 5)}
    assert asked_by("mixing", asked, 7) == asked
    assert asked_by("redraw", asked, 7) == asked | {"redraw": 7, "tune": True}
    own = {"scheme": "cape", "class_sizes": (5, 5), "synthesizer": "moments", "samples": 7}
    assert asked_by("moments", asked, 7) == own
    with pytest.raises(InputError, match="--recipes has one that is unknown"):
        asked_by("magic", asked, 7)
    for words, said in (
        (("--recipes", "magic"), "--recipes"),
        (("--epsilons", "1,x"), "--epsilons must be numbers"),
        (("--epsilons", "0,1"), "--epsilons must be above 0"),
        (("--synthesizer", "moments"), "leave --synthesizer"),
        (("--redraw", 5), "leave --synthesizer"),
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
