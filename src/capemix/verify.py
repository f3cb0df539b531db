"""What can be checked of a release by whoever has its folder, and nothing else.

Nothing in the folder is run or followed, and what is read of it is bounded. A release says three
kinds of things. Some follow from others, as its guarantee does from its plan: these are worked out
anew. Some were signed: then nobody but the signer can have changed them. And some nobody can check
afterwards, such as that noise was drawn as the plan says: for these the signer is trusted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from capemix import documents
from capemix.data.soft_labels import soft_label_columns
from capemix.errors import InputError, printable
from capemix.folder import Folder
from capemix.identity import Member, in_groups
from capemix.manifest import EVERY_RECORD, FORMATS, NO_RECORD, Manifest
from capemix.plan import Plan
from capemix.program_cost import known
from capemix.protocol.consents import CONSENTS, Consents
from capemix.protocol.roster import Roster
from capemix.release import MANIFEST
from capemix.signature import SIGNATURE, Signature

_ALIKE: Final = 1e-6
"""How far figures may be apart that different machines work out: no more than a millionth."""

_MEMORY: Final = 4 << 30
"""Bytes that looking at a release may take: what is written in it could ask for any number."""


class Outcome(StrEnum):
    HELD = "held"
    FAILED = "did not hold"
    OPEN = "not checked"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and what came of it in a sentence."""

    about: str
    outcome: Outcome
    says: str


@dataclass(frozen=True)
class Verdict:
    """All that was found. ``manifest`` is None where it cannot be read."""

    findings: tuple[Finding, ...]
    manifest: Manifest | None = None

    def of(self, outcome: Outcome) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.outcome is outcome)

    @property
    def exit_code(self) -> int:
        """1: something did not hold; 3: nothing is wrong, and not all could be checked."""
        return 1 if self.of(Outcome.FAILED) else 3 if self.of(Outcome.OPEN) else 0


@dataclass(frozen=True)
class Trusted:
    """A key that whoever asks has from elsewhere: of a signer, or of a roster with all its members;
    or either by its fingerprint alone."""

    digits: str

    @classmethod
    def of(cls, said: str) -> Trusted:
        """By a file of `capemix keygen` or `federate roster`, or by digits, spaces or none."""
        digits = re.sub(r"[\s:]", "", said).lower()
        if re.fullmatch("[0-9a-f]{64}", digits):
            return cls(digits)
        if not Path(said).is_file():
            raise InputError(
                "key",
                "is neither a file nor a fingerprint of 64 digits",
                value=said,
                fix="give NAME.json, roster.json, or what `capemix key` shows",
            )
        found = documents.load(said, name="key")
        if isinstance(found, dict) and "sites" in found:
            return cls(documents.from_json(Roster, found, name="roster").digest().hex())
        return cls(documents.from_json(Member, found, name="key").identity)


def verify(folder: Path, trusted: Trusted | None = None) -> Verdict:
    """Everything that can be checked of a release."""
    with Folder.at(folder) as opened, _little_memory():
        raw = opened.read(MANIFEST)
        if raw is None:
            raise InputError(
                "the folder", f"has no readable {MANIFEST}", value=folder, fix="name a release"
            )
        try:
            found = documents.parse(raw.decode(), name=MANIFEST)
            manifest, form = Manifest.of(found, folder / MANIFEST), str(found.get("format"))
        except (InputError, ValueError) as error:
            said = str(error) if isinstance(error, InputError) else "it is no text"
            return Verdict((Finding("manifest", Outcome.FAILED, said),))
        checks = _Checks(opened, raw, manifest, form, trusted)
        return Verdict(tuple(checks.findings()), manifest)


@dataclass(frozen=True)
class _Checks:
    folder: Folder
    raw: bytes
    manifest: Manifest
    format: str
    trusted: Trusted | None

    def findings(self) -> Iterator[Finding]:
        yield self._files()
        yield self._signature()
        consents = self._consents()
        yield self._key(consents)
        try:
            plan = self._plan()
            if isinstance(plan, Plan):
                yield self._guarantee(plan)
                yield self._described(plan)
            else:
                yield plan
            if consents is not None:
                yield self._consented(consents, plan)
        except (
            ValueError, TypeError, ArithmeticError, LookupError, AttributeError, MemoryError
        ) as error:  # fmt: skip
            says = "takes too much memory" if isinstance(error, MemoryError) else "makes no sense"
            yield _failed("guarantee", f"the plan {says}")
        yield self._rows()

    # -- who made it -------------------------------------------------------------------------------

    def _files(self) -> Finding:
        found, named = self.folder.contents(), self.manifest.sha256
        there = {name for name in found.sha256 if name not in (MANIFEST, SIGNATURE)}
        wrong = [f"{name} {why}" for name, why in sorted(found.left_out.items())]
        wrong += [f"{name} is missing" for name in sorted(set(named) - there)]
        wrong += [f"{name} is not in the manifest" for name in sorted(there - set(named))]
        wrong += [
            f"{name} was changed"
            for name in sorted(there & set(named))
            if found.sha256[name] != named[name]
        ]
        return _found("files", wrong, f"{len(named)}, each as the manifest says")

    def _signature(self) -> Finding:
        signer, raw = self.manifest.signer, self.folder.read(SIGNATURE)
        if signer is None:
            if SIGNATURE in self.folder.contents().sha256:
                return _failed("signature", "there is one, and the manifest names no signer")
            says = (
                "nobody signed: what is here agrees with itself, which says nothing of who made it"
            )
            return Finding("signature", Outcome.OPEN, says)
        if raw is None:
            return _failed("signature", f"the manifest is signed by {signer.name}: it is missing")
        try:
            found = documents.parse(raw.decode(), name=SIGNATURE)
            signature = documents.from_json(Signature, found, name=SIGNATURE)
        except ValueError:
            return _failed("signature", f"{SIGNATURE} cannot be read")
        if not signature.holds(self.raw, signer):
            return _failed("signature", f"it is not {signer.name}'s, of this manifest")
        return Finding("signature", Outcome.HELD, f"signed by {signer}")

    def _key(self, consents: Consents | None) -> Finding:
        signer, trusted = self.manifest.signer, self.trusted
        if signer is None:
            if trusted is None:
                return Finding("key", Outcome.OPEN, "there is none")
            return _failed("key", "a signature by that key is asked for, and nobody signed")
        roster = None if consents is None else consents.roster.digest().hex()
        if trusted is None:
            says = (
                "whose key that is: compare its fingerprint with one that you have from elsewhere,"
                " and give it with --key"
            )
            if roster is not None:
                says += f" (or that of the roster, {in_groups(roster)}, for the sites' keys, too)"
            return Finding("key", Outcome.OPEN, says)
        if roster is not None and trusted.digits == roster:
            return Finding("key", Outcome.HELD, "the coordinator's and the sites' keys are yours")
        if trusted.digits == signer.identity:
            if consents is None:
                return Finding("key", Outcome.HELD, "it is the key that you gave")
            says = "it is the key that you gave; for the sites' keys give the roster"
            return Finding("key", Outcome.OPEN, says)
        return _failed("key", "it is another one than you gave")

    # -- what follows from the plan ----------------------------------------------------------------

    def _plan(self) -> Plan | Finding:
        """The plan, or why it cannot be accounted for here."""
        if self.format == FORMATS[-1] or "method" not in self.manifest.plan:
            says = "the plan is of a kind that is not accounted for here"
            return Finding("guarantee", Outcome.OPEN, says)
        try:
            plan = documents.from_json(Plan, self.manifest.plan, name="the plan")
            known(plan.multiplier)
        except InputError as error:
            foreign = error.problem.startswith("has an unknown")  # of a package that is not here
            return Finding("guarantee", Outcome.OPEN if foreign else Outcome.FAILED, str(error))
        return plan

    def _guarantee(self, plan: Plan) -> Finding:
        """The promise, worked out anew from the plan and from what is said of the making."""
        how, said = self.manifest.how_made, dict(self.manifest.guarantee)
        if how is None:
            made = documents.as_json(plan.guarantee())
            for part in ("status", "assumptions"):  # of which the folder does not say enough
                made[part] = said.get(part)
        else:
            made = documents.as_json(
                plan.guarantee(
                    seeded=how.test_seed,
                    one_process=how.curator_saw == EVERY_RECORD,
                    read_from_rows=how.read_from_rows,
                )
            )
        if self.format != FORMATS[0]:
            said = {**made, **said}  # parts that its time did not know
        wrong = [_differs(*each) for each in _differences("", said, made)]
        epsilon = made["epsilon"]
        if plan.epsilon is not None and (epsilon or 0.0) > plan.epsilon * (1 + _ALIKE):
            wrong.append(f"the plan asks for epsilon {plan.epsilon:g} and costs {epsilon:g}")
        words = "no epsilon" if epsilon is None else f"epsilon {epsilon:.4g}"
        words += f", status {made['status']}"
        return _found("guarantee", wrong, f"{words}: all that it says follows from the plan")

    def _described(self, plan: Plan) -> Finding:
        """What else follows from the plan."""
        manifest = self.manifest
        said = {
            "facts": manifest.facts,
            "outline": manifest.outline,
            "steps": manifest.steps,
            "budget": manifest.budget,
            "clip": manifest.clip,
        }
        made = {
            "facts": plan.known,
            "outline": plan.outline,
            "steps": plan.steps,
            "budget": plan.budget(),
            "clip": plan.row_clip,
        }
        how = manifest.how_made
        if how is not None:
            said["schema"], made["schema"] = how.schema, plan.facts.schema_origin
        found = _differences("", documents.as_json(said), documents.as_json(made))
        return _found(
            "budget",
            [_differs(*each) for each in found],
            "the budget's lines, the sums, the steps and the facts are the plan's",
        )

    # -- the sites ---------------------------------------------------------------------------------

    def _consents(self) -> Consents | None:
        raw = self.folder.read(CONSENTS)
        try:
            if raw is None:
                return None
            found = documents.parse(raw.decode(), name=CONSENTS)
            return documents.from_json(Consents, found, name=CONSENTS)
        except ValueError:
            return None

    def _consented(self, consents: Consents, plan: Plan | Finding) -> Finding:
        manifest, how = self.manifest, self.manifest.how_made
        if isinstance(plan, Finding):
            return Finding("sites", Outcome.OPEN, "whether they took part in this plan")
        seeded = how is not None and how.test_seed
        wrong = list(consents.faults(plan, seeded=seeded))
        signer = manifest.signer
        if signer is not None and signer != consents.roster.coordinator:
            wrong.append("the signer is not the roster's coordinator")
        return _found(
            "sites",
            wrong,
            f"the sites in each sum signed that they take part, as a roster of"
            f" {len(consents.roster.sites)} has them",
        )

    # -- the rows ----------------------------------------------------------------------------------

    def _rows(self) -> Finding:
        """How many there are, and their columns: the file's own directory says so."""
        import pyarrow.parquet as pq

        manifest, wrong = self.manifest, []
        facts, how = manifest.facts, manifest.how_made
        if how is not None and (how.curator_saw == NO_RECORD) != (self._consents() is not None):
            wrong.append("who saw the records and whether sites signed do not go together")
        soft = soft_label_columns(facts.label or "", facts.classes or (), taken=facts.features)
        if manifest.soft_labels not in (None, soft):
            wrong.append("the soft labels are not one for each class")
        try:
            with self.folder.open("synthetic.parquet") as file:
                opened = pq.ParquetFile(file)
                rows, names = opened.metadata.num_rows, set(opened.schema_arrow.names)
        except Exception:  # a tampered file can raise anything
            return _failed("rows", "synthetic.parquet cannot be read")
        if rows != manifest.rows:
            wrong.append(f"the manifest says {manifest.rows:,} rows, and there are {rows:,}")
        label = () if facts.label is None else (facts.label,)
        if names != {*facts.features, *label, *(manifest.soft_labels or ())}:
            wrong.append("the columns are not those that the manifest names")
        return _found("rows", wrong, f"{rows:,} rows of the columns that the manifest names")


def _failed(about: str, says: str) -> Finding:
    return Finding(about, Outcome.FAILED, says)


def _found(about: str, wrong: Sequence[str], right: str) -> Finding:
    more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
    says = printable("; ".join(wrong[:3]) + more if wrong else right)
    return Finding(about, Outcome.FAILED if wrong else Outcome.HELD, says)


def _differs(where: str, said: Any, made: Any) -> str:
    return f"{where} says {_short(said)}, and it comes to {_short(made)}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else f"{value:.6g}" if type(value) is float else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _differences(where: str, said: Any, made: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each place where two documents are not alike: figures may be rounded otherwise."""
    if isinstance(said, dict) and isinstance(made, dict):
        for key in dict.fromkeys((*said, *made)):
            yield from _differences(f"{where} {key}".strip(), said.get(key), made.get(key))
    elif isinstance(said, list) and isinstance(made, list) and len(said) == len(made):
        for at, (one, other) in enumerate(zip(said, made, strict=True)):
            yield from _differences(f"{where}[{at}]", one, other)
    elif not _alike(said, made):
        yield where, said, made


def _alike(said: Any, made: Any) -> bool:
    numbers = (int, float)
    if type(said) in numbers and type(made) in numbers and float in (type(said), type(made)):
        return math.isclose(said, made, rel_tol=_ALIKE)
    return type(said) is type(made) and bool(said == made)


@contextmanager
def _little_memory() -> Iterator[None]:
    """What is written in a release may ask for so much memory and no more: then a `MemoryError`
    ends the look at it."""
    try:
        import resource
    except ImportError:  # no such limits here
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        yield
        return
    most = pages * resource.getpagesize() + _MEMORY
    if before[0] != resource.RLIM_INFINITY:
        most = min(most, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
