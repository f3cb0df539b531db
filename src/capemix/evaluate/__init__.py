"""How good a release is: a model trained on it, beside one trained on real rows."""

from capemix.evaluate.score import MODELS, Score, preparation_of, train_and_test

__all__ = ["MODELS", "Score", "preparation_of", "train_and_test"]
