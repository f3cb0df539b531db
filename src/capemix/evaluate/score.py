"""How good a release is: a model trained on it, beside one trained on real rows.

Scores on real rows are an unpaid look at them, so each comes as a `Private` one: fine on rows that
are declared public; otherwise the data owner's own, with no way into a manifest.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.data.rows import LabeledRows
from capemix.data.soft_labels import SoftLabels
from capemix.errors import InputError
from capemix.evaluate.classifiers import Classifier, Predicted, Progress
from capemix.evaluate.coding import column_values
from capemix.manifest import Manifest
from capemix.private import Private
from capemix.sums.rows import Preparation
from capemix.sums.steps import DeclaredMap, PublicMap


@dataclass(frozen=True)
class Score:
    """Test accuracy, per class too, and the confusion matrix (true class by predicted class).

    ``auc`` is the area under the curve of each class against the others, a mean over the classes,
    each weighted by its test rows; None for a model that says classes only. Of several seeds:
    ``accuracies`` has each, ``accuracy``, ``auc`` and ``per_class`` are means, and the confusion
    matrix counts them all.
    """

    accuracy: float
    per_class: tuple[float | None, ...]
    confusion: tuple[tuple[int, ...], ...]
    accuracies: tuple[float, ...]
    auc: float | None = None

    @classmethod
    def of(cls, truth: npt.NDArray[np.int64], said: Predicted, classes: int) -> Score:
        predicted = said.classes
        confusion = np.zeros((classes, classes), dtype=np.int64)
        for found in predicted:
            np.add.at(confusion, (truth, found), 1)
        accuracies = (predicted == truth).mean(axis=1)
        return cls(
            accuracy=float(accuracies.mean()),
            per_class=tuple(
                float(hits / total) if total else None
                for hits, total in zip(confusion.diagonal(), confusion.sum(axis=1), strict=True)
            ),
            confusion=tuple(tuple(int(n) for n in row) for row in confusion),
            accuracies=tuple(accuracies.tolist()),
            auc=None if said.likely is None else _auc(truth, said.likely),
        )

    @property
    def spread(self) -> float | None:
        """The deviation between seeds; None of a single one."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"spread": self.spread}


@dataclass(frozen=True)
class Comparison:
    """A model trained on a release beside the same one trained on real rows, if it was."""

    synthetic: Score
    real: Score | None

    @property
    def ratio(self) -> float | None:
        real = self.real.accuracy if self.real else 0.0
        return self.synthetic.accuracy / real if real else None

    def in_short(self) -> dict[str, float | None]:
        """Both models' accuracy and AUC."""
        return {
            "accuracy": self.synthetic.accuracy,
            "auc": self.synthetic.auc,
            "real_accuracy": None if self.real is None else self.real.accuracy,
            "real_auc": None if self.real is None else self.real.auc,
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "synthetic": self.synthetic.as_json(),
            "real": self.real.as_json() if self.real else None,
            "ratio": self.ratio,
        }


def _auc(truth: npt.NDArray[np.int64], likely: npt.NDArray[np.float64]) -> float | None:
    """Of (seeds, rows, classes); None where all rows are of one class. A class that no model knows
    is as likely everywhere, and has 0.5. What a class of few rows has is mostly chance, so that it
    weighs little."""
    from sklearn.metrics import roc_auc_score

    present, rows = np.unique(truth, return_counts=True)
    if len(present) < 2:
        return None
    known = likely.shape[2]
    areas = [
        [roc_auc_score(truth == code, each[:, code]) if code < known else 0.5 for code in present]
        for each in likely
    ]
    return float(np.average(np.mean(areas, axis=0), weights=rows))


def preparation_of(manifest: Manifest) -> Preparation:
    """How the rows behind a release were prepared, as far as it is public: where each sum found its
    own norm, rows were not clipped as a whole, nor are those that they are compared with."""
    clip = NOT_CLIPPED if manifest.clip is None else manifest.clip
    return Preparation(manifest.facts.normalise or PublicMap(), clip)


NOT_CLIPPED: Final = 1e30
"""A norm that no row has."""


def train_and_test(
    train: LabeledRows,
    test: LabeledRows,
    preparation: Preparation,
    *,
    model: Classifier | str = "logreg",
    soft_labels: SoftLabels | None = None,
    prepared: bool = False,
    progress: Progress | None = None,
) -> Private[Score]:
    """Train ``model`` on ``train``, score it on ``test``.

    ``soft_labels`` of the training rows are learnt in place of their labels, by the CNN alone.
    Test rows go through the release's own preparation (normalise, clip), since synthetic rows did.
    ``prepared``: the training rows are a release's; they are mapped but not clipped again (their
    noise may exceed the clip norm). Test rows of classes that ``train`` does not have are left out.
    """
    if train.width != test.width:
        raise InputError(
            "test",
            f"must have the release's {train.width} features",
            value=test.width,
            fix="test on rows with the same columns",
        )
    known = recoded(test, train.classes)
    if not len(known):
        raise InputError("test", "has none of the release's classes", fix="test on other rows")
    chosen = Classifier(model) if isinstance(model, str) else model
    if chosen.takes_columns and train.table is not None and known.table is not None:
        inputs = column_values(train), column_values(known)
    else:
        inputs = (
            _inputs(train, preparation, prepared),
            _inputs(known, preparation, prepared=False),
        )
    predicted = chosen.predictions(
        inputs[0],
        train.labels,
        inputs[1],
        soft_labels=soft_labels,
        image_shape=train.image_shape,
        progress=progress,
    )
    return Private(Score.of(known.labels, predicted, len(train.classes)))


def recoded(rows: LabeledRows, classes: tuple[str | int, ...]) -> LabeledRows:
    """The rows whose class is among ``classes``, with labels that are positions there."""
    if rows.classes == classes:
        return rows
    position = {name: code for code, name in enumerate(classes)}
    codes = np.array([position.get(name, -1) for name in rows.classes], dtype=np.int64)[rows.labels]
    known = rows.take(codes >= 0)
    return replace(known, labels=codes[codes >= 0], classes=classes)


def _inputs(rows: LabeledRows, preparation: Preparation, prepared: bool) -> npt.NDArray[np.float64]:
    if prepared:
        return mapped(rows.features, preparation)
    return preparation.apply(rows.features)


def mapped(released: npt.NDArray[Any], preparation: Preparation) -> npt.NDArray[np.float64]:
    """A release's rows in prepared units: those of a site's z-score have no others."""
    features, how = released.astype(np.float64), preparation.normalise
    if not isinstance(how, DeclaredMap):
        return features
    return np.asarray((features - np.asarray(how.shift)) / np.asarray(how.scale))
