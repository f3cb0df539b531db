"""Options that several of the laboratory's commands share, and what becomes of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data import DatasetInfo, LabeledRows
    from capemix.data.partition import Split
    from capemix.evaluate import Classifier
    from capemix.plan import Plan
    from capemix.sums.steps import PublicMap
    from capemix_research.frontier import Task

SchemeName = Literal["central", "conventional", "cape"]
SplitName = Literal["iid", "stratified", "dirichlet"]
ModelName = Literal["logreg", "boosting", "forest", "cnn"]
DeviceName = Literal["cpu", "cuda"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Delta = Annotated[float, typer.Option(help="Probability with which the guarantee may fail.")]
Mixture = Annotated[int, typer.Option(help="L: rows mixed into one synthetic row.")]
Samples = Annotated[int, typer.Option(help="T: synthetic rows, over all classes.")]
Dropouts = Annotated[int, typer.Option(help="R: sites that may drop out.")]
Colluding = Annotated[
    int | None,
    typer.Option(
        help="M: sites that may collude with the server [default: max(1, ceil(S/3)-1)].",
        show_default=False,
    ),
]
Scheme = Annotated[SchemeName, typer.Option(help="Who adds noise.")]
Sites = Annotated[
    int | None, typer.Option(help="S: sites (pooled by --scheme central).", show_default=False)
]
Partition = Annotated[SplitName, typer.Option(help="How rows are dealt out to --sites.")]
Alpha = Annotated[float, typer.Option(help="Dirichlet parameter: smaller is skewer.")]
Data = Annotated[
    str, typer.Option(help="digits, mnist, fashion-mnist, or a .csv, .parquet or .npz file.")
]
Label = Annotated[str | None, typer.Option(help="Label column of a file.", show_default=False)]
ClassSizes = Annotated[
    str | None,
    typer.Option(
        help="Public sizes of the classes, n1,n2,... in class order, or one number for all "
        "[default: a dataset's own; of a file, paid for].",
        show_default=False,
    ),
]
Clip = Annotated[
    float | None,
    typer.Option(
        help="C: l2 norm to which rows are clipped, after the map "
        "[default: half of sqrt(features) with a range, 1 without].",
        show_default=False,
    ),
]
PublicRange = Annotated[
    str | None,
    typer.Option(
        help="LO,HI: values a feature can take, declared public; 'none' for rows as they stand "
        "[default: a dataset's own; of a file, none].",
        show_default=False,
    ),
]
TestSeed = Annotated[
    int | None,
    typer.Option(help="Reproducible noise, for tests: NOT private.", show_default=False),
]
FirstSeed = Annotated[int, typer.Option(help="The first seed: of the split, noise and models.")]
Model = Annotated[
    ModelName, typer.Option(help="cnn is the paper's, for images of 28 x 28 (needs torch).")
]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="Of the cnn [default: 20, which a CPU can do; the paper has 100].", show_default=False
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Of the cnn's Adam [default: 1e-3; the paper has 1e-5].", show_default=False),
]
Device = Annotated[
    DeviceName | None,
    typer.Option(help="Where the cnn trains [default: cpu].", show_default=False),
]
Test = Annotated[
    str | None,
    typer.Option(
        help="File of rows to test on [default: the dataset's test part].", show_default=False
    ),
]
RowsArePublic = Annotated[
    bool, typer.Option("--rows-are-public", help="Needed for a file: see above.")
]


def classifier_of(
    model: str, epochs: int | None, learning_rate: float | None, device: str | None
) -> Classifier:
    """What was given and the model does not have is refused by name."""
    from capemix.evaluate import Classifier

    own: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate, "device": device}
    own = {name: value for name, value in own.items() if value is not None}
    if model != "cnn":
        for name, value in own.items():
            raise InputError(
                f"--{name.replace('_', '-')}",
                f"has no meaning for {model}",
                value=value,
                fix="leave it out, or use --model cnn",
            )
    return Classifier(model, **own)


def public_map(text: str | None, info: DatasetInfo | None) -> PublicMap:
    """By the range that was given, else by the dataset's own; as rows stand where there is none."""
    from capemix.sums.steps import PublicMap

    if text is None and info is not None:
        return PublicMap.of_range(*info.value_range)
    if text in (None, "none"):
        return PublicMap()
    try:
        low, high = (float(part) for part in str(text).split(","))
    except ValueError:
        raise InputError(
            "--public-range", "must be two numbers", value=text, fix="write LO,HI"
        ) from None
    return PublicMap.of_range(low, high)


def usual_clip(clip: float | None, width: int, how: PublicMap) -> float:
    """The norm that was given, or the one that goes with the map."""
    if clip is not None:
        return clip
    return 1.0 if how.low is None else 0.5 * width**0.5


def names_of(text: str | None, option: str) -> tuple[str | int, ...] | None:
    """a,b,c: whole numbers as numbers, if all of them are."""
    from capemix.data import check_classes
    from capemix.data.rows import as_numbers

    if text is None:
        return None
    return check_classes(as_numbers([name.strip() for name in text.split(",")]), option)


def sizes_of(text: str | None, classes: int, info: DatasetInfo | None) -> tuple[int, ...] | None:
    """n1,n2,... or one number for all classes; a dataset's own where none are given."""
    if text is None:
        return None if info is None else info.class_sizes
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if len(sizes) == 1:
        sizes *= classes
    if len(sizes) != classes or min(sizes) < 1:
        raise InputError(
            "--class-sizes",
            f"must be {classes} whole numbers above 0, or one for all",
            value=text,
            fix="write them as n1,n2,...",
        )
    return sizes


def dealt(
    rows: LabeledRows, sites: int, how: Split, *, alpha: float = 0.1, seed: int = 0
) -> list[LabeledRows]:
    from capemix.data import partition

    return list(partition(rows, sites, how, alpha=alpha, seed=seed))


def public_task(
    *,
    data: str,
    label: str | None,
    test: str | None,
    rows_are_public: bool,
    class_sizes: str | None,
    public_range: str | None,
    clip: float | None,
    mixture: int,
    samples: int,
    delta: float,
    scheme: SchemeName,
    sites: int | None,
    colluding: int | None,
    dropouts: int,
    partition: SplitName,
    alpha: float,
    seed: int,
    classifier: Classifier,
) -> tuple[Task, dict[str, Any], bool]:
    """Public rows, how they are mixed and how releases of them are judged; all that a trial's
    result depends on; and whether they are handwriting. Rows that are not known to be public are
    refused before any is read."""
    from importlib.metadata import version

    from capemix.api import config_of
    from capemix.data import DATASETS, open_data
    from capemix.facts import Facts
    from capemix.plan import make_plan
    from capemix_research.frontier import Task

    known = data in DATASETS
    own = None if known else data
    if own is None and test is not None and test not in DATASETS:
        own = test
    if own is not None and not rows_are_public:
        raise InputError(
            "--data" if own == data else "--test",
            "is a file, and a search would read its rows many times outside of any budget",
            value=own,
            fix="search on a public dataset, or say --rows-are-public if anyone may see these rows",
        )
    if not known and test is None:
        raise InputError(
            "--test", "is not given, and a file has no test part", fix="name a file of test rows"
        )
    opened = open_data(data, label)
    real, how = opened.train, public_map(public_range, opened.info)
    count = 1 if scheme == "central" or sites is None else sites
    plan = make_plan(
        Facts.of(
            real, class_sizes=sizes_of(class_sizes, len(real.classes), opened.info), normalise=how
        ),
        config_of(
            "mixing", mixture=mixture, samples=samples, clip=usual_clip(clip, real.width, how)
        ),
        scheme=scheme,
        sites=count,
        colluding=colluding,
        dropouts=dropouts,
        delta=delta,
    )
    task = Task(
        sites=[real]
        if scheme == "central"
        else dealt(real, count, partition, alpha=alpha, seed=seed),
        real=real,
        test=_test_rows(opened.test, real, test, label),
        classifier=classifier,
        plan=plan,
    )
    settings = {
        "capemix": version("capemix"),
        "data": data if known else _digest(data),
        "test": "" if test is None else _digest(test),
        "partition": [partition, alpha, seed, count],
        "asked": _asked(plan),
        "classifier": classifier.as_json(),
    }
    return task, settings, opened.info is not None and opened.info.handwriting


def _asked(plan: Plan) -> dict[str, Any]:
    """What a release depends on beside its rows, in few words."""
    from capemix import documents

    parts = (plan.method, plan.federation, plan.facts.normalise, plan.facts.class_sizes)
    return {
        "plan": [documents.as_json(part) for part in parts],
        "relation": str(plan.relation),
        "delta": plan.delta,
    }


def _test_rows(
    given: LabeledRows | None, real: LabeledRows, test: str | None, label: str | None
) -> LabeledRows:
    from capemix.data import DATASETS, open_data

    if test is None:
        return given or real
    found = open_data(test, label) if test in DATASETS else None
    found = found or open_data(test, label, classes=real.classes)
    return found.train.columns(real.feature_names)


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def budgets(text: str) -> list[float]:
    """Several epsilons in one option."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            "--epsilons", "must be numbers", value=text, fix="write them as 1,10"
        ) from None


def interpreters(option: str, given: list[str]) -> dict[str, str]:
    """What others have made, each with the Python that has it: NAME=PYTHON."""
    found = dict(each.split("=", 1) for each in given if "=" in each)
    if len(found) < len(given):
        raise InputError(
            option, "must be NAME=PYTHON, each name once", value=given, fix="name both"
        )
    return found


def counts(option: str, text: str | None) -> list[int]:
    """Several numbers of sites in one option, each at least 2."""
    try:
        found = [] if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if any(count < 2 for count in found):
        raise InputError(
            option, "must be numbers of at least 2", value=text, fix="write them as 5,25"
        )
    return found
