"""What is declared public of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from capemix.cli.options.groups import MORE
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data import DatasetInfo
    from capemix.sums.steps import PublicMap

ClassSizes = Annotated[
    str | None,
    typer.Option(
        help="How many records each class has, n1,n2,... in class order, or one number for all:"
        " declared public [default: measured and paid for].",
        show_default=False,
        rich_help_panel=MORE,
    ),
]


@dataclass(frozen=True, kw_only=True)
class DeclaredFacts:
    """What is not declared is measured, and paid for out of the budget."""

    classes: Annotated[
        str | None,
        typer.Option(
            help="Classes that rows may have, a,b,c: declared public. Other rows count for nothing"
            " [default: found and paid for; several sites must declare them].",
            show_default=False,
        ),
    ] = None
    public_range: Annotated[
        str | None,
        typer.Option(
            help="LO,HI: the values that a column can have, declared public; 'none' takes rows as"
            " they stand [default: measured and paid for].",
            show_default=False,
        ),
    ] = None
    class_sizes: ClassSizes = None
    public_center: Annotated[
        float | None,
        typer.Option(
            help="Value that the map of the range sends to 0 [default: the middle].",
            show_default=False,
            rich_help_panel=MORE,
        ),
    ] = None

    def public_map(self, info: DatasetInfo | None = None) -> PublicMap | None:
        """By the range that was given, else by the dataset's own; None: it is to be measured."""
        from capemix.sums.steps import PublicMap

        if self.public_range is None and info is not None:
            return PublicMap.of_range(*info.value_range, center=self.public_center)
        if self.public_range in (None, "none"):
            if self.public_center is not None:
                raise InputError(
                    "public_center",
                    "has no meaning without a range",
                    value=self.public_center,
                    fix="leave it out, or give public_range LO,HI",
                )
            return None if self.public_range is None else PublicMap()
        try:
            low, high = (float(part) for part in str(self.public_range).split(","))
        except ValueError:
            raise InputError(
                "public_range", "must be two numbers", value=self.public_range, fix="write LO,HI"
            ) from None
        return PublicMap.of_range(low, high, center=self.public_center)

    def sizes(
        self, classes: tuple[str | int, ...] | None, info: DatasetInfo | None = None
    ) -> tuple[int, ...] | None:
        """Public sizes of the classes: declared, or known of a dataset."""
        if self.class_sizes is None:
            return None if info is None else info.class_sizes
        if classes is None:
            raise InputError(
                "classes", "must be declared where their sizes are", fix="list them: a,b,c"
            )
        return parse_sizes(self.class_sizes, len(classes))

    def refuse_beside_schema(self) -> None:
        """A schema says these itself."""
        for field in ("classes", "public_range", "public_center"):
            if getattr(self, field) is not None:
                raise InputError(
                    field, "is the schema's to say", value=getattr(self, field), fix="leave it out"
                )


def parse_names(field: str, text: str | None) -> tuple[str | int, ...] | None:
    """a,b,c: whole numbers as numbers, if all of them are."""
    from capemix.data import check_classes
    from capemix.data.rows import as_numbers

    if text is None:
        return None
    return check_classes(as_numbers([name.strip() for name in text.split(",")]), field)


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
            "class_sizes",
            f"must be {classes} whole numbers above 0, or one for all",
            value=text,
            fix="write them as n1,n2,...",
        )
    return sizes
