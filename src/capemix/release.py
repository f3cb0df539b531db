"""The release: synthetic rows with their guarantee, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from capemix.data.rows import LabeledRows
from capemix.data.schema import Category, Table
from capemix.data.soft_labels import (
    SoftLabels,
    checked_soft_labels,
    read_soft_labels,
    soft_label_columns,
    with_soft_labels,
)
from capemix.errors import InputError
from capemix.guarantee import Guarantee
from capemix.plan import BudgetLine, Plan
from capemix.sums.rows import denormalise_rows
from capemix.sums.steps import SiteZScore, Step
from capemix.private import Json, public_text
from capemix.redraw import redrawn_rows
from capemix.synthesizers.told import more_than_noise

FORMAT: Final = "capemix-release/1"
_VERSIONED: Final = ("capemix", "numpy", "scipy", "cryptography", "dp-accounting", "pyarrow")


class ReleasedPlan(Protocol):
    """What a release says of the plan behind it, in its manifest and on the terminal. A plan that
    is made elsewhere needs no more than this."""

    @property
    def classes(self) -> tuple[str | int, ...]: ...

    @property
    def noise(self) -> float | None:
        """In the plan's own units."""

    @property
    def noise_multiplier(self) -> float | None:
        """The noise over what one record can add."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything that is done to rows before the noise, and how it is covered."""

    def budget(self) -> tuple[BudgetLine, ...]:
        """Every look at the rows, in order."""

    def as_json(self) -> dict[str, Any]:
        """Everything that was asked: declared values only."""


@dataclass(frozen=True, eq=False)
class Release:
    """Synthetic rows in the data's own units (in standardised units after a site's z-score).

    ``soft_labels``, where there are any, say how likely each of the plan's classes is: rows by
    classes. ``mixed_labels``, where records of all classes are mixed, are the noisy mixed one-hot
    labels; ``labels`` then holds their largest entries. Rows of a ``table`` are coded by it: see
    `columns`. ``warnings`` say in words what could not be told from noise, by noisy values alone.
    """

    features: npt.NDArray[np.floating[Any]]
    labels: npt.NDArray[np.int64]
    plan: ReleasedPlan
    guarantee: Guarantee
    feature_names: tuple[str, ...]
    label_name: str
    image_shape: tuple[int, int] | None
    soft_labels: SoftLabels | None = None
    table: Table | None = None
    mixed_labels: npt.NDArray[np.floating[Any]] | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.soft_labels is not None:
            checked = checked_soft_labels(self.soft_labels, len(self), len(self.plan.classes))
            object.__setattr__(self, "soft_labels", checked)
            self._soft_label_columns()

    @classmethod
    def from_means(
        cls,
        plan: Plan,
        means: npt.NDArray[np.floating[Any]],
        guarantee: Guarantee,
        *,
        schema_of: LabeledRows,
    ) -> Release:
        """Post-process the noisy means; of ``schema_of`` only the public schema is read."""
        rows, labels = plan.mixing.rows_from_means(means)
        tau = float(plan.noise or 0.0)
        warnings: tuple[str, ...] = ()
        if not more_than_noise(rows, plan.mixing.samples, tau):
            warnings = (
                f"mixtures: they cannot be told from noise alone, of deviation {tau:.3g} on each"
                f" number of a row whose norm is at most {plan.mixing.clip:.3g}",
            )
        if plan.redraw is not None:
            rows, labels = redrawn_rows(plan, rows)
        elif not isinstance(plan.normalise, SiteZScore):
            denormalise_rows(rows, plan.normalise)
        image = schema_of.image_shape
        return cls(
            features=rows.astype(np.float32 if image else np.float64, copy=False),
            labels=labels,
            plan=plan,
            guarantee=guarantee,
            feature_names=schema_of.feature_names,
            label_name=schema_of.label_name,
            image_shape=image,
            mixed_labels=plan.mixing.mixed_labels_from_means(means),
            warnings=warnings,
        )

    def __len__(self) -> int:
        return len(self.labels)

    def columns(self) -> dict[str, Any]:
        """The rows as columns by name, the label last; those of a ``table`` in their own types."""
        found: dict[str, Any] = (
            dict(zip(self.feature_names, self.features.T, strict=True))
            if self.table is None
            else self.table.cells(self.features.astype(np.float64, copy=False))
        )
        return found | {self.label_name: np.array(self.plan.classes)[self.labels]}

    def _soft_label_columns(self) -> tuple[str, ...]:
        own = self.feature_names
        if self.table is not None:
            own = self.table.names
        return soft_label_columns(self.label_name, self.plan.classes, taken=own)

    def manifest(self, digests: dict[str, str]) -> dict[str, Json]:
        """What anyone may know of this release: no input digest, no timing, no count of rows."""
        schema: dict[str, Json] = {
            "features": list(self.feature_names),
            "label": self.label_name,
            "image_shape": list(self.image_shape) if self.image_shape else None,
            "rows": len(self),
        }
        if self.soft_labels is not None:
            schema["soft_labels"] = {
                "columns": list(self._soft_label_columns()),
                "made_by": "post-processing of what the budget paid for",
            }
        return {
            "format": FORMAT,
            "guarantee": self.guarantee.as_json(),
            "plan": self.plan.as_json(),
            "budget": [asdict(line) for line in self.plan.budget()],
            "schema": schema,
            "warnings": list(self.warnings),
            "versions": {name: version(name) for name in _VERSIONED},
            "sha256": digests,
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the folder: everything first under a name of its own, then one rename."""
        target = check_output(folder)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        except OSError as error:
            raise _unwritable(target, error) from error
        try:
            self._write(partial)
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

    def _write(self, folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from capemix.data.writing import category_column

        columns = self.columns()
        for each in self.table.columns if self.table is not None else ():
            if isinstance(each, Category):
                columns[each.name] = category_column(each, columns[each.name])
        table, arrays = pa.table(columns), {"labels": columns[self.label_name]}
        if self.soft_labels is not None:
            table = with_soft_labels(table, self._soft_label_columns(), self.soft_labels)
            arrays["soft_labels"] = self.soft_labels
        pq.write_table(table, folder / "synthetic.parquet")
        if self.image_shape:
            images = self.features.reshape(-1, *self.image_shape)
            np.savez(folder / "synthetic.npz", features=images, **arrays)
        if self.mixed_labels is not None:
            np.save(folder / "mixed_labels.npy", self.mixed_labels)
        digests = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.iterdir())
        }
        (folder / "manifest.json").write_text(public_text(self.manifest(digests)))


def outside_releases(path: str | os.PathLike[str], option: str = "--out") -> Path:
    """The path, with links followed, if it lies in no release: what is written beside a manifest
    would be published along with it."""
    target = Path(os.path.realpath(path))
    for folder in (target, *target.parents):
        try:
            text = (folder / "manifest.json").read_text()
        except (OSError, ValueError):
            continue
        if f'"{FORMAT}"' in text:
            raise InputError(option, "lies in a release", value=path, fix="name a place outside it")
    return target


def check_output(folder: str | os.PathLike[str]) -> Path:
    """The folder to write, if it can be: absent or empty, where we may write. Makes nothing."""
    target = outside_releases(folder)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InputError(
                "--out", "is in use", value=folder, fix="name a folder that is absent or empty"
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
        "--out", f"cannot be written{reason}", value=target, fix="name a folder you may write to"
    )


@dataclass(frozen=True, eq=False)
class SavedRelease:
    """A release read back from its folder, checked against its manifest's digests.

    ``soft_labels``, where it has them, are in the order of the rows and of their classes.
    """

    rows: LabeledRows
    manifest: dict[str, Any]
    soft_labels: SoftLabels | None = None


def _is_shape(shape: Any) -> bool:
    """Height and width, or nothing."""
    if shape is None:
        return True
    return isinstance(shape, list) and len(shape) == 2 and all(type(n) is int for n in shape)


def read_release(folder: str | os.PathLike[str]) -> SavedRelease:
    from capemix.data import open_data

    path = Path(folder)
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        digests, label = manifest["sha256"], manifest["schema"]["label"]
        shape = manifest["schema"]["image_shape"]
        soft = manifest["schema"].get("soft_labels")
        soft_columns = None if soft is None else soft["columns"]
        classes = tuple(manifest["plan"]["classes"])
        if manifest["format"] != FORMAT:
            raise KeyError("format")
        if not (isinstance(digests, dict) and isinstance(label, str) and _is_shape(shape)):
            raise TypeError("schema")
        if not all(type(name) in (str, int) for name in classes):
            raise TypeError("classes")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            "release", "has no readable manifest.json", value=folder, fix="name a release folder"
        ) from error
    table = path / "synthetic.parquet"
    try:
        digest = hashlib.sha256(table.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            "release", "has no synthetic.parquet", value=folder, fix="make the release again"
        ) from error
    if digests.get(table.name) != digest:
        raise InputError(
            str(table),
            "does not match its manifest",
            value=digest[:12],
            fix="get the release again",
        )
    declared = manifest["plan"].get("table")
    rows = (
        _rows(table, label, classes, tuple(shape) if shape else None)
        if declared is None
        else open_data(table, table=Table.from_json(declared)).train
    )
    if soft_columns is None:
        return SavedRelease(rows, manifest)
    columns = soft_label_columns(rows.label_name, rows.classes)
    if soft_columns != list(columns):
        raise InputError(
            str(path / "manifest.json"),
            "names other soft labels than one for each class",
            fix="get the release again",
        )
    found = read_soft_labels(table, columns)
    return SavedRelease(
        rows, manifest, checked_soft_labels(found, len(rows), len(columns), field=str(table))
    )


def _rows(
    table: Path, label: str, classes: tuple[str | int, ...], shape: tuple[int, int] | None
) -> LabeledRows:
    from capemix.data import open_data

    rows = open_data(table, label, classes=classes).train
    if rows.unfit:
        raise InputError(
            str(table), "has rows that its manifest does not describe", fix="get the release again"
        )
    return replace(rows, image_shape=shape)
