"""The models that are trained on a release, and what each needs to know."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data.soft_labels import SoftLabels

MODELS: Final = ("logreg", "boosting", "forest", "cnn")
ROUNDS: Final = 150
"""Of boosting."""

_BATCH: Final = 128
_OUTPUTS: Final = 10
"""Of the CNN, one a class."""

Progress = Callable[[int, int], None]
"""Called with how many epochs are done, and how many there are."""

Inputs = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Predicted:
    """What ``seeds`` models say of some rows: each row's class (seeds, rows), and, but for the cnn,
    how likely each class is (seeds, rows, classes); a class that no training row has is at 0."""

    classes: Codes
    likely: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Classifier:
    """A model by name: logreg, boosting, forest, or cnn.

    The CNN is the paper's. The paper trains it with Adam at 1e-5 for 100 epochs; here the defaults
    are 1e-3 and 20, which a CPU can do: a choice made once, on no test rows. ``seeds`` models are
    trained, each from its own seed from ``seed`` on (logistic regression has none); ``device`` is
    cpu or cuda.
    """

    name: str = "logreg"
    seeds: int = 1
    epochs: int = 20
    learning_rate: float = 1e-3
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in MODELS:
            raise InputError(
                "model", "is unknown", value=self.name, fix=f"use one of {', '.join(MODELS)}"
            )
        if self.seeds < 1:
            raise InputError("seeds", "must be at least 1", value=self.seeds, fix="try 3")
        if self.name == "logreg" and self.seeds > 1:
            raise InputError(
                "seeds",
                "has no meaning for logreg, which draws nothing",
                value=self.seeds,
                fix="leave it out",
            )

    def as_json(self) -> dict[str, Any]:
        """What was trained, and how."""
        if self.name != "cnn":
            return {"model": self.name, "seeds": self.seeds}
        return {
            "model": self.name,
            "seeds": self.seeds,
            "epochs": self.epochs,
            "learning_rate": self.learning_rate,
        }

    @property
    def takes_soft_labels(self) -> bool:
        """Whether it can be trained on how likely each class is."""
        return self.name == "cnn"

    @property
    def takes_columns(self) -> bool:
        """Whether it learns a number for each column of a table, and not the numbers that rows are
        coded in."""
        return self.name == "boosting"

    @property
    def _own_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)

    def predictions(
        self,
        train: Inputs,
        labels: Codes,
        test: Inputs,
        *,
        soft_labels: SoftLabels | None = None,
        image_shape: tuple[int, int] | None = None,
        progress: Progress | None = None,
    ) -> Predicted:
        """What each of the ``seeds`` models says of every test row.

        ``soft_labels``, for the CNN alone, are learnt in place of ``labels``.
        """
        if soft_labels is not None and not self.takes_soft_labels:
            raise InputError(
                "labels",
                f"must be hard for {self.name}, which learns one class a row",
                value="soft",
                fix="leave it out, or use the model cnn",
            )
        if self.name == "cnn":
            return Predicted(self._by_cnns(train, labels, soft_labels, test, image_shape, progress))
        if len(np.unique(labels)) < 2:
            raise InputError(
                "rows to train on", "are all of one class", fix="give rows of two classes or more"
            )
        every = [self._by_sklearn(seed, train, labels, test) for seed in self._own_seeds]
        return Predicted(
            np.stack([found for found, _ in every]), np.stack([likely for _, likely in every])
        )

    def _by_sklearn(
        self, seed: int, train: Inputs, labels: Codes, test: Inputs
    ) -> tuple[Codes, npt.NDArray[np.float64]]:
        from sklearn.exceptions import ConvergenceWarning

        made = {"logreg": _linear, "boosting": _boosting, "forest": _forest}[self.name]
        fitted = made(seed, labels)
        with warnings.catch_warnings():
            # Noisy rows can keep a fit from settling; where it stands then is what is scored.
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted.fit(train, labels)
        likely = np.zeros((len(test), int(labels.max()) + 1))
        likely[:, fitted.classes_] = fitted.predict_proba(test)
        return np.asarray(fitted.predict(test), dtype=np.int64), likely

    def _by_cnns(
        self,
        train: Inputs,
        labels: Codes,
        soft_labels: SoftLabels | None,
        test: Inputs,
        image_shape: tuple[int, int] | None,
        progress: Progress | None,
    ) -> Codes:
        height, width = image_shape or (1, train.shape[1])
        if (height, width) not in ((28, 28), (1, 784)):
            raise InputError(
                "model",
                "cnn is for images of 28 x 28",
                value=f"{height} x {width}",
                fix="use logreg, boosting or forest",
            )
        classes = labels.max(initial=0) + 1 if soft_labels is None else soft_labels.shape[1]
        if classes > _OUTPUTS:
            raise InputError(
                "model",
                f"cnn has {_OUTPUTS} outputs, one a class",
                value=f"{classes} classes",
                fix="use logreg, boosting or forest",
            )
        cnn = _trainer()
        how = cnn.Training(self.epochs, self.learning_rate, min(_BATCH, len(train)))
        device = cnn.device_named(self.device)
        learnt: Codes | SoftLabels = labels
        if soft_labels is not None:
            learnt = np.pad(soft_labels, ((0, 0), (0, _OUTPUTS - classes)))
        return np.asarray(
            cnn.train_and_predict(train, learnt, test, self._own_seeds, how, device, progress)
        )


def _trainer() -> Any:
    try:
        from capemix.evaluate import cnn
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError(
            "model", "cnn needs torch", fix="install it: pip install 'capemix[torch]'"
        ) from error
    return cnn


def _linear(_seed: int, _labels: Codes) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(
        StandardScaler(with_std=False), LogisticRegression(max_iter=1000, tol=1e-3)
    )


def _boosting(seed: int, labels: Codes) -> Any:
    """Of many rows it stops when some that are set aside are learnt no better: as many of each
    class, which a class of one row does not have."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    alone = (np.bincount(labels) == 1).any()
    return HistGradientBoostingClassifier(
        max_iter=ROUNDS, early_stopping=False if alone else "auto", random_state=seed
    )


def _forest(seed: int, _labels: Codes) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(200, random_state=seed, n_jobs=-1)
