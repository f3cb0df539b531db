"""The model that an evaluation trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from capemix.cli.options.names import DeviceName, ModelName
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.evaluate import Classifier


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The model that is trained, on synthetic rows and on real ones."""

    model: Annotated[
        ModelName,
        typer.Option(help="cnn is the paper's, for images of 28 x 28 (needs torch)."),
    ] = "logreg"
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Of the cnn [default: 20, which a CPU can do; the paper has 100].",
            show_default=False,
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Of the cnn's Adam [default: 1e-3; the paper has 1e-5].", show_default=False
        ),
    ] = None
    device: Annotated[
        DeviceName | None,
        typer.Option(help="Where the cnn trains [default: cpu].", show_default=False),
    ] = None

    def classifier(self, seeds: int = 1) -> Classifier:
        """What was given and the model does not have is refused by name."""
        from capemix.evaluate import Classifier

        own = {name: getattr(self, name) for name in ("epochs", "learning_rate", "device")}
        own = {name: value for name, value in own.items() if value is not None}
        if self.model != "cnn":
            for name, value in own.items():
                raise InputError(
                    f"--{name.replace('_', '-')}",
                    f"has no meaning for {self.model}",
                    value=value,
                    fix="leave it out, or use --model cnn",
                )
        return Classifier(self.model, seeds=seeds, **own)
