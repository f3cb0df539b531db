"""Options that several commands share: a file a group, and what becomes of them."""

from __future__ import annotations

from capemix.cli.options.counted import Counted, saying_what_was_charged
from capemix.cli.options.data import DataOptions, Dealing, Opened
from capemix.cli.options.facts import ClassSizes, DeclaredFacts, parse_names, parse_sizes
from capemix.cli.options.federation import Adversary, PaperModes, Scheme, Sites
from capemix.cli.options.groups import MORE, PAPER, SITES, with_options
from capemix.cli.options.method import DeclaredMethodName, MethodName
from capemix.cli.options.names import (
    Delta,
    DeviceName,
    EngineName,
    Epsilon,
    FormName,
    Json,
    LabelsName,
    LawName,
    LedgerFile,
    MasksName,
    ModelName,
    NormaliseName,
    Out,
    RelationName,
    SchemeName,
    SiteNoiseName,
    TestSeed,
)
from capemix.cli.options.people import People, Person, RowsPerPerson
from capemix.cli.options.signed import Signed, own_key
from capemix.cli.options.trained import Trained

__all__ = [
    "MORE",
    "PAPER",
    "SITES",
    "Adversary",
    "ClassSizes",
    "Counted",
    "DataOptions",
    "Dealing",
    "DeclaredFacts",
    "DeclaredMethodName",
    "Delta",
    "DeviceName",
    "EngineName",
    "Epsilon",
    "FormName",
    "Json",
    "LabelsName",
    "LawName",
    "LedgerFile",
    "MasksName",
    "MethodName",
    "ModelName",
    "NormaliseName",
    "Opened",
    "Out",
    "PaperModes",
    "People",
    "Person",
    "RelationName",
    "RowsPerPerson",
    "Scheme",
    "SchemeName",
    "Signed",
    "SiteNoiseName",
    "Sites",
    "TestSeed",
    "Trained",
    "own_key",
    "parse_names",
    "parse_sizes",
    "saying_what_was_charged",
    "with_options",
]
