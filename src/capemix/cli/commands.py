"""The commands: each parses its options, calls the library, and shows the result."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.cli import options as opt
from capemix.cli.audit import attack, audit
from capemix.cli.federate import federate
from capemix.cli.frontier import frontier
from capemix.cli.ledger import ledger
from capemix.cli.measure import measure
from capemix.cli.reproduce import reproduce
from capemix.cli.site import keygen, site
from capemix.cli.splits import splits
from capemix.cli.sweep import sweep
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data import LabeledRows, Loaded, Table
    from capemix.data.soft_labels import SoftLabels
    from capemix.evaluate import Classifier
    from capemix.guarantee import Guarantee
    from capemix.plan import MomentsPlan, Plan, RecordPlan
    from capemix.release import SavedRelease

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Differentially private synthetic data from sites that may not pool their rows.",
)

federate.command()(measure)
federate.command()(splits)
app.command()(frontier)
app.command()(sweep)
app.command()(audit)
app.command()(attack)
app.command()(keygen)
app.command()(reproduce)
app.add_typer(site, name="site")
app.add_typer(federate, name="federate")
app.add_typer(ledger, name="ledger")


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
    plan: Plan | RecordPlan,
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
    plan: Plan | RecordPlan,
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
    from capemix.cli.show import print_json, print_release, row_progress, spinner
    from capemix.randomness.source import SeededSource, SystemSource
    from capemix.release import check_output

    if math.isnan(epsilon) or epsilon <= 0:  # before any row is read
        raise InputError("--epsilon", "must be above 0", value=epsilon, fix="give a budget, or inf")
    check_output(out)
    loaded = table.load(schema)
    budget = counted.asked(loaded)
    parts = method.parts(table, loaded)
    seed = table.test_seed
    rows = len(loaded.train) if method.recordwise else mixing.samples * len(parts)
    with row_progress(rows, quiet=json) as progress:
        release = release_of(
            parts,
            epsilon=epsilon,
            source=SystemSource() if seed is None else SeededSource(seed),
            progress=progress,
            **budget,
            **method.asked(table, mixing, loaded, opt.given(context)),
        )
    with spinner("writing the release", quiet=json):
        folder = release.save(out)
    if json:
        print_json({**_account_of(release.plan, release.guarantee), "out": str(folder)})
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
    coded = saved.rows.table
    loaded = _load(test, _label_of(test, label, column), coded)
    tested = _columns_of(loaded.test or loaded.train, saved.rows, "--test")
    preparation = preparation_of(saved.manifest["plan"])
    real_rows = loaded.train if loaded.test is not None else None
    if train is not None:
        real_rows = _load(train, _label_of(train, label, column), coded).train
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
    json: opt.Json = False,
) -> None:
    """The datasets there are, or what a file looks like to capemix (shown to its owner only)."""
    from capemix.cli.show import print_json, print_table
    from capemix.data import DATASETS
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
    rows = _load(name, label).train
    facts = {
        "name": name,
        "features": rows.width,
        "classes": list(rows.classes),
        "records": len(rows),
        "class_sizes": rows.class_counts().tolist(),
    }
    if json:
        print_json(facts if name in DATASETS else facts | {"private": PRIVATE})
    else:
        print_table("rows (private to you unless the data is public)", [facts])


@app.command("schema")
def draft_schema(
    table: Annotated[str, typer.Argument(help="A .csv, .csv.gz or .parquet file.")],
    label: Annotated[str, typer.Option(help="Its label column.")],
    out: Annotated[Path, typer.Option(help="JSON file to write; must not exist.")],
    logs: Annotated[
        bool,
        typer.Option(
            "--logs",
            help="Take real numbers by their logarithm where their range is above 0 and wide.",
        ),
    ] = False,
    json: opt.Json = False,
) -> None:
    """Draft a table's public schema. THE DRAFT READS THE ROWS, outside of any budget: check every
    range and category; what stays in the file is declared public."""
    from json import dumps

    from capemix.cli.show import print_json
    from capemix.data import draft_table
    from capemix.data.schema import Number
    from capemix.release import outside_releases

    target = outside_releases(out)
    drafted = draft_table(table, label)
    drafted = drafted.with_logs() if logs else drafted
    try:
        with target.open("x") as file:
            file.write(dumps(drafted.as_json(), indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise InputError(
            "--out",
            f"cannot be written: {error.strerror}",
            value=out,
            fix="name a new file in a folder that exists",
        ) from error
    says = (
        "The draft has read the rows, outside of any budget. Widen ranges and change lists to what"
        " was known without the rows; what stays in it is declared public."
    )
    taken = [each.name for each in drafted.columns if isinstance(each, Number) and each.log]
    if json:
        facts = {"out": str(target), "columns": len(drafted.columns), "by_logarithm": taken}
        print_json(facts | {"says": says})
    else:
        typer.echo(f"{target}: {len(drafted.columns)} columns\n{says}")
        if logs:
            typer.echo(f"By their logarithm: {', '.join(taken) or 'none'}.")


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


def _load(data: str, label: str | None, schema: Table | None = None) -> Loaded:
    from capemix.data import open_data

    return open_data(data, label, table=schema)


def _account_of(plan: Plan | RecordPlan | MomentsPlan, guarantee: Guarantee) -> dict[str, Any]:
    """What `calibrate`, `account` and `synth` print."""
    from capemix.plan import MomentsPlan, Plan, RecordPlan

    found: dict[str, Any] = {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "noise": plan.noise,
        "noise_multiplier": plan.noise_multiplier,
        "relation": str(guarantee.relation),
        "accountant": guarantee.accountant,
        "status": str(guarantee.status),
        "arithmetic": guarantee.arithmetic,
    }
    if isinstance(plan, RecordPlan):
        return found | {
            "synthesizer": str(plan.synthesizer),
            "label_kept": plan.label_kept,
            "view": guarantee.view,
            "views": guarantee.as_json()["views"],
        }
    if isinstance(plan, MomentsPlan):
        found["synthesizer"] = str(plan.synthesizer)
    found["scheme"] = str(plan.federation.scheme)
    if guarantee.accountant == "sound":
        found["epsilon_pld"] = guarantee.epsilon_pld
    if plan.federation.scheme != "central":
        found |= {
            "sites": guarantee.adversary.sites,
            "colluding": guarantee.adversary.colluding,
            "dropouts": guarantee.adversary.dropouts,
            "honest": guarantee.adversary.honest,
        }
        if isinstance(plan, Plan):
            found["site_noise"] = plan.site_noise
    if plan.federation.scheme == "cape":
        found["price"] = guarantee.adversary.price
    found["view"] = guarantee.view
    found["views"] = guarantee.as_json()["views"]
    return found


def _show_account(plan: Plan | RecordPlan, *, as_json: bool) -> None:
    from capemix.cli.show import print_facts, print_json

    found = _account_of(plan, plan.guarantee())
    if as_json:
        print_json(found)
    else:
        print_facts(found)
