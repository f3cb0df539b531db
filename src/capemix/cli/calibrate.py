"""`capemix calibrate` and `capemix account`: noise and cost by declared numbers, without rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from capemix.cli import options as opt
from capemix.cli.command import MethodCommand, method_asked
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.facts import Facts
    from capemix.plan import Plan


class DeclaredCommand(MethodCommand):
    """Its default, unless another method is named: there are no rows to decide it."""

    usual: ClassVar[str | None] = opt.DeclaredMethodName.method


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The public numbers that a plan is made of."""

    classes: Annotated[int, typer.Option(help="Number of classes; 1 without a label.")]
    records: Annotated[
        int | None,
        typer.Option(help="Number of records, over balanced classes.", show_default=False),
    ] = None
    features: Annotated[
        str, typer.Option(help="Columns of a row: a number, or HEIGHTxWIDTH for images.")
    ] = "784"
    class_sizes: opt.ClassSizes = None
    public_range: Annotated[
        str | None,
        typer.Option(
            help="LO,HI: the values that a column can have, declared public; 'none' for rows as"
            " they stand [default: measured and paid for by methods that add up each record once].",
            show_default=False,
        ),
    ] = None
    rows_per_person: opt.RowsPerPerson = None

    def facts(self) -> Facts:
        """Of columns that have no names."""
        from capemix.facts import Facts

        names, shape = parse_features(self.features, numbered=True)
        return Facts(
            features=names,
            label="label",
            classes=tuple(range(self.classes)),
            class_sizes=self._sizes(),
            normalise=opt.DeclaredFacts(public_range=self.public_range).public_map(),
            image_shape=shape,
            rows_per_person=self.rows_per_person,
        )

    def _sizes(self) -> tuple[int, ...] | None:
        if self.class_sizes is not None:
            return opt.parse_sizes(self.class_sizes, self.classes)
        if self.records is None:
            return None
        if self.classes < 1 or self.records < self.classes:
            raise InputError(
                "records and classes",
                "must leave every class a record",
                value=f"{self.records} and {self.classes}",
                fix="give at least as many records as classes",
            )
        each, rest = divmod(self.records, self.classes)
        return tuple(each + (place < rest) for place in range(self.classes))


Scheme = Annotated[
    opt.SchemeName | None,
    typer.Option(
        help="Who adds noise [default: cape with --sites, else central].",
        show_default=False,
        rich_help_panel=opt.SITES,
    ),
]

declared = opt.with_options(Numbers, opt.DeclaredMethodName, opt.Adversary, opt.PaperModes)


@declared
def calibrate(
    numbers: Numbers,
    _named: opt.DeclaredMethodName,
    adversary: opt.Adversary,
    paper: opt.PaperModes,
    context: typer.Context,
    epsilon: opt.Epsilon,
    delta: opt.Delta = 1e-5,
    sites: opt.Sites = None,
    scheme: Scheme = None,
    json: opt.Json = False,
) -> None:
    """The least noise that keeps a budget."""
    from capemix.cli.progress import spinner

    plan = _plan(numbers, adversary, paper, context, delta, sites, scheme, measure=True)
    with spinner("calibrating", quiet=json):
        calibrated = plan.calibrate(epsilon)
    _show(calibrated, as_json=json)


@declared
def account(
    numbers: Numbers,
    _named: opt.DeclaredMethodName,
    adversary: opt.Adversary,
    paper: opt.PaperModes,
    context: typer.Context,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Deviation of the noise on each number of a released row, for mixing.",
            show_default=False,
        ),
    ] = None,
    multiplier: Annotated[
        float | None,
        typer.Option(
            help="Deviation of the noise of all sums, taken as one, divided by the most that one"
            " record, or person, can change them (of drawn records: by what one adds), as"
            " `capemix calibrate` prints it.",
            show_default=False,
        ),
    ] = None,
    delta: opt.Delta = 1e-5,
    sites: opt.Sites = None,
    scheme: Scheme = None,
    json: opt.Json = False,
) -> None:
    """What a given noise costs, in all and sum by sum."""
    if (noise is None) == (multiplier is None):
        raise InputError(
            "noise and multiplier", "must be given, one of the two", fix="give one of them"
        )
    plan = _plan(numbers, adversary, paper, context, delta, sites, scheme, measure=False)
    if multiplier is not None:
        _show(replace(plan, multiplier=multiplier), as_json=json)
        return
    if noise is None or len(plan.names) != 1:
        raise InputError(
            "noise",
            f"is of one released sum, and {plan.method.kind} has {len(plan.names)}",
            value=noise,
            fix="give the multiplier with --multiplier",
        )
    unit = replace(plan, multiplier=1.0).query(plan.names[0]).deviation
    _show(replace(plan, multiplier=noise / unit), as_json=json)


def _plan(
    numbers: Numbers,
    adversary: opt.Adversary,
    paper: opt.PaperModes,
    context: typer.Context,
    delta: float,
    sites: int | None,
    scheme: opt.SchemeName | None,
    *,
    measure: bool,
) -> Plan:
    """By declared numbers. With ``measure`` the sums that measure an undeclared range are in it,
    but for a method that draws records, whose noise would depend on what they find."""
    from capemix.plan import make_plan
    from capemix.sums.steps import PublicMap

    facts = numbers.facts()
    scheme = scheme or ("central" if sites is None else "cape")
    method = method_asked(context).method(facts, scheme=scheme, form=paper.form)
    who: dict[str, Any] = {**adversary.who(), **paper.who(), "delta": delta, "scheme": scheme}
    who["sites"] = 1 if sites is None else sites
    undeclared = facts.normalise is None
    stand = replace(facts, normalise=PublicMap.of_range(-1, 1)) if undeclared else facts
    plan = make_plan(stand, method, **who)  # whatever the range, sums of all records cost the same
    if plan.drawn and facts.class_sizes is None:
        raise InputError(
            "class_sizes",
            f"must be declared for {method.kind}: its noise depends on them",
            fix="give 'records', or their sizes by class",
        )
    if undeclared and plan.drawn:
        return make_plan(replace(facts, normalise=PublicMap()), method, **who)
    return make_plan(facts, method, **who) if undeclared and measure else plan


def parse_features(
    text: str, *, numbered: bool = False
) -> tuple[tuple[str, ...], tuple[int, int] | None]:
    """Columns' names, and the shape of images: of HEIGHTxWIDTH; of a,b,c; or, if ``numbered``, of
    the number of columns."""
    from capemix.data.rows import pixel_names
    from capemix.facts import MOST, unnamed_columns

    height, by, width = text.partition("x")
    if by and height.isdecimal() and width.isdecimal() and int(height) and int(width):
        shape = int(height), int(width)
        _check_count(shape[0] * shape[1], text)
        return pixel_names(shape), shape
    if numbered:
        count = int(text) if text.isdecimal() and len(text) < len(str(MOST)) else 0
        _check_count(count, text)
        return unnamed_columns(count), None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise InputError(
            "features", "must be distinct names", value=text, fix="write a,b,c or 28x28"
        )
    return names, None


def _check_count(count: int, text: str) -> None:
    if not 1 <= count <= 1 << 20:
        raise InputError(
            "features", "must be a number of columns", value=text, fix="give 784, or 28x28"
        )


def _show(plan: Plan, *, as_json: bool) -> None:
    from capemix.cli.explain import explanation_of, print_explanation
    from capemix.cli.show import account_of, print_facts, print_json

    found, why = account_of(plan, plan.guarantee()), explanation_of(plan)
    if as_json:
        print_json(found | why)
    else:
        print_facts(found)
        print_explanation(why)
