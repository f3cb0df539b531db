"""The command line around its commands: how far they are, how they end, what they take from a file,
and how a first run is led."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console

from capemix.api import Synthesizer, synthesize
from capemix.cli import progress
from capemix.cli.progress import Pace, in_words
from capemix.data import Table
from capemix.data.schema import Category, Number
from capemix.facts import Facts
from capemix.ledger import Ledger, default_path
from capemix.methods import method_named
from capemix.plan import make_plan
from capemix.randomness.source import SeededSource
from conftest import Capemix
from world import labeled_rows


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in a folder of its own, which is the one that we are in."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [
        f"{rng.integers(20, 70)},{'ab'[at % 2]},{'true' if at % 3 else 'false'}"
        for at in range(400)
    ]
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["age,job,ill", *lines]) + "\n")
    return path


# -- how far, and how it ends ----------------------------------------------------------------------


def test_the_time_left_follows_from_an_even_pace_alone() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.left(0, 100) == ""
    now = 1.0
    assert pace.left(50, 100) == ""  # too early to tell
    now = 6.0
    assert pace.left(25, 100) == "about 18 s left"
    assert pace.left(100, 100) == ""
    assert [in_words(each) for each in (5, 300, 9000)] == ["5 s", "5 min", "2.5 h"]


@pytest.mark.parametrize("method", ["mixing", "class-gaussian"])
def test_each_sum_is_named_and_only_drawn_rows_have_a_time(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, label = np.random.default_rng(0), np.arange(200) % 2
    rows = labeled_rows(rng.normal(size=(200, 3)), np.array(["no", "yes"])[label], ("no", "yes"))
    plan = make_plan(Facts.of(rows), method_named(method)(samples=60)).calibrate(4.0)
    said: list[str] = []
    told: list[tuple[float, float]] = []
    line = progress.Told(None)
    monkeypatch.setattr(line, "begin", said.append)
    monkeypatch.setattr(line, "more", lambda done, of: told.append((done, of)))
    from capemix.run import run

    made = run(plan, progress.ToldEngine(rows, SeededSource(1), line)).plan
    sums = [each.partition(": ") for each in said if each.startswith("private sum ")]
    assert [name for _, _, name in sums] == [name for line in made.outline for name in line.names]
    assert sums[-1][0] == f"private sum {len(sums)} of {len(sums)}"  # as chosen on the way
    assert said[-1] == "making rows of the sums"
    assert sum(done for done, _ in told) == (60 if plan.drawn else 0)
    assert {total for _, total in told} == ({60} if plan.drawn else set())


def test_nothing_is_shown_but_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*, terminal: bool, quiet: bool) -> str:
        screen = io.StringIO()
        monkeypatch.setattr(
            progress,
            "Console",
            lambda **_: Console(file=screen, force_terminal=terminal, width=80),
        )
        with progress.told("at work", quiet=quiet) as line:
            line.tell(1, 2)
            time.sleep(0.15)
        return screen.getvalue()

    assert "at work" in shown(terminal=True, quiet=False)
    assert shown(terminal=True, quiet=True) == shown(terminal=False, quiet=False) == ""


def test_quiet_prints_nothing_and_json_nothing_else(capemix: Capemix, tmp_path: Path) -> None:
    words = ["synth", "digits", "--epsilon", 5, "--samples", 20]
    ran = capemix(*words, "--out", tmp_path / "a", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    ran = capemix(*words, "--out", tmp_path / "b", "--quiet", "--json")
    assert ran.json["epsilon"] == pytest.approx(5, rel=1e-3)
    assert ran.err == ""
    ran = capemix("verify", tmp_path / "a", "--quiet")
    assert (ran.code, ran.out, ran.err) == (3, "", "")
    ran = capemix("verify", tmp_path / "none", "--quiet")
    assert ran.code == 2
    assert ran.err.count("\n") == 1


def test_no_color_is_kept_to() -> None:
    """On a terminal, too."""
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "capemix", "methods"]
    where = {**os.environ, "NO_COLOR": "1", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=where) as running:
        os.close(theirs)
        shown = b""
        while piece := _read(mine):
            shown += piece
    os.close(mine)
    assert running.returncode == 0
    assert b"tables" in shown
    assert b"\x1b[3" not in shown  # colours are 30 to 38


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # all that wrote are gone
        return b""


@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_who_is_stopped_says_whether_the_ledger_was_charged(
    when: str, people: Path, capemix: Capemix, monkeypatch: pytest.MonkeyPatch
) -> None:
    capemix("ledger", "set-limit", "people", "--epsilon", 9)
    from capemix.engines.local import LocalEngine

    def stop(*_args: Any, **_how: Any) -> Any:
        raise KeyboardInterrupt

    def charged_then_stop(ledger: Ledger, *args: Any, **how: Any) -> Any:
        real(ledger, *args, **how)
        stop()

    real = Ledger.charge
    if when == "before":
        monkeypatch.setattr(LocalEngine, "check", stop)
    elif when == "while":
        monkeypatch.setattr(Ledger, "charge", charged_then_stop)
    else:
        monkeypatch.setattr(LocalEngine, "sum", stop)
    words = ["synth", people, "--label", "ill", "--classes", "true,false", "--epsilon", 1]
    ran = capemix(*words, "--lineage", "people", "--out", "release")
    head = str(Ledger.open(default_path()).head())
    assert ran.code == 130
    assert ran.out == ""
    assert ran.err.splitlines() == [
        {
            "before": "capemix: stopped: nothing was released, and nothing was charged to people.",
            "while": "capemix: stopped: nothing was released; whether people was charged says"
            " `capemix ledger show`.",
            "after": "capemix: stopped: nothing was released; people was charged (ledger head"
            f" {head}).",
        }[when]
    ]
    assert sorted(each.name for each in people.parent.iterdir()) == ["people.csv"]


def test_ctrl_c_ends_any_command_with_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "capemix", "audit", "--quick", "--out", str(tmp_path / "a")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        time.sleep(1.5)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode in (130, -signal.SIGINT)  # the latter before there is a command
    assert "Traceback" not in said or running.returncode < 0


# -- what is repeated ------------------------------------------------------------------------------


def test_a_file_gives_options_and_says_so_and_what_is_typed_wins(
    people: Path, capemix: Capemix, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = people.parent / "capemix.toml"
    place.write_text(
        '[synth]\nepsilon = 2\ndata = "people.csv"\nlabel = "ill"\nclasses = ["true", "false"]\n'
        'no_ledger = true\ncsv = false\nmethod = "mixing"\nsamples = 30\n'
        "[ledger.set-limit]\nepsilon = 4\n"
    )
    (people.parent / "below").mkdir()
    monkeypatch.chdir(people.parent / "below")
    ran = capemix("synth", "--epsilon", 1, "--out", "release", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["epsilon"] == pytest.approx(1, rel=1e-3)
    assert ran.json["method"] == "mixing"
    assert ran.err == (
        f"capemix: from {place}: --data {people} --label ill --classes true,false --no-ledger"
        " --method mixing --samples 30\n"
    )
    ran = capemix("ledger", "set-limit", "people")
    assert "epsilon 4" in ran.out
    assert "--epsilon 4" in ran.err
    assert capemix("methods").err == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[verify]\nfoo = 1\n", "has an option that `capemix verify` does not have (got foo)"),
        ("[verify\n", "cannot be read"),
        ("verify = 3\n", "must have a table [verify]"),
    ],
)
def test_a_file_that_says_something_else_is_one_sentence(
    text: str, says: str, people: Path, capemix: Capemix
) -> None:
    (people.parent / "capemix.toml").write_text(text)
    ran = capemix("verify", "release")
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert says in ran.err


def test_another_users_file_chooses_nothing(
    people: Path, capemix: Capemix, monkeypatch: pytest.MonkeyPatch
) -> None:
    (people.parent / "capemix.toml").write_text("[ledger.set-limit]\nepsilon = 400\n")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    if (people.parent / "capemix.toml").stat().st_uid == 0:
        os.chown(people.parent / "capemix.toml", 54321, -1)
    ran = capemix("ledger", "set-limit", "people")
    assert ran.code == 2
    assert "another user's, and is not read" in ran.err


# -- a first run -----------------------------------------------------------------------------------


def test_a_first_run_is_led_to_its_release(people: Path, capemix: Capemix) -> None:
    words = ["init", people.name, "--label", "ill", "--limit", 4, "--public"]
    ran = capemix(*words)
    assert ran.code == 0, ran.err
    assert "There is a column 'age': integer from" in ran.out
    steps = [line.strip() for line in ran.out.splitlines() if line.startswith("    capemix")]
    assert steps == [
        "capemix synth people.csv --schema schema.json --epsilon 1 --lineage people --out release"
    ]
    assert Table.read(Path("schema.json")).is_confirmed
    assert capemix(*steps[0].split()[1:]).code == 0
    ran = capemix(*words)
    assert ran.code == 2  # the schema is there
    ran = capemix(*words, "--schema", "other.json", "--limit", 5)
    assert "is epsilon 4 already" in ran.err
    assert not Path("other.json").exists()


def test_what_nobody_called_public_is_to_be_confirmed(people: Path, capemix: Capemix) -> None:
    ran = capemix("init", people, "--label", "ill", "--json")
    assert not ran.json["confirmed"]
    first, second, third = ran.json["next"]
    assert first == "capemix schema confirm schema.json"
    assert second.startswith("capemix ledger set-limit people")
    assert third.startswith(f"capemix synth {people} --schema schema.json")
    assert not default_path().exists()


def test_a_column_is_corrected_or_left_out(
    people: Path, capemix: Capemix, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["x,y", "0,120", "-", "y", 4.0])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", lambda *_args, **_how: next(answers))
    monkeypatch.setattr(typer, "confirm", lambda *_args, **_how: True)
    ran = capemix("init", people, "--label", "ill")
    assert ran.code == 0, ran.err
    table = Table.read(Path("schema.json"))
    assert [(each.name, each.low, each.high) for each in table.columns] == [("age", 0, 120)]
    assert table.is_confirmed


# -- small things ----------------------------------------------------------------------------------


def test_doctor_says_what_is_missing_and_what_is_wrong(
    capemix: Capemix, monkeypatch: pytest.MonkeyPatch
) -> None:
    capemix("ledger", "set-limit", "people", "--epsilon", 4)
    capemix("key")
    monkeypatch.setattr("capemix.cli.doctor.find_spec", lambda name: None if name == "ray" else 1)
    ran = capemix("doctor", "--json")
    assert ran.code == 0
    found = {each["about"]: each for each in ran.json["checks"]}
    assert found["ray"]["state"] == "not installed"
    assert found["ray"]["fix"] == "type pip install 'capemix[simulation]'"
    assert {found[name]["state"] for name in ("fast kernels", "randomness", "ledger", "key")} == {
        "good"
    }
    default_path().with_name("curator.key").chmod(0o644)
    ran = capemix("doctor")
    assert ran.code == 1
    assert "chmod go-rwx" in ran.out


def test_a_shell_completes_commands_and_options() -> None:
    def completed(typed: str) -> list[str]:
        where = {**os.environ, "_CAPEMIX_COMPLETE": "complete_bash", "COMP_WORDS": typed}
        where["COMP_CWORD"] = str(len(typed.split()) - 1)
        asked = "import sys; sys.argv = ['capemix']; from capemix.cli import main; main()"
        ran = subprocess.run(
            [sys.executable, "-c", asked], env=where, capture_output=True, text=True, check=False
        )
        return ran.stdout.split()

    assert completed("capemix veri") == ["verify"]
    assert "--epsilon" in completed("capemix synth --eps")


def test_a_guarantee_reads_as_a_promise() -> None:
    rng, label = np.random.default_rng(0), np.arange(200) % 2
    fitted = Synthesizer(epsilon=4.0, classes=[0, 1], samples=20).fit(
        rng.normal(size=(200, 2)), label
    )
    said = str(fitted.guarantee_)
    assert said.startswith("epsilon 4, delta 1e-05 (add-or-remove-one, sound accountant)\n")
    assert "status: guarantee" in said
    for each in fitted.guarantee_.assumptions:
        assert f"- {each}" in said


def test_a_draft_that_nobody_confirmed_says_how_to(people: Path, capemix: Capemix) -> None:
    words = ["synth", people, "--label", "ill", "--schema", "draft", "--epsilon", 5, "--no-ledger"]
    ran = capemix(*words, "--out", "release")
    assert ran.code == 0, ran.err
    assert "Do not publish" in ran.out
    assert "`capemix schema confirm`" in ran.out


def test_a_warning_has_truth_values_as_the_column_has() -> None:
    table = Table((Number("a", 0, 1),), Category("ill", (False, True)))
    from capemix.data.arrays import cells_of_columns

    rows = table.rows(
        cells_of_columns({"a": [0.5] * 900}, table.names, "ill", np.array([True] * 900))
    )
    plan = make_plan(Facts.of(rows), method_named("class-gaussian")(samples=20)).calibrate(1.0)
    warned = synthesize(plan, rows, source=SeededSource(3)).warnings
    assert any(each.endswith(": false") for each in warned if each.startswith("class sizes")), (
        warned
    )
