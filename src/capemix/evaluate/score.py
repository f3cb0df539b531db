"""How good a release is: a model trained on it, beside one trained on real rows.

Scores on real rows are an unpaid look at them: fine on public data; otherwise they are the data
owner's own, and never enter a release folder.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.data.rows import LabeledRows
from capemix.errors import InputError
from capemix.prepare.rows import Preparation
from capemix.prepare.steps import PublicMap, SiteZScore

MODELS = ("logreg", "forest")


@dataclass(frozen=True)
class Score:
    """Test accuracy, per class too, and the confusion matrix (true class by predicted class)."""

    accuracy: float
    per_class: tuple[float | None, ...]
    confusion: tuple[tuple[int, ...], ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def preparation_of(plan: dict[str, Any]) -> Preparation:
    """The preparation that a manifest's plan describes."""
    normalise = plan["normalise"]
    if normalise["kind"] == "site-zscore":
        return Preparation(SiteZScore(), plan["clip"])
    return Preparation(
        PublicMap(normalise["shift"], normalise["scale"], normalise["low"], normalise["high"]),
        plan["clip"],
    )


def train_and_test(
    train: LabeledRows,
    test: LabeledRows,
    preparation: Preparation,
    *,
    model: str = "logreg",
    prepared: bool = False,
) -> Score:
    """Train ``model`` on ``train``, score it on ``test``.

    Test rows go through the release's own preparation (normalise, clip), since synthetic rows did.
    ``prepared``: the training rows are a release's; they are mapped but not clipped again (their
    noise may exceed the clip norm).
    """
    if train.width != test.width:
        raise InputError(
            "--test",
            f"must have the release's {train.width} features",
            value=test.width,
            fix="test on rows with the same columns",
        )
    codes = _codes_of(test, train.classes)
    known = codes >= 0
    if not known.any():
        raise InputError("--test", "has none of the release's classes", fix="test on other rows")
    fitted = _classifier(model)
    fitted.fit(_inputs(train, preparation, prepared), train.labels)
    predicted = fitted.predict(_inputs(test, preparation, prepared=False))[known]
    truth = codes[known]
    confusion = np.zeros((len(train.classes), len(train.classes)), dtype=np.int64)
    np.add.at(confusion, (truth, predicted), 1)
    totals = confusion.sum(axis=1)
    return Score(
        accuracy=float((truth == predicted).mean()),
        per_class=tuple(
            float(hits / total) if total else None
            for hits, total in zip(confusion.diagonal(), totals, strict=True)
        ),
        confusion=tuple(tuple(int(n) for n in row) for row in confusion),
    )


def _inputs(rows: LabeledRows, preparation: Preparation, prepared: bool) -> npt.NDArray[np.float64]:
    if prepared and isinstance(preparation.normalise, SiteZScore):
        return rows.features.astype(np.float64)  # a z-scored release has no other units
    if prepared and isinstance(preparation.normalise, PublicMap):
        how = preparation.normalise
        return (rows.features.astype(np.float64) - how.shift) / how.scale
    return preparation.apply(rows.features)


def _codes_of(rows: LabeledRows, classes: tuple[str | int, ...]) -> npt.NDArray[np.int64]:
    """The rows' labels as positions in ``classes``; -1 for a class that is not among them."""
    position = {name: code for code, name in enumerate(classes)}
    mapping = np.array([position.get(name, -1) for name in rows.classes], dtype=np.int64)
    return np.asarray(mapping[rows.labels])


def _classifier(model: str) -> Any:
    if model == "logreg":
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return make_pipeline(
            StandardScaler(with_std=False), LogisticRegression(max_iter=1000, tol=1e-3)
        )
    if model == "forest":
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(200, random_state=0, n_jobs=-1)
    raise InputError("--model", "is unknown", value=model, fix=f"use one of {', '.join(MODELS)}")
