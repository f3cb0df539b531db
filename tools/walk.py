"""How far one has to read: the source files whose functions are entered between opening a file and
the finished release.

    python tools/walk.py curator     class Gaussians of one curator's file, with nothing declared
    python tools/walk.py sites       mixtures of ten sites' rows
    python tools/walk.py flower      the same of four sites, by Flower's simulation: what the
                                     coordinator's and the agents' processes enter together

A file counts once one of its functions is called. What runs while a module is imported or a kernel
is compiled does not. Walk in a fresh process, one walk in each: what an earlier one remembered is
not entered again.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numba

import capemix

ROOT = Path(capemix.__file__).parent
_COMPILER = f"{Path(numba.__file__).parent}{os.sep}"
_HOOK = "CAPEMIX_WALK"
_SITE = """
import os, sys
sys.path.insert(0, {tools!r})
import walk
walk.follow(os.path.join(os.environ[{hook!r}], str(os.getpid())))
"""


class Walk:
    """Notes each of our files when one of its functions is called for the first time; in ``log``
    too, line by line, since a process may be killed."""

    def __init__(self, log: str | None = None) -> None:
        self.files: set[str] = set()
        self._log = log

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename in self.files or not code.co_filename.startswith(f"{ROOT}{os.sep}"):
            return
        if not code.co_flags & inspect.CO_OPTIMIZED or _while_loading(frame):
            return
        self.files.add(code.co_filename)
        if self._log is not None:
            with Path(self._log).open("a") as file:
                file.write(f"{code.co_filename}\n")

    @property
    def names(self) -> list[str]:
        return sorted(str(Path(name).relative_to(ROOT)) for name in self.files)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """All threads that are started meanwhile too."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def _while_loading(frame: FrameType) -> bool:
    back: FrameType | None = frame
    while back is not None:
        if back.f_code.co_filename.startswith(_COMPILER):
            return True
        module = back.f_code.co_name == "<module>"
        if module and back.f_code.co_filename.startswith(str(ROOT)):
            return True
        back = back.f_back
    return False


def follow(log: str) -> None:
    """In a child process, from its start."""
    walk = Walk(log)
    threading.setprofile(walk)
    sys.setprofile(walk)


# -- the walks -------------------------------------------------------------------------------------


def written(folder: Path) -> Path:
    """The digits as a file."""
    from capemix.data import load_dataset

    train, _ = load_dataset("digits")
    path = folder / "digits.csv"
    lines = [",".join([*train.feature_names, "digit"])]
    for row, label in zip(train.features, train.labels, strict=True):
        lines.append(",".join([*map(str, row), str(label)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def curator(folder: Path) -> list[str]:
    from capemix.data import UnlistedRows, open_cells
    from capemix.engines.local import LocalEngine
    from capemix.facts import Facts
    from capemix.methods import method_named
    from capemix.plan import make_plan
    from capemix.run import run

    path, walk = written(folder), Walk()
    with walk.followed():
        rows = UnlistedRows.of(open_cells(path, "digit"), "digit")
        plan = make_plan(Facts.of(rows), method_named("class-gaussian")()).calibrate(10.0)
        run(plan, LocalEngine(rows))
    return walk.names


def sites(folder: Path) -> list[str]:
    from capemix.data import open_data, partition
    from capemix.engines.local import LocalEngine
    from capemix.facts import Facts
    from capemix.methods import method_named
    from capemix.plan import make_plan
    from capemix.run import run
    from capemix.sums.steps import PublicMap

    path, walk = written(folder), Walk()
    with walk.followed():
        rows = open_data(path, "digit", classes=tuple(range(10))).train
        parts = partition(rows, 10, "iid", seed=1)
        facts = Facts.of(rows, normalise=PublicMap.of_range(0, 16))
        plan = make_plan(facts, method_named("mixing")(), scheme="cape", sites=10).calibrate(10.0)
        run(plan, LocalEngine(parts))
    return walk.names


def flower(folder: Path) -> list[str]:
    from capemix.data import load_dataset, partition
    from capemix.engines.flower.local import run_on_loopback
    from capemix.facts import Facts
    from capemix.methods import method_named
    from capemix.plan import make_plan
    from capemix.sums.steps import PublicMap

    train, _ = load_dataset("digits")
    facts = Facts.of(train, normalise=PublicMap.of_range(0, 16))
    plan = make_plan(facts, method_named("mixing")(), scheme="cape", sites=4).calibrate(10.0)
    logs, hook = folder / "walked", folder / "hook"
    logs.mkdir()
    hook.mkdir()
    text = _SITE.format(tools=str(Path(__file__).parent), hook=_HOOK)
    (hook / "sitecustomize.py").write_text(text)
    before = dict(os.environ)
    path = [str(hook), str(ROOT.parent), *filter(None, [before.get("PYTHONPATH")])]
    os.environ |= {_HOOK: str(logs), "PYTHONPATH": os.pathsep.join(path)}
    try:
        run_on_loopback(
            plan, partition(train, 4, "iid", seed=1), folder / "flower", engine="simulation"
        )
    finally:
        os.environ.clear()
        os.environ.update(before)
    walk = Walk()
    walk.files = {line for log in logs.iterdir() for line in log.read_text().splitlines()}
    return walk.names


WALKS: dict[str, Callable[[Path], list[str]]] = {
    "curator": curator,
    "sites": sites,
    "flower": flower,
}


def main() -> None:
    for name in sys.argv[1:] or WALKS:
        with tempfile.TemporaryDirectory() as folder:
            files = WALKS[name](Path(folder))
        print(f"{name}: {len(files)} files")
        for file in files:
            print(f"  {file}")


if __name__ == "__main__":
    main()
