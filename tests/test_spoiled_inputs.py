"""Spoiled inputs are refused with a message that helps, and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import spoiled
from spoiled import CASES, PAGE, in_this_process


def test_the_page_shows_what_is_said_of_every_spoiled_input() -> None:
    """`answer` refuses a traceback, an exit code of 0, words on stdout, and a changed folder. The
    page is written by `python tests/spoiled.py`."""
    assert len(CASES) >= 40
    made = subprocess.run(  # where no other test has brought a method or a type of its own
        [sys.executable, spoiled.__file__, "--print"], capture_output=True, text=True, check=True
    )
    assert made.stdout == PAGE.read_text()


def test_a_case_that_is_not_refused_would_be_found(tmp_path: Path) -> None:
    fine = spoiled.Spoiled("nothing", spoiled.nothing, "capemix methods")
    with pytest.raises(AssertionError, match="code 0"):
        spoiled.answer(fine, tmp_path, in_this_process)
