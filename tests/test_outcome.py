"""What a coordinator's people read of a run: it never says that a dead one runs, and nobody's words
move their terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capemix.cli import main
from capemix.engines.flower.coordinator_app import main as coordinate
from capemix.engines.flower.files import (
    DIED,
    ENDED,
    RELEASED,
    RUNNING,
    STOPPED,
    Outcome,
    ProcessMark,
)
from capemix.engines.flower.relay import patience
from capemix.engines.flower.standing import LinkFolder
from capemix.engines.flower.unfinished import Unfinished
from capemix.errors import InputError
from capemix.protocol.roster import Member
from capemix.protocol.wire import ProtocolError
from conftest import Capemix
from world import a_roster, counting_plan


def test_a_second_run_is_refused_while_one_is_under_way(tmp_path: Path) -> None:
    link = LinkFolder(tmp_path)
    assert link.next_release() == tmp_path / "release"
    Outcome(process=ProcessMark.of(os.getpid())).write(tmp_path / "release")
    with pytest.raises(InputError, match=r"has a run under way.*release"):
        link.start_run(link.next_release())
    with pytest.raises(InputError, match=f"has this run under way.*by `kill {os.getpid()}`"):
        link.start_run(tmp_path / "release", give_up=True)
    Outcome(process=ProcessMark(os.getpid(), "long ago")).write(tmp_path / "release")
    for out, give_up in ((link.next_release(), False), (tmp_path / "release", True)):
        with pytest.raises(InputError, match="is not a federation's folder"):  # it got that far
            link.start_run(out, give_up=give_up)


def test_a_new_run_is_refused_while_one_that_died_could_be_gone_on_with(tmp_path: Path) -> None:
    link, out = LinkFolder(tmp_path), tmp_path / "release"
    Outcome(process=ProcessMark(os.getpid(), "long ago")).write(out)
    begun = Unfinished(out, counting_plan(4, 1, 1), a_roster(4))
    with pytest.raises(InputError, match=rf"begun.*go on with it by --out {out}, or end it"):
        link.start_run(link.next_release())
    for again, give_up in ((out, False), (out, True)):
        with pytest.raises(InputError, match="is not a federation's folder"):  # it got that far
            link.start_run(again, give_up=give_up)
    begun.remove()
    with pytest.raises(InputError, match="is not a federation's folder"):
        link.start_run(link.next_release())


def test_an_outcome_of_a_process_that_is_gone_says_so(tmp_path: Path, capemix: Capemix) -> None:
    out = tmp_path / "release"
    code = (
        "import os, sys; from pathlib import Path;"
        "from capemix.engines.flower.files import Outcome, ProcessMark;"
        "Outcome(process=ProcessMark.of(os.getpid())).write(Path(sys.argv[1])); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(out)], stdin=subprocess.PIPE)
    while (found := Outcome.read(out)) is None:
        assert process.poll() is None
    assert found.status == RUNNING
    assert capemix("federate", "outcome", out).out == f"{out}: running\n"
    process.kill()
    while Outcome.read(out) == found:  # also while nobody has waited for it
        pass
    ran = capemix("federate", "outcome", out)
    assert (ran.code, ran.out) == (1, f"{out}: died: its process is gone; nothing was released\n")
    process.communicate()
    assert capemix("federate", "outcome", out, "--json").json["status"] == DIED
    assert capemix("federate", "outcome", tmp_path / "none").code == 2


def test_another_process_with_the_same_number_is_another_one() -> None:
    own = ProcessMark.of(os.getpid())
    assert own.lives
    assert not replace(own, started=own.started[:-1] + "x").lives
    assert replace(own, started="").lives  # where the system tells no more


def test_an_outcome_that_is_final_stays_so(tmp_path: Path, capemix: Capemix) -> None:
    gone = ProcessMark(pid=os.getpid(), started="long ago")
    for status, code in ((RELEASED, 0), (ENDED, 1)):
        Outcome(status=status, process=gone).write(tmp_path / "out")
        found = Outcome.read(tmp_path / "out")
        assert found is not None
        assert found.status == status
        assert capemix("federate", "outcome", tmp_path / "out").code == code


def test_a_full_disk_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("capemix.engines.flower.coordinator_app._conduct", full)
    with pytest.raises(OSError, match="No space"):
        coordinate_in(tmp_path)
    found = Outcome.read(tmp_path / "out")
    assert found is not None
    assert (found.status, found.reason) == (ENDED, "it broke off: No space left on device")


def coordinate_in(folder: Path) -> None:
    """A coordinator whose release would be ``folder/out``."""
    paths = {name: str(folder / name) for name in ("plan", "roster", "identity", "out")}
    config: Any = {**paths, "wait-seconds": 1.0, "round-seconds": 1.0}
    coordinate(None, SimpleNamespace(run_config=config))  # type: ignore[arg-type]


def test_a_coordinator_that_is_told_to_stop_says_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capemix: Capemix
) -> None:
    """Flower's programs leave by SystemExit on SIGTERM."""
    out = tmp_path / "out"

    def stopped(*_: object) -> None:
        Unfinished(out, counting_plan(4, 1, 1), a_roster(4))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("capemix.engines.flower.coordinator_app._conduct", stopped)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with pytest.raises(SystemExit):
            coordinate_in(tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)
    found = Outcome.read(out)
    assert found is not None
    assert (found.status, found.reason) == (STOPPED, "its process was told to stop")
    again = f"capemix federate run {tmp_path} --out {out}"
    hint = f"go on with it: {again}\nor end it: {again} --give-up\n"
    ran = capemix("federate", "outcome", out)
    assert (ran.code, ran.out) == (1, f"{out}: stopped: its process was told to stop\n{hint}")
    Outcome(process=ProcessMark(os.getpid(), "long ago")).write(out)  # the same of one that died
    assert capemix("federate", "outcome", out).out.endswith(f"nothing was released\n{hint}")
    Unfinished(out, counting_plan(4, 1, 1), a_roster(4)).remove()
    assert hint not in capemix("federate", "outcome", out).out


def test_a_relay_waits_as_long_as_the_coordinator() -> None:
    def waits(**config: Any) -> float:
        return patience(SimpleNamespace(run_config=config))  # type: ignore[arg-type]

    assert waits(**{"round-seconds": 3600.0}) == 3600.0
    assert waits(**{"round-seconds": 20}) == 20.0
    for odd in ({}, {"round-seconds": "soon"}, {"round-seconds": -1.0}):
        assert waits(**odd) == 600.0


ESCAPE = "\x1b]0;owned\x07\x1b[2Jreleased to /srv/release\nsites in: 0, 1, 2, 3"


def test_others_words_move_no_terminal(
    tmp_path: Path, capemix: Capemix, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    Outcome(status=ENDED, reason=ESCAPE, lost={"1": ESCAPE}).write(tmp_path / "out")
    said = capemix("federate", "outcome", tmp_path / "out").out
    assert "released to" in said
    assert said.count("\n") == 2
    assert all(c.isprintable() for c in said.replace("\n", ""))

    def refused(**_: object) -> None:
        raise ProtocolError(ESCAPE)

    monkeypatch.setattr("capemix.cli.commands.app", refused)
    with pytest.raises(SystemExit):
        main()
    assert all(c.isprintable() for c in capsys.readouterr().err.replace("\n", ""))
    with pytest.raises(InputError, match="printable name"):
        Member(ESCAPE, "0" * 64)
