"""Options that several commands share, in groups, and what becomes of them.

Choices are written out here, not taken from the enums, so that --help needs no numerical library;
a test keeps the two in step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast, get_args, get_type_hints

import typer

from capemix.cli.moved import one_of
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data import Cells, DatasetInfo, LabeledRows, UnlistedRows
    from capemix.data import Table as Columns
    from capemix.evaluate import Classifier
    from capemix.plan import Plan
    from capemix.sums.steps import Normalise, PublicMap

SchemeName = Literal["central", "conventional", "cape"]
FormName = Literal["joint", "algorithm1"]
MasksName = Literal["ring", "gaussian"]
AccountantName = Literal["sound", "paper"]
SiteNoiseName = Literal["sqrt-sites", "sites", "sound", "matched", "appendix"]
SelectionName = Literal["poisson", "fixed-size"]
RelationName = Literal["add-or-remove-one", "replace-one"]
LawName = Literal["discrete", "rounded", "gaussian"]
NormaliseName = Literal["public", "site-zscore"]
SynthesizerName = Literal["mixing", "moments", "moments+teacher", "dp-mix"]
EngineName = Literal["deployment", "simulation"]
FederatedName = Literal["mixing", "moments", "moments+teacher"]
ModelName = Literal["logreg", "forest", "cnn"]
DeviceName = Literal["cpu", "cuda"]
LabelsName = Literal["hard", "soft"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Delta = Annotated[float, typer.Option(help="Probability with which the guarantee may fail.")]
Mixture = Annotated[int, typer.Option(help="L: rows mixed into one synthetic row.")]
Samples = Annotated[
    int,
    typer.Option(
        help="T: synthetic rows, over all classes. Not given, moments draw as many as there are "
        "records, and four times as many images; rows of a table beyond one a record have texture."
    ),
]
Synthesizer = Annotated[
    SynthesizerName,
    typer.Option(
        **one_of(get_args(SynthesizerName)),
        help="Mixing by class (DP-CDA); moments (a Gaussian for each class, for tables; of images, "
        "several); moments+teacher (images with soft labels); or dp-mix, mixing over all classes.",
    ),
]
Upright = Annotated[
    bool | None,
    typer.Option(
        "--upright/--no-upright",
        help="Of moments of images: set each upright by its own slant, for handwriting "
        "[default: for mnist].",
        show_default=False,
    ),
]
Sites = Annotated[
    int | None, typer.Option(help="S: sites (pooled by --scheme central).", show_default=False)
]
Colluding = Annotated[
    int | None,
    typer.Option(
        help="M: sites that may collude with the server [default: max(1, ceil(S/3)-1)].",
        show_default=False,
    ),
]
Dropouts = Annotated[int, typer.Option(help="R: sites that may drop out.")]
Masks = Annotated[
    MasksName | None,
    typer.Option(help="Zero-sum noise between sites [default: ring].", show_default=False),
]
Accountant = Annotated[
    AccountantName,
    typer.Option(
        help="What is promised, or Theorem 1 as published [default: sound].", show_default=False
    ),
]
Form = Annotated[
    FormName, typer.Option(help="Of --scheme cape; algorithm1 is as published.", show_default=False)
]
SiteNoise = Annotated[
    SiteNoiseName | None,
    typer.Option(
        help="How averaged schemes scale a site's noise: sites, sqrt-sites (conventional, paper), "
        "sound (conventional, sound), matched or appendix (algorithm1).",
        show_default=False,
    ),
]
Selection = Annotated[
    SelectionName | None,
    typer.Option(
        help="How rows are drawn; fixed-size is not for the joint form.", show_default=False
    ),
]
Relation = Annotated[
    RelationName | None,
    typer.Option(help="Which datasets count as neighbours.", show_default=False),
]
Law = Annotated[
    LawName | None,
    typer.Option(
        help="Noise: discrete Gaussian, rounded (one curator, exact PLD), or floats.",
        show_default=False,
    ),
]
LabelNoise = Annotated[
    bool | None,
    typer.Option(
        "--label-noise/--no-label-noise",
        help="Mix and noise one-hot labels as the paper does [default: with --accountant paper].",
        show_default=False,
    ),
]
ClassSizes = Annotated[
    str | None,
    typer.Option(
        help="Public sizes of the classes, n1,n2,... in class order, or one number for all.",
        show_default=False,
    ),
]
Schema = Annotated[
    Path | None,
    typer.Option(
        help="What is public of a table's columns, as `capemix schema draft` has it (for moments).",
        show_default=False,
    ),
]
Peers = Annotated[
    int | None,
    typer.Option(
        help="Degree of a sparse peer graph [default: complete up to 50 sites].",
        show_default=False,
    ),
]
Printed = Annotated[
    bool, typer.Option("--printed-theorem", help="Theorem 1 with B(ceil(j/2)) as printed.")
]


def given(context: typer.Context) -> list[str]:
    """The names of the parameters that were typed, not left at their defaults."""
    return [
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", None) == "COMMANDLINE"
    ]


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How rows are mixed and noised; the budget and the public facts come from elsewhere."""

    delta: Delta = 1e-5
    mixture: Mixture = 16
    samples: Samples = 1000
    redraw: Annotated[
        int | None,
        typer.Option(
            help="Rows to draw anew from what the mixtures say of each class, freed of their noise "
            "[default: release the mixtures].",
            show_default=False,
        ),
    ] = None
    clip: Annotated[
        float | None,
        typer.Option(
            help="C: l2 norm to which rows are clipped, after the map "
            "[default: half of sqrt(features) with a range, paid for without].",
            show_default=False,
        ),
    ] = None
    public_range: Annotated[
        str | None,
        typer.Option(
            help="LO,HI: values a feature can take, declared public; 'none' for rows as they stand "
            "[default: of a file, paid for].",
            show_default=False,
        ),
    ] = None
    public_center: Annotated[
        float | None,
        typer.Option(
            help="Value that the map sends to 0 [default: middle of the range].",
            show_default=False,
        ),
    ] = None
    colluding: Colluding = None
    dropouts: Dropouts = 0
    masks: Masks = None

    def public_map(self, info: DatasetInfo | None = None) -> PublicMap:
        """By the range that was given, else by the dataset's own."""
        from capemix.sums.steps import PublicMap

        if self.public_range is None and info is not None:
            return PublicMap.of_range(*info.value_range, center=self.public_center)
        if self.public_range in (None, "none"):
            if self.public_center is not None:
                raise InputError(
                    "--public-center",
                    "has no meaning without a range",
                    value=self.public_center,
                    fix="leave it out, or give --public-range LO,HI",
                )
            return PublicMap()
        try:
            low, high = (float(part) for part in str(self.public_range).split(","))
        except ValueError:
            raise InputError(
                "--public-range", "must be two numbers", value=self.public_range, fix="write LO,HI"
            ) from None
        return PublicMap.of_range(low, high, center=self.public_center)

    def asked(self, width: int, normalise: Normalise) -> dict[str, Any]:
        """In the words of `make_plan`."""
        declared = getattr(normalise, "low", None) is not None
        default = 0.5 * width**0.5 if declared else 1.0
        return {
            "delta": self.delta,
            "mixture": self.mixture,
            "samples": self.samples,
            "redraw": self.redraw,
            "clip": default if self.clip is None else self.clip,
            "normalise": normalise,
            "colluding": self.colluding,
            "dropouts": self.dropouts,
            "masks": self.masks,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """Rows at hand: all of them, and those of each site where a column says whose they are.
    ``test`` and ``info`` come with a known dataset only."""

    whole: LabeledRows | UnlistedRows
    sites: tuple[LabeledRows | UnlistedRows, ...] | None = None
    test: LabeledRows | None = None
    info: DatasetInfo | None = None

    @property
    def classes(self) -> tuple[str | int, ...] | None:
        """None where nobody has declared them."""
        return getattr(self.whole, "classes", None)

    def as_they_come(self) -> Opened:
        """With the labels that there are as classes, where nobody has declared any."""
        from capemix.data import LabeledRows

        if isinstance(self.whole, LabeledRows):
            return self
        whole = self.whole.as_they_come()
        sites = (
            None
            if self.sites is None
            else tuple(
                each
                if isinstance(each, LabeledRows)
                else each.listed(whole.classes, whole.read_from_rows)
                for each in self.sites
            )
        )
        return replace(self, whole=whole, sites=sites)

    def declared(self) -> tuple[LabeledRows, tuple[LabeledRows, ...] | None]:
        """All rows, and each site's. Several sites never find a list of classes together."""
        from capemix.data import LabeledRows

        if not isinstance(self.whole, LabeledRows):
            raise InputError(
                "--classes",
                "must be declared for more than one site",
                fix="list the classes that rows may have: a,b,c",
            )
        return self.whole, cast("tuple[LabeledRows, ...] | None", self.sites)


SPLITS: Final = ("iid", "stratified", "dirichlet")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows at hand, dealt out to sites."""

    data: Annotated[
        str, typer.Option(help="digits, mnist, fashion-mnist, or a .csv, .parquet or .npz file.")
    ] = "digits"
    label: Annotated[
        str | None, typer.Option(help="Label column of a file.", show_default=False)
    ] = None
    classes: Annotated[
        str | None,
        typer.Option(
            help="Classes that rows of a file may have, a,b,c: declared public. Other rows count "
            "for nothing [default: for one curator, found and paid for].",
            show_default=False,
        ),
    ] = None
    class_sizes: ClassSizes = None
    partition: Annotated[
        str,
        typer.Option(
            help="iid, stratified, dirichlet, or a column of the file, with --site-names."
        ),
    ] = "stratified"
    site_names: Annotated[
        str | None,
        typer.Option(
            help="What --partition COLUMN may hold, a,b,c, a site for each. Rows with another name "
            "are at no site.",
            show_default=False,
        ),
    ] = None
    alpha: Annotated[float, typer.Option(help="Dirichlet parameter: smaller is skewer.")] = 0.1
    test_seed: Annotated[
        int | None,
        typer.Option(help="Reproducible noise, for tests: NOT private.", show_default=False),
    ] = None

    def open(self, schema: Path | None = None) -> Opened:
        """Rows of a file whose classes nobody declares are left unlisted."""
        from capemix.data import (
            DATASETS,
            by_site,
            existing_file,
            open_cells,
            open_data,
            open_table,
        )
        from capemix.data import Table as Columns

        column = None if self.partition in SPLITS else self.partition
        names = parse_names("--site-names", self.site_names)
        if (column is None) != (names is None):
            raise InputError(
                "--site-names",
                "must be declared with --partition COLUMN" if names is None else "has no meaning",
                value=column if names is None else self.site_names,
                fix="list the sites' names: a,b,c"
                if names is None
                else "leave it out, or name the column with --partition",
            )
        declared = None if schema is None else Columns.read(schema)
        classes = parse_names("--classes", self.classes)
        if declared is not None and classes is not None:
            raise InputError(
                "--classes", "are the schema's to say", value=self.classes, fix="leave them out"
            )
        if self.data in DATASETS:
            if column is not None:
                raise InputError(
                    "--partition",
                    f"must be one of {', '.join(SPLITS)} for the dataset {self.data}",
                    value=column,
                    fix="choose one, or give a file",
                )
            known = open_data(self.data, self.label, classes=classes, table=declared)
            return Opened(whole=known.train, test=known.test, info=known.info)
        if declared is not None:
            cells = open_table(self.data, declared, self.label)
        else:
            file = existing_file(self.data)
            cells = open_cells(file, self.label, () if column is None else (column,))
        parts = None if column is None else by_site(cells, column, names or ())
        but = () if column is None else (column,)
        return Opened(
            whole=_rows(cells, declared, classes, but),
            sites=None
            if parts is None
            else tuple(_rows(part, declared, classes, but) for part in parts),
        )

    def sizes(self, opened: Opened) -> tuple[int, ...] | None:
        """Public sizes of the classes: declared, or known of a dataset."""
        if self.class_sizes is not None and opened.classes is None:
            raise InputError(
                "--classes", "must be declared where their sizes are", fix="list them: a,b,c"
            )
        if self.class_sizes is not None:
            return parse_sizes(self.class_sizes, len(opened.classes or ()))
        return None if opened.info is None else opened.info.class_sizes

    def deal(self, opened: Opened, sites: int | None) -> list[LabeledRows]:
        from capemix.data import partition

        rows, parts = opened.declared()
        if parts is None:
            count, seed = 1 if sites is None else sites, self.test_seed or 0
            how: Any = self.partition
            return list(partition(rows, count, how, alpha=self.alpha, seed=seed))
        if sites is not None and sites != len(parts):
            raise InputError(
                "--sites",
                f"must be {len(parts)}, as many as --site-names",
                value=sites,
                fix="leave it out, or bring it in line",
            )
        return list(parts)


def _rows(
    cells: Cells,
    declared: Columns | None,
    classes: tuple[str | int, ...] | None,
    but: tuple[str, ...],
) -> LabeledRows | UnlistedRows:
    from capemix.data import UnlistedRows

    if declared is not None:
        return declared.rows(cells)
    rows = UnlistedRows.of(cells, cells.label, but)
    return rows if classes is None else rows.listed(classes)


def is_upright(said: bool | None, synthesizer: str, info: DatasetInfo | None) -> bool | None:
    """What was said, or of a dataset known by name what is known; None where it has no meaning."""
    from capemix.plan.images import MOST_COLUMNS

    if said is not None or info is None or synthesizer not in ("moments", "moments+teacher"):
        return said
    return info.handwriting if info.width > MOST_COLUMNS else None


@dataclass(frozen=True, kw_only=True)
class Method:
    """Who adds noise, how it is counted, and what the methods have of their own."""

    synthesizer: Synthesizer = "mixing"
    scheme: Annotated[SchemeName, typer.Option(help="Who adds noise.")] = "central"
    form: Form = "joint"
    sites: Sites = None
    accountant: Accountant = "sound"
    normalise: Annotated[
        NormaliseName | None,
        typer.Option(
            help="public, or site-zscore as the paper has it (not covered by a sound "
            "guarantee) [default: site-zscore with --accountant paper].",
            show_default=False,
        ),
    ] = None
    site_noise: SiteNoise = None
    selection: Selection = None
    relation: Relation = None
    law: Law = None
    label_noise: LabelNoise = None
    peers: Peers = None
    printed_theorem: Printed = False
    upright: Upright = None
    tune: Annotated[
        Literal["auto"] | None,
        typer.Option(
            help="auto: choose --samples and --mixture for --redraw by the noise they will have, "
            "from public numbers alone.",
            show_default=False,
        ),
    ] = None

    @property
    def of_moments(self) -> bool:
        return self.synthesizer in ("moments", "moments+teacher")

    def parts(self, table: Table, opened: Opened) -> list[LabeledRows] | UnlistedRows:
        """Each site's rows; all of them together for one curator."""
        from capemix.data import UnlistedRows

        if self.scheme != "central":
            return table.deal(opened, self.sites)
        return opened.whole if isinstance(opened.whole, UnlistedRows) else [opened.whole]

    def asked(
        self, table: Table, mixing: Mixing, opened: Opened, typed: list[str]
    ) -> dict[str, Any]:
        """In the words of `capemix.api.release_of`; ``typed`` are the options that were given."""
        from capemix.api import PAID
        from capemix.sums.steps import SiteZScore

        paper = self.accountant == "paper" and mixing.public_range is None
        kind = self.normalise or ("site-zscore" if paper else "public")
        if kind == "site-zscore":
            for name in ("public_range", "public_center"):
                if name in typed:
                    raise InputError(
                        f"--{name.replace('_', '-')}",
                        "has no meaning for --normalise site-zscore",
                        value=getattr(mixing, name),
                        fix="leave it out, or use --normalise public",
                    )
        if "alpha" in typed and table.partition != "dirichlet":
            raise InputError(
                "--alpha",
                f"has no meaning for --partition {table.partition}",
                value=table.alpha,
                fix="leave it out, or use --partition dirichlet",
            )
        how = SiteZScore() if kind == "site-zscore" else mixing.public_map(opened.info)
        own = (
            *("scheme", "form", "accountant", "site_noise", "selection", "relation", "law"),
            *("label_noise", "peers", "printed_theorem"),
        )
        asked = mixing.asked(opened.whole.width, how) | {name: getattr(self, name) for name in own}
        unknown = opened.info is None and mixing.public_range is None and kind == "public"
        if unknown:
            asked |= {"normalise": PAID, "clip": mixing.clip}
        sizes = table.sizes(opened)
        if self.of_moments:  # the rest has no meaning there: what was given is refused by name
            kept = ("delta", "normalise", "scheme", "colluding", "dropouts", "masks", "peers")
            asked = {name: asked[name] for name in asked if name in (*kept, "relation", *typed)}
        upright = is_upright(self.upright, self.synthesizer, opened.info)
        if upright is not None:
            asked["upright"] = upright
        return asked | {
            "class_sizes": sizes,
            "synthesizer": self.synthesizer,
            "tune": self._tuned(typed),
        }

    def _tuned(self, typed: list[str]) -> bool:
        if self.tune is not None:
            for name in ("mixture", "samples"):
                if name in typed:
                    raise InputError(
                        f"--{name}", "is chosen by --tune", value="auto", fix="leave one out"
                    )
        return self.tune is not None


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


LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        help="The ledger's file [default: ledger.db in the user's state folder].",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Which budget pays."""

    lineage: Annotated[
        str | None,
        typer.Option(
            help="Name of the data whose budget pays, as given to `capemix ledger set-limit`.",
            show_default=False,
        ),
    ] = None
    ledger: LedgerFile = None
    no_ledger: Annotated[
        bool, typer.Option("--no-ledger", help="Count nothing, for rows that are not private.")
    ] = False

    def asked(self, info: DatasetInfo | None) -> dict[str, Any]:
        """In the words of `synthesize`. Rows of the user's own are counted, or not, by name."""
        if self.no_ledger and (self.lineage is not None or self.ledger is not None):
            raise InputError(
                "--no-ledger", "contradicts --lineage and --ledger", fix="leave one out"
            )
        if self.lineage is None and not self.no_ledger and info is None:
            raise InputError(
                "--lineage",
                "is needed, so that what is released of these rows is counted",
                fix="name the data after `capemix ledger set-limit NAME --epsilon E`, or say"
                " --no-ledger",
            )
        return {"ledger": self.ledger, "lineage": self.lineage}


def declared_plan(
    *,
    classes: Annotated[int, typer.Option(help="K: classes.")],
    records: Annotated[
        int | None, typer.Option(help="N: records, over balanced classes.", show_default=False)
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="T: synthetic rows, over all classes.", show_default=False)
    ] = None,
    mixture: Annotated[
        int | None,
        typer.Option(help="L: rows mixed into one synthetic row.", show_default=False),
    ] = None,
    synthesizer: Synthesizer = "mixing",
    delta: Delta = 1e-5,
    clip: Annotated[float, typer.Option(help="C: l2 norm to which rows are clipped.")] = 1.0,
    accountant: Accountant = "sound",
    sites: Sites = None,
    colluding: Colluding = None,
    dropouts: Dropouts = 0,
    masks: Masks = None,
    scheme: Annotated[
        SchemeName | None,
        typer.Option(help="[default: cape with --sites, else central].", show_default=False),
    ] = None,
    form: Form = "joint",
    site_noise: SiteNoise = None,
    selection: Selection = None,
    relation: Relation = None,
    law: Law = None,
    label_noise: LabelNoise = None,
    class_sizes: ClassSizes = None,
    peers: Peers = None,
    features: Annotated[int, typer.Option(help="Features per row.")] = 784,
    printed_theorem: Printed = False,
) -> Plan:
    """A plan from declared values only; no rows are read."""
    from capemix.plan import make_plan
    from capemix.synthesizers.mixing import spread

    if synthesizer in ("moments", "moments+teacher"):
        raise InputError(
            "--synthesizer",
            "has rounds of its own that are calibrated with the rows at hand",
            value=synthesizer,
            fix="use capemix synth",
        )
    if records is None or samples is None or mixture is None:
        raise InputError(
            "--records, --samples and --mixture",
            f"are needed for {synthesizer}",
            fix="give N, T and L",
        )
    if classes < 1 or records < classes:
        raise InputError(
            "--records and --classes",
            "must leave every class a record",
            value=f"{records} and {classes}",
            fix="give N >= K >= 1",
        )
    return make_plan(
        width=features,
        class_sizes=(
            spread(records, classes) if class_sizes is None else parse_sizes(class_sizes, classes)
        ),
        samples=samples,
        mixture=mixture,
        pool="all" if synthesizer == "dp-mix" else "class",
        clip=clip,
        scheme=scheme or ("central" if sites is None else "cape"),
        form=form,
        sites=1 if sites is None else sites,
        colluding=colluding,
        dropouts=dropouts,
        masks=masks,
        peers=peers,
        site_noise=site_noise,
        selection=selection,
        relation=relation,
        accountant=accountant,
        law=law,
        label_noise=label_noise,
        printed_theorem=printed_theorem,
        delta=delta,
    )


def with_options(*groups: Callable[..., Any]) -> Callable[[Callable[..., None]], Any]:
    """Give a command the options of these groups; what each makes of them comes first among the
    command's arguments."""
    shared = [inspect.signature(group).parameters.values() for group in groups]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints: dict[str, Any] = {}
        plans = {"Plan": object}
        for source in (*groups, command):
            hints |= get_type_hints(source, localns=plans, include_extras=True)

        def run(**options: Any) -> None:
            made = [
                group(**{p.name: options.pop(p.name) for p in parameters})
                for group, parameters in zip(groups, shared, strict=True)
            ]
            command(*made, **options)

        own = list(inspect.signature(command).parameters.values())[len(groups) :]
        parameters = sorted(
            [
                p.replace(kind=p.KEYWORD_ONLY, annotation=hints[p.name])
                for p in (*(p for group in shared for p in group), *own)
            ],
            key=lambda p: p.default is not p.empty,
        )
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: hints[p.name] for p in parameters}
        return run

    return decorate


def parse_names(option: str, text: str | None) -> tuple[str | int, ...] | None:
    """a,b,c: whole numbers as numbers, if all of them are."""
    from capemix.data import check_classes
    from capemix.data.rows import as_numbers

    if text is None:
        return None
    return check_classes(as_numbers([name.strip() for name in text.split(",")]), option)


def parse_sizes(text: str, classes: int) -> tuple[int, ...]:
    """n1,n2,... or one number for all classes."""
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
