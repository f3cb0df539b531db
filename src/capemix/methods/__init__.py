"""The methods: a folder each, with its config, the sums it asks for and what it makes of them."""

from __future__ import annotations

from importlib import import_module
from typing import Final, TypeVar

from capemix.documents import enlist, family, load_plugins
from capemix.errors import InputError
from capemix.methods.base import Method, SyntheticRows

BUILT_IN: Final = {
    "mixing": "capemix.methods.mixing",
    "tables": "capemix.methods.tables",
    "class-gaussian": "capemix.methods.class_gaussian",
    "image-clusters": "capemix.methods.image_clusters",
    "image-diffusion": "capemix.methods.image_diffusion",
}
PAPERS: Final = "mixing"
"""The paper's own, which is meant where nothing says which and no rows decide."""

_KNOWN: dict[str, type[Method]] = {}

M = TypeVar("M", bound=type[Method])


def method(cls: M) -> M:
    """Make a method known by its name: to the command line, to plan files and to sites."""
    enlist(_KNOWN, cls, word="methods")
    return cls


def methods() -> dict[str, type[Method]]:
    """Every method that is known, by its name; ours come first, whatever was imported before."""
    for module in BUILT_IN.values():
        import_module(module)
    load_plugins()
    return {name: _KNOWN[name] for name in (*BUILT_IN, *_KNOWN)}


def method_named(name: str) -> type[Method]:
    found = methods().get(name)
    if found is None:
        known = ", ".join(methods())
        raise InputError("method", "is unknown", value=name, fix=f"use one of {known}")
    return found


family(Method, lambda: methods().values())

__all__ = ["BUILT_IN", "PAPERS", "Method", "SyntheticRows", "method", "method_named", "methods"]
