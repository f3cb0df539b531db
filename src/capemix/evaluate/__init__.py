"""How good a release is: a model trained on it, beside one trained on real rows.

    from capemix.evaluate import Classifier, preparation_of, train_and_test
    from capemix.release import read_release

    saved = read_release("release")
    how = preparation_of(saved.manifest)
    score = train_and_test(saved.rows, real_rows, how, model="logreg", prepared=True)
    score.for_owner(lambda found: print(found.accuracy, found.per_class, found.confusion))

``model`` is logreg, boosting, forest, cnn, or a `Classifier` with its settings: for the paper's CNN
these are epochs, learning rate, device and how many seeds; it needs torch and images of 28 x 28,
and learns ``saved.soft_labels`` where they are given as ``soft_labels``. A score is `Private`;
``score.declared_public()`` is for rows that anyone may see.

``measured(saved.rows, real_rows)`` says how like a table with a schema its release is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capemix.evaluate.classifiers import MODELS, Classifier, Predicted, Progress
    from capemix.evaluate.measures import Measures, measured
    from capemix.evaluate.score import Comparison, Score, preparation_of, recoded, train_and_test
    from capemix.evaluate.target import Fit, Regressions, Target, regress_and_test

_HOME = {
    "MODELS": "classifiers",
    "Classifier": "classifiers",
    "Predicted": "classifiers",
    "Progress": "classifiers",
    "Measures": "measures",
    "measured": "measures",
    "Comparison": "score",
    "Fit": "target",
    "Regressions": "target",
    "Target": "target",
    "regress_and_test": "target",
    "Score": "score",
    "preparation_of": "score",
    "recoded": "score",
    "train_and_test": "score",
}

__all__ = [
    "MODELS",
    "Classifier",
    "Comparison",
    "Fit",
    "Measures",
    "Predicted",
    "Progress",
    "Regressions",
    "Score",
    "Target",
    "measured",
    "preparation_of",
    "recoded",
    "regress_and_test",
    "train_and_test",
]


def __getattr__(name: str) -> Any:
    """Import on first use: the CNN alone needs torch and numpy, and nothing else of ours."""
    if name not in _HOME:
        raise AttributeError(f"module 'capemix.evaluate' has no attribute {name!r}")
    return getattr(import_module(f"capemix.evaluate.{_HOME[name]}"), name)
