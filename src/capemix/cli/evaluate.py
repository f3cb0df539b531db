"""`capemix evaluate`: how good a release is for training, on real rows, and how like them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from capemix.cli import options as opt
from capemix.errors import InputError, quoted

if TYPE_CHECKING:
    from capemix.cli.likeness import Likeness
    from capemix.data import LabeledRows, Loaded
    from capemix.data.soft_labels import SoftLabels
    from capemix.evaluate import Classifier, Comparison, Target
    from capemix.private import Private
    from capemix.release import SavedRelease

_OF_A_TABLE: Final = ("logreg", "boosting", "forest")
"""The models whose scores a table's reader expects."""

T = TypeVar("T")


@opt.with_options(opt.Trained)
def evaluate(
    trained: opt.Trained,
    release: Annotated[Path, typer.Argument(help="A release folder.")],
    test: Annotated[
        str, typer.Option(help="Real rows to test on: a dataset's test part, or a file.")
    ] = "digits",
    label: Annotated[str | None, typer.Option(help="Label column of a test file.")] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Column to predict [default: the label, or the target that the schema declares]. A"
            " column of numbers is predicted by ridge regression and by boosted trees.",
            show_default=False,
        ),
    ] = None,
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
            help="Of the release, for the cnn to learn; other models learn hard labels"
            " [default: soft where the release has them].",
            show_default=False,
        ),
    ] = None,
    rows_are_public: Annotated[
        bool, typer.Option("--rows-are-public", help="Anyone may see the rows of these files.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            help="HTML file, outside the release, with a page of all this.",
            show_default=False,
        ),
    ] = None,
    json: opt.Json = False,
) -> None:
    """What models learn from a release: trained on it, tested on real rows, beside the same models
    trained on real rows. Of a table with a schema also how like the real rows its release is."""
    from capemix.cli.likeness import likeness
    from capemix.cli.progress import epoch_progress
    from capemix.cli.report import new_page, write_page
    from capemix.cli.show import (
        print_json,
        print_likeness,
        print_models,
        print_regressions,
        print_scores,
    )
    from capemix.evaluate import (
        Classifier,
        Comparison,
        Regressions,
        preparation_of,
        recoded,
        regress_and_test,
        train_and_test,
    )
    from capemix.pages.compared import Compared, compared_page
    from capemix.private import PRIVATE
    from capemix.release import read_release

    model = trained.model
    chosen = trained.classifier(seeds)
    saved = read_release(release)
    target_page = None if report is None else new_page(report, "--report")
    column = saved.manifest.facts.label
    aimed = _target(saved, target)
    soft_labels = _soft_labels(saved, chosen, labels) if aimed is None else None
    loaded = _load(test, _label_of(test, label, column), saved.rows)
    tested = _columns_of(loaded.test or loaded.train, saved.rows, "--test")
    preparation = preparation_of(saved.manifest)
    real_rows = loaded.train if loaded.test is not None else None
    if train is not None:
        real_rows = _load(train, _label_of(train, label, column), saved.rows).train
    if real_rows is not None:
        real_rows = recoded(_columns_of(real_rows, saved.rows, "--train"), saved.rows.classes)
    known = loaded.info is not None and (train is None or _is_dataset(train))
    public = known or rows_are_public
    mark = {"public_rows": public, "private": None if public else PRIVATE}
    rows = saved.rows
    alike = partial(likeness, saved, tested, real_rows, quiet=json)
    real_rows = real_rows if compare else None

    def close(like: Likeness | None, **predicted: Any) -> None:
        """What is said last, whatever was predicted."""
        if target_page is not None:
            found = Compared(
                manifest=saved.manifest,
                public=public,
                test=test,
                target=None if aimed is None else aimed.name,
                measures=None if like is None else like.measures,
                attacks=[] if like is None else [each.as_json() for each in like.attacks],
                **predicted,
            )
            write_page(target_page, compared_page(found), "--report")
        if like is not None and not json:
            print_likeness(like.measures, like.attacks)
        if not (public or json):
            typer.echo(PRIVATE)

    if aimed is None and column is None:  # there is nothing to predict
        said_alone = alike() if model == "logreg" else None
        if said_alone is None:
            raise InputError(
                "--target",
                "is needed: the release has no label to predict",
                fix=f"choose one of {quoted(saved.manifest.facts.features)}",
            )

        def show_likeness(found: Likeness) -> None:
            if json:
                print_json({**found.as_json(), **mark})
            close(found)

        said_alone.for_owner(show_likeness)
        return
    if aimed is not None and aimed.numeric:
        _refuse_model(model)
        fitted = regress_and_test(aimed, rows, tested, prepared=True)
        beside = None if real_rows is None else regress_and_test(aimed, real_rows, tested)

        def show_numbers(both: tuple[Regressions, Likeness | None]) -> None:
            found, like = both
            if json:
                said = {} if like is None else like.as_json()
                print_json({"target": aimed.name, **found.as_json(), **said, **mark})
            else:
                print_regressions(found, aimed.name, test=test)
            close(like, regressions=found)

        fitted.beside(beside, Regressions).beside(alike(), _both).for_owner(show_numbers)
        return
    if aimed is not None:
        rows, tested, preparation = aimed.labelled(rows), aimed.labelled(tested), aimed.preparation
        real_rows = None if real_rows is None else aimed.labelled(real_rows)

    def compared(classifier: Classifier, soft: SoftLabels | None = None) -> Private[Comparison]:
        with epoch_progress(f"{classifier.name} on the release", quiet=json) as progress:
            synthetic = train_and_test(
                rows,
                tested,
                preparation,
                model=classifier,
                soft_labels=soft,
                prepared=True,
                progress=progress,
            )
        if real_rows is None:
            return synthetic.beside(None, Comparison)
        with epoch_progress(f"{classifier.name} on real rows", quiet=json) as progress:
            real = train_and_test(
                real_rows, tested, preparation, model=classifier, progress=progress
            )
        return synthetic.beside(real, Comparison)

    models = compared(chosen, soft_labels).beside(None, lambda own, _: {chosen.name: own})
    for name in _OF_A_TABLE if saved.rows.table is not None else ():
        if name != chosen.name:
            models = models.beside(compared(Classifier(name)), _with(name))
    classes = rows.classes

    def show(both: tuple[dict[str, Comparison], Likeness | None]) -> None:
        found, like = both
        own = found[chosen.name]
        table = rows.table
        words = table.class_words if table and table.classes == classes else classes
        if json:
            learnt = {"labels": "hard" if soft_labels is None else "soft"}
            how = {**chosen.as_json(), **learnt, "classes": list(classes)}
            several = {name: each.in_short() for name, each in found.items()}
            said = {} if like is None else {"models": several, **like.as_json()}
            print_json({**how, **own.as_json(), **said, **mark})
        else:
            soft = soft_labels is not None
            print_scores(own, words, model=model, soft_labels=soft, test=test)
            if like is not None:
                print_models(found)
        close(like, models=found, classes=words)

    models.beside(alike(), _both).for_owner(show)


def _both(own: T, like: Likeness | None) -> tuple[T, Likeness | None]:
    return own, like


def _with(
    name: str,
) -> Callable[[dict[str, Comparison], Comparison | None], dict[str, Comparison]]:
    return lambda before, own: before if own is None else {**before, name: own}


def _target(saved: SavedRelease, asked: str | None) -> Target | None:
    """What is to be predicted, where it is something other than the label."""
    from capemix.evaluate import Target

    facts = saved.manifest.facts
    declared = None if facts.table is None else facts.table.target
    name = asked or facts.label or declared
    return None if name in (None, facts.label) else Target(facts, str(name))


def _refuse_model(model: str) -> None:
    if model != "logreg":
        raise InputError(
            "--model",
            "has no meaning for a column of numbers",
            value=model,
            fix="leave it out: ridge regression and boosted trees are trained",
        )


def _is_dataset(name: str) -> bool:
    from capemix.data import DATASETS

    return name in DATASETS


def _label_of(data: str, given: str | None, released: str | None) -> str | None:
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
    names = None if released.image_shape else released.feature_names  # all, by size
    return open_data(data, label, classes=released.classes, features=names)
