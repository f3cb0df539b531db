"""Differentially private synthetic data from sites that may not pool their rows."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capemix.api import Synthesizer, synthesize
    from capemix.data import LabeledRows, Table, open_data, partition
    from capemix.errors import CapemixError, InputError
    from capemix.facts import Facts
    from capemix.guarantee import Guarantee
    from capemix.plan import Plan, make_plan
    from capemix.release import Release, read_release
    from capemix.sums.steps import PublicMap, SiteZScore

_HOME = {
    "Synthesizer": "api",
    "synthesize": "api",
    "LabeledRows": "data",
    "Table": "data",
    "open_data": "data",
    "partition": "data",
    "CapemixError": "errors",
    "InputError": "errors",
    "Guarantee": "guarantee",
    "Facts": "facts",
    "Plan": "plan",
    "make_plan": "plan",
    "PublicMap": "sums.steps",
    "SiteZScore": "sums.steps",
    "Release": "release",
    "read_release": "release",
}

__all__ = [
    "CapemixError",
    "Facts",
    "Guarantee",
    "InputError",
    "LabeledRows",
    "Plan",
    "PublicMap",
    "Release",
    "SiteZScore",
    "Synthesizer",
    "Table",
    "make_plan",
    "open_data",
    "partition",
    "read_release",
    "synthesize",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import capemix` stays quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'capemix' has no attribute {name!r}")
    return getattr(import_module(f"capemix.{_HOME[name]}"), name)
