"""`capemix evaluate`: how good a release is for training, on real rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capemix.cli import options as opt
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data import LabeledRows, Loaded
    from capemix.data.soft_labels import SoftLabels
    from capemix.evaluate import Classifier
    from capemix.release import SavedRelease


@opt.with_options(opt.Trained)
def evaluate(
    trained: opt.Trained,
    release: Annotated[Path, typer.Argument(help="A release folder.")],
    test: Annotated[
        str, typer.Option(help="Real rows to test on: a dataset's test part, or a file.")
    ] = "digits",
    label: Annotated[str | None, typer.Option(help="Label column of a test file.")] = None,
    train: Annotated[
        str | None,
        typer.Option(
            help="Real rows to train the comparison on [default: the dataset's train part].",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[bool, typer.Option(help="Train the same model on real rows too.")] = True,
    seeds: Annotated[int, typer.Option(help="Models to train, each from its own seed.")] = 1,
    labels: Annotated[
        opt.LabelsName | None,
        typer.Option(
            help="Of the release, for the cnn to learn; logreg and forest learn hard labels"
            " [default: soft where the release has them].",
            show_default=False,
        ),
    ] = None,
    rows_are_public: Annotated[
        bool, typer.Option("--rows-are-public", help="Anyone may see the rows of these files.")
    ] = False,
    json: opt.Json = False,
) -> None:
    """A model trained on the release, tested on real rows, beside one trained on real rows."""
    from capemix.cli.show import epoch_progress, print_json, print_scores
    from capemix.evaluate import Comparison, preparation_of, recoded, train_and_test
    from capemix.private import PRIVATE
    from capemix.release import read_release

    model = trained.model
    chosen = trained.classifier(seeds)
    saved = read_release(release)
    soft_labels = _soft_labels(saved, chosen, labels)
    column = saved.manifest.facts.label
    loaded = _load(test, _label_of(test, label, column), saved.rows)
    tested = _columns_of(loaded.test or loaded.train, saved.rows, "--test")
    preparation = preparation_of(saved.manifest)
    real_rows = loaded.train if loaded.test is not None else None
    if train is not None:
        real_rows = _load(train, _label_of(train, label, column), saved.rows).train
    known = loaded.info is not None and (train is None or _is_dataset(train))
    public = known or rows_are_public
    with epoch_progress(f"{model} on the release", quiet=json) as progress:
        synthetic = train_and_test(
            saved.rows,
            tested,
            preparation,
            model=chosen,
            soft_labels=soft_labels,
            prepared=True,
            progress=progress,
        )
    real = None
    if compare and real_rows is not None:
        real_rows = recoded(_columns_of(real_rows, saved.rows, "--train"), saved.rows.classes)
        with epoch_progress(f"{model} on real rows", quiet=json) as progress:
            real = train_and_test(real_rows, tested, preparation, model=chosen, progress=progress)
    classes = saved.rows.classes

    def show(found: Comparison) -> None:
        if json:
            mark = {"public_rows": public, "private": None if public else PRIVATE}
            learnt = {"labels": "hard" if soft_labels is None else "soft"}
            how = {**chosen.as_json(), **learnt, "classes": list(classes)}
            print_json({**how, **found.as_json(), **mark})
        else:
            soft = soft_labels is not None
            print_scores(found, classes, model=model, soft_labels=soft, test=test, public=public)

    synthetic.beside(real, Comparison).for_owner(show)


def _is_dataset(name: str) -> bool:
    from capemix.data import DATASETS

    return name in DATASETS


def _label_of(data: str, given: str | None, released: str) -> str | None:
    """The label column to read: a table has the release's, arrays and datasets have their own."""
    if _is_dataset(data):
        return None
    return given or (None if data.lower().endswith(".npz") else released)


def _columns_of(rows: LabeledRows, released: LabeledRows, option: str) -> LabeledRows:
    """The release's columns, by name. Pixels of images of another size have such names too."""
    if rows.image_shape and released.image_shape and rows.image_shape != released.image_shape:
        size, found = ("{} x {}".format(*r.image_shape) for r in (released, rows) if r.image_shape)
        raise InputError(
            option,
            f"must have images of the release's size, {size}",
            value=found,
            fix="give rows of the kind that was released",
        )
    return rows.columns(released.feature_names)


def _soft_labels(
    saved: SavedRelease, model: Classifier, asked: opt.LabelsName | None
) -> SoftLabels | None:
    """The release's soft labels, where the model is to learn them."""
    if asked == "soft" and saved.soft_labels is None:
        raise InputError(
            "--labels",
            "asks for labels that the release does not have",
            value=asked,
            fix="leave it out: this release has hard labels only",
        )
    wanted = model.takes_soft_labels if asked is None else asked == "soft"
    return saved.soft_labels if wanted else None


def _load(data: str, label: str | None, released: LabeledRows) -> Loaded:
    """Real rows of a release's classes, coded by its schema where it has one."""
    from capemix.data import open_data

    if _is_dataset(data):
        return open_data(data, label)
    if released.table is not None:
        return open_data(data, label, table=released.table)
    return open_data(data, label, classes=released.classes)
