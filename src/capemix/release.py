"""The release: synthetic rows with their guarantee, written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from capemix import documents
from capemix.data.frames import pandas_of
from capemix.data.rows import LabeledRows
from capemix.data.soft_labels import (
    SoftLabels,
    checked_soft_labels,
    read_soft_labels,
    soft_label_columns,
    with_soft_labels,
)
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.guarantee import Guarantee
from capemix.identity import Identity, Member
from capemix.manifest import FORMATS, HowMade, Manifest, installed
from capemix.pages import write_report
from capemix.plan import BudgetLine
from capemix.queries import QueryShape
from capemix.signature import SIGNATURE, signature_of
from capemix.sums.steps import Step

if TYPE_CHECKING:
    import pyarrow as pa

    from capemix.plan import Plan

MANIFEST: Final = "manifest.json"

STATISTICS: Final = "statistics"
"""The folder, within a release's, of the noisy figures that it was made of."""


class ReleasedPlan(Protocol):
    """What a release says of the plan behind it, in its manifest and on the terminal. A plan that
    is made elsewhere needs no more than this."""

    @property
    def known(self) -> Facts:
        """The facts that it was carried out by."""

    @property
    def outline(self) -> tuple[QueryShape, ...]:
        """The sums that were asked for."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything that is done to a record before it is added up, and how it is covered."""

    @property
    def row_clip(self) -> float | None:
        """The norm to which whole rows were clipped, if they were."""

    def budget(self) -> tuple[BudgetLine, ...]:
        """What each sum cost, in order."""


@dataclass(frozen=True, eq=False)
class Release:
    """Synthetic rows in the data's own units (in standardised units after a site's z-score).

    ``soft_labels``, where there are any, say how likely each class is: rows by classes.
    ``mixed_labels``, where records of all classes are mixed, are the noisy mixed one-hot labels;
    ``labels`` then holds their largest entries. Where a schema codes rows, so are these: see
    `columns`. ``warnings`` say in words what could not be told from noise, by noisy values alone.
    ``statistics`` are tables of what was measured, with its standard errors, by name: columns by
    name each. ``sums`` are the noisy sums themselves, by name, and ``asked`` is the plan that asked
    for them: more rows can be made of these at no cost (`capemix.run.more`). ``how_made`` says when
    and by what the release came to be.
    """

    features: npt.NDArray[np.floating[Any]]
    labels: npt.NDArray[np.int64]
    plan: ReleasedPlan
    guarantee: Guarantee
    soft_labels: SoftLabels | None = None
    mixed_labels: npt.NDArray[np.floating[Any]] | None = None
    warnings: tuple[str, ...] = ()
    statistics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sums: Mapping[str, Any] = field(default_factory=dict, repr=False)
    asked: Plan | None = field(default=None, repr=False)
    how_made: HowMade | None = None

    def __post_init__(self) -> None:
        if self.soft_labels is not None:
            checked = checked_soft_labels(self.soft_labels, len(self), len(self.facts.listed))
            object.__setattr__(self, "soft_labels", checked)
            self._soft_label_columns()

    @property
    def facts(self) -> Facts:
        """What is public of the rows: columns, label, classes."""
        return self.plan.known

    def __len__(self) -> int:
        return len(self.labels)

    def columns(self) -> dict[str, Any]:
        """The rows as columns by name, with the label, if there is one, in its place; by a schema,
        in their own types."""
        facts, table = self.facts, self.facts.table
        if table is not None:
            return table.cells(self.features.astype(np.float64, copy=False), self.labels)
        found: list[tuple[str, Any]] = list(zip(facts.features, self.features.T, strict=True))
        if facts.label is not None:
            place = len(found) if facts.label_place is None else facts.label_place
            found.insert(place, (facts.label, np.array(facts.listed)[self.labels]))
        return dict(found)

    def _soft_label_columns(self) -> tuple[str, ...]:
        facts = self.facts
        return soft_label_columns(facts.label or "", facts.listed, taken=facts.features)

    def manifest(self, digests: dict[str, str], signer: Member | None = None) -> Manifest:
        """What anyone may know of this release."""
        return Manifest(
            guarantee=documents.as_json(self.guarantee),
            plan=documents.as_json(self.plan),
            facts=self.facts,
            outline=self.plan.outline,
            steps=self.plan.steps,
            budget=self.plan.budget(),
            clip=self.plan.row_clip,
            rows=len(self),
            soft_labels=None if self.soft_labels is None else self._soft_label_columns(),
            warnings=self.warnings,
            versions=installed(),
            sha256=digests,
            how_made=self.how_made,
            signer=signer,
        )

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        csv: bool = False,
        identity: Identity | None = None,
        beside: Mapping[str, str] | None = None,
    ) -> Path:
        """Write the folder: everything first under a name of its own, then one rename. With ``csv``
        the rows are there as text, too. The manifest is signed by ``identity``, if there is one.
        ``beside`` are other texts that belong to the release, by the names of their files."""
        target = check_output(folder)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        except OSError as error:
            raise _unwritable(target, error) from error
        try:
            self._write(partial, csv, beside or {})
            self._describe(partial, identity)
            partial.chmod(0o755)
            if target.exists():
                target.rmdir()  # an empty folder, as check_output saw; anything else fails here
            partial.rename(target)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise _unwritable(target, error) from error
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return target

    def _write(self, folder: Path, csv: bool, beside: Mapping[str, str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyarrow.csv import write_csv

        columns, facts = self.columns(), self.facts
        table = pa.table(columns) if facts.table is None else facts.table.arrow(columns)
        arrays = {} if facts.label is None else {"labels": columns[facts.label]}
        if self.soft_labels is not None:
            table = with_soft_labels(table, self._soft_label_columns(), self.soft_labels)
            arrays["soft_labels"] = self.soft_labels
        pq.write_table(table, folder / "synthetic.parquet")
        if csv:
            missing = () if facts.table is None else facts.table.missing
            pandas_of(table, missing).to_csv(folder / "synthetic.csv", index=False)
        if facts.image_shape is not None:
            images = self.features.reshape(-1, *facts.image_shape)
            np.savez(folder / "synthetic.npz", features=images, **arrays)
        if self.mixed_labels is not None:
            np.save(folder / "mixed_labels.npy", self.mixed_labels)
        if self.statistics:
            (folder / STATISTICS).mkdir()
        for name, figures in self.statistics.items():
            found = pa.table(dict(figures))
            pq.write_table(found, folder / STATISTICS / f"{name}.parquet")
            if csv:
                write_csv(found, folder / STATISTICS / f"{name}.csv")
        for name, said in beside.items():
            (folder / name).write_text(said)

    def _describe(self, folder: Path, identity: Identity | None) -> None:
        """The report, the manifest of all that is there by then, and its signature."""
        signer = None if identity is None else identity.member
        write_report(folder, self.manifest(_digests(folder), signer))
        text = self.manifest(_digests(folder), signer).text()
        (folder / MANIFEST).write_text(text)
        if identity is not None:
            (folder / SIGNATURE).write_text(signature_of(text.encode(), identity))


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def outside_releases(path: str | os.PathLike[str], field: str = "out") -> Path:
    """The path, with links followed, if it lies in no release: what is written beside a manifest
    would be published along with it."""
    target = Path(os.path.realpath(path))
    for folder in (target, *target.parents):
        try:
            text = (folder / MANIFEST).read_text()
        except (OSError, ValueError):
            continue
        if any(f'"{known}"' in text for known in FORMATS):
            inside = folder != target
            raise InputError(
                field,
                "lies in a release" if inside else "is a release already",
                value=path,
                fix="name a place outside it" if inside else "name a new folder",
            )
    return target


def check_output(folder: str | os.PathLike[str]) -> Path:
    """The folder to write, if it can be: absent or empty, where we may write. Makes nothing."""
    target = outside_releases(folder)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InputError(
                "out", "is in use", value=folder, fix="name a folder that is absent or empty"
            )
        standing = next(path for path in target.parents if path.exists())
    except OSError as error:
        raise _unwritable(target, error) from error
    if not standing.is_dir() or not os.access(standing, os.W_OK | os.X_OK):
        raise _unwritable(target, None)
    return target


def _unwritable(target: Path, error: OSError | None) -> InputError:
    reason = f": {error.strerror}" if error is not None and error.strerror else ""
    return InputError(
        "out", f"cannot be written{reason}", value=target, fix="name a folder you may write to"
    )


@dataclass(frozen=True, eq=False)
class SavedRelease:
    """A release read back from its folder, checked against its manifest's digests.

    ``soft_labels``, where it has them, are in the order of the rows and of their classes.
    ``statistics`` are tables by name: see `Release`.
    """

    rows: LabeledRows
    manifest: Manifest
    soft_labels: SoftLabels | None = None
    statistics: Mapping[str, pa.Table] = field(default_factory=dict)


def read_release(folder: str | os.PathLike[str]) -> SavedRelease:
    """The rows of a release folder, and its manifest."""
    path = Path(folder)
    try:
        manifest = Manifest.read(path / MANIFEST)
    except InputError as error:
        missing = not (path / MANIFEST).is_file()
        why = "" if missing else f": {error.field} {error.problem}"
        raise InputError(
            "release",
            f"has no readable manifest.json{why}",
            value=folder if missing or error.value is None else error.value,
            fix="name a release folder" if missing else error.fix,
        ) from error
    table, facts = path / "synthetic.parquet", manifest.facts
    _check_digest(path, table.name, manifest)
    statistics = _statistics(path, manifest)
    rows = _rows(table, facts)
    if manifest.soft_labels is None:
        return SavedRelease(rows, manifest, statistics=statistics)
    columns = soft_label_columns(rows.label_name or "", rows.classes)
    if manifest.soft_labels != columns:
        raise InputError(
            str(path / MANIFEST),
            "names other soft labels than one for each class",
            fix="get the release again",
        )
    found = read_soft_labels(table, columns)
    soft = checked_soft_labels(found, len(rows), len(columns), field=str(table))
    return SavedRelease(rows, manifest, soft, statistics)


def _check_digest(folder: Path, name: str, manifest: Manifest) -> None:
    """Refuse a file of a release that is not the one which the manifest names."""
    try:
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            "release", f"has no {name}", value=folder, fix="get the release again"
        ) from error
    if manifest.sha256.get(name) != digest:
        raise InputError(
            str(folder / name),
            "does not match its manifest",
            value=digest[:12],
            fix="get the release again",
        )


def _statistics(folder: Path, manifest: Manifest) -> dict[str, pa.Table]:
    from pyarrow import ArrowException, parquet

    there = {f"{STATISTICS}/{path.name}" for path in (folder / STATISTICS).glob("*")}
    told = {name for name in manifest.sha256 if name.startswith(f"{STATISTICS}/")}
    if there != told:
        raise InputError(
            str(folder / STATISTICS),
            "has other files than its manifest names",
            value=sorted(there ^ told)[0],
            fix="get the release again",
        )
    for name in sorted(told):
        _check_digest(folder, name, manifest)
    found = [folder / name for name in sorted(told) if name.endswith(".parquet")]
    try:
        return {path.stem: parquet.read_table(path) for path in found}
    except (OSError, ArrowException) as error:
        raise InputError(
            str(folder / STATISTICS), "cannot be read", fix="get the release again"
        ) from error


def released_table(folder: str | os.PathLike[str]) -> pa.Table:
    """The rows of a release that `read_release` has checked, as they were written."""
    from pyarrow import parquet

    return parquet.read_table(Path(folder) / "synthetic.parquet")


def _rows(table: Path, facts: Facts) -> LabeledRows:
    from capemix.data import open_data

    if facts.table is not None:
        return open_data(table, table=facts.table).train
    rows = open_data(table, facts.label, classes=facts.listed).train
    if rows.unfit:
        raise InputError(
            str(table), "has rows that its manifest does not describe", fix="get the release again"
        )
    return replace(rows, image_shape=facts.image_shape)
