"""What several tests need: the command line in this process, and examples that are the same each
time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings

from capemix.cli import main

settings.register_profile("the same each time", derandomize=True, deadline=None)
settings.load_profile("the same each time")


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test counts in the ledger of whoever runs it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Tests run side by side; more threads than cores make torch wait for itself."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


Capemix = Callable[..., Ran]


@pytest.fixture
def capemix(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Capemix:
    """Run a command line as the installed program would."""
    return _runner("capemix", main, monkeypatch, capsys)


@pytest.fixture
def research(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Capemix:
    """The same for the laboratory's program."""
    from capemix_research.cli import main as program

    return _runner("capemix-research", program, monkeypatch, capsys)


def _runner(
    name: str,
    program: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Capemix:
    def run(*words: object) -> Ran:
        monkeypatch.setattr("sys.argv", [name, *(str(word) for word in words)])
        with pytest.raises(SystemExit) as stopped:
            program()
        captured = capsys.readouterr()
        code = stopped.value.code
        return Ran(0 if code is None else int(code), captured.out, captured.err)

    return run
