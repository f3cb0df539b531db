"""The commands: each parses its options, calls the library, and shows the result."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.cli import options as opt
from capemix.cli.audit import attack, audit
from capemix.cli.federate import federate
from capemix.cli.ledger import ledger
from capemix.cli.moved import add_moved
from capemix.cli.schema import schema
from capemix.cli.site import keygen, site
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data import LabeledRows, Loaded
    from capemix.data.soft_labels import SoftLabels
    from capemix.evaluate import Classifier
    from capemix.plan import Plan
    from capemix.release import SavedRelease

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Differentially private synthetic data from sites that may not pool their rows.",
)

app.command()(audit)
app.command()(attack)
app.command()(keygen)
app.add_typer(schema, name="schema")
app.add_typer(site, name="site")
app.add_typer(federate, name="federate")
app.add_typer(ledger, name="ledger")
add_moved(app, "reproduce", "sweep", "frontier")
add_moved(federate, "measure", "splits", before="federate ")


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"capemix {installed('capemix')}")
        raise typer.Exit


@app.command()
@opt.with_options(opt.declared_plan)
def calibrate(
    plan: Plan,
    epsilon: Annotated[float, typer.Option(help="The budget; inf for none.")],
    json: opt.Json = False,
) -> None:
    """The least noise that keeps a budget."""
    from capemix.cli.show import spinner

    with spinner("calibrating", quiet=json):
        calibrated = plan.calibrate(epsilon)
    _show_account(calibrated, as_json=json)


@app.command()
@opt.with_options(opt.declared_plan)
def account(
    plan: Plan,
    noise: Annotated[float, typer.Option(help="TAU: deviation of the noise on a released row.")],
    json: opt.Json = False,
) -> None:
    """What a given noise costs."""
    _show_account(plan.with_noise(noise), as_json=json)


@app.command()
@opt.with_options(opt.Table, opt.Mixing, opt.Method, opt.Counted)
def synth(
    table: opt.Table,
    mixing: opt.Mixing,
    method: opt.Method,
    counted: opt.Counted,
    context: typer.Context,
    epsilon: Annotated[float, typer.Option(help="The budget; inf for none.")],
    out: Annotated[Path, typer.Option(help="Folder to write: absent or empty.")],
    schema: opt.Schema = None,
    json: opt.Json = False,
) -> None:
    """Rows in, a release with its guarantee out."""
    from capemix.api import release_of
    from capemix.cli.show import account_of, print_json, print_release, row_progress, spinner
    from capemix.randomness.source import SeededSource, SystemSource
    from capemix.release import check_output

    if math.isnan(epsilon) or epsilon <= 0:  # before any row is read
        raise InputError("--epsilon", "must be above 0", value=epsilon, fix="give a budget, or inf")
    check_output(out)
    opened = table.open(schema)
    if math.isinf(epsilon) or method.accountant == "paper":  # nothing is promised of any row
        opened = opened.as_they_come()
    budget = counted.asked(opened.info)
    parts = method.parts(table, opened)
    seed = table.test_seed
    sites = len(parts) if isinstance(parts, list) else 1
    with row_progress(mixing.samples * sites, quiet=json) as progress:
        release = release_of(
            parts,
            epsilon=epsilon,
            source=SystemSource() if seed is None else SeededSource(seed),
            progress=progress,
            **budget,
            **method.asked(table, mixing, opened, opt.given(context)),
        )
    with spinner("writing the release", quiet=json):
        folder = release.save(out)
    if json:
        said = {"warnings": list(release.warnings), "out": str(folder)}
        print_json({**account_of(release.plan, release.guarantee), **said})
    else:
        print_release(release, folder)


@app.command()
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
    column = saved.manifest["schema"]["label"]
    loaded = _load(test, _label_of(test, label, column), saved.rows)
    tested = _columns_of(loaded.test or loaded.train, saved.rows, "--test")
    preparation = preparation_of(saved.manifest["plan"])
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


@app.command("data")
def describe(
    name: Annotated[
        str | None, typer.Argument(help="A dataset or a file; all datasets by default.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label column of a file.")] = None,
    classes: Annotated[
        str | None, typer.Option(help="Classes that rows may have: a,b,c.", show_default=False)
    ] = None,
    schema: opt.Schema = None,
    json: opt.Json = False,
) -> None:
    """The datasets there are, or what a file looks like to capemix (shown to its owner only): how
    many records count, and which columns make others count for nothing."""
    from capemix.cli.show import print_json, print_table
    from capemix.data import DATASETS, Table, open_cells, open_data, open_table, unread
    from capemix.private import PRIVATE

    if name is None:
        found = [
            {
                "name": info.name,
                "features": info.width,
                "classes": len(info.classes),
                "range": list(info.value_range),
                "records": sum(info.class_sizes),
                "source": info.source,
            }
            for info in DATASETS.values()
        ]
        if json:
            print_json({"datasets": found})
        else:
            print_table("datasets", found)
        return
    table = None if schema is None else Table.read(schema)
    listed = opt.parse_names("--classes", classes)
    rows = open_data(name, label, classes=listed, table=table).train
    facts: dict[str, Any] = {
        "name": name,
        "features": rows.width,
        "classes": list(rows.classes),
        "records": len(rows),
        "class_sizes": rows.class_counts().tolist(),
        "count_for_nothing": rows.unfit,
    }
    if name not in DATASETS:
        cells = open_cells(name, rows.label_name) if table is None else open_table(name, table)
        facts["cells_that_are_no_number"] = unread(cells, table)
    if json:
        print_json(facts if name in DATASETS else facts | {"private": PRIVATE})
    else:
        print_table("rows (private to you unless the data is public)", [facts])


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the rows.")] = False,
    threads: Annotated[int | None, typer.Option(help="Threads [default: all cores].")] = None,
    json: opt.Json = False,
) -> None:
    """Speed of the secure path, as ratios to the obvious loop and to copying the output."""
    from capemix.bench import bench as run
    from capemix.cli.show import print_json, print_table, spinner

    size = 6_000 if quick else 60_000
    timings = []
    with spinner("timing", quiet=json):
        for mixture, part in ((4, 1), (512, 10 if quick else 30)):
            timings.append(
                run(mixture, samples=size, loop_part=part, repeats=3, threads=threads).as_json()
            )
    if json:
        print_json({"timings": timings})
    else:
        print_table("60,000 x 784 rows, eps = 10, secure lattice noise", timings)


# -- from options to values -------------------------------------------------------------------


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


def _show_account(plan: Plan, *, as_json: bool) -> None:
    from capemix.cli.show import account_of, print_facts, print_json

    found = account_of(plan, plan.guarantee())
    if as_json:
        print_json(found)
    else:
        print_facts(found)
