"""Options of a method: one for each field of its config, whoever wrote the method."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import click

if TYPE_CHECKING:
    from capemix.methods import Method

_PREFIX: Final = "method_"
"""Of a parameter's name, so that no method's field meets a parameter of the command's own."""


@dataclass(frozen=True)
class FieldOption:
    """What one field of a method's config is on the command line. ``values`` are those that may be
    typed, where they are few; ``group`` is what the field's metadata says, if anything."""

    method: str
    field: str
    type: type
    values: tuple[str, ...] = ()
    help: str = ""
    group: str | None = None

    @property
    def word(self) -> str:
        return f"--{self.field.replace('_', '-')}"

    @property
    def words(self) -> str:
        """With the one that says no, where there is one."""
        return f"{self.word}/--no-{self.word[2:]}" if self.type is bool else self.word

    def read(self, typed: Any) -> Any:
        """A value of the field's own type, from what was typed."""
        return self.type(typed)

    def option(self) -> click.Option:
        """As click parses it: None where it is not typed."""
        kind = click.Choice(self.values) if self.values else self.type
        return click.Option(
            [f"{_PREFIX}{self.field}", self.words],
            type=None if self.type is bool else kind,
            default=None,
            help=self.help,
        )

    def same_words(self, other: FieldOption) -> bool:
        """Whether what is typed for one can be typed for the other."""
        return self.values == other.values and (bool(self.values) or self.type is other.type)


def field_options(name: str, method: type[Method]) -> tuple[FieldOption, ...]:
    """An option for each field of the method's config whose type can be typed."""
    hints, found = get_type_hints(method), []
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        kind = _type_of(hints[field.name])
        if field.name == "kind" or kind is None:
            continue
        cls, values = kind
        help_, group = (field.metadata.get(each) for each in ("help", "group"))
        text = _with_default(help_ or "", field.default)
        found.append(FieldOption(name, field.name, cls, values, text, group))
    return tuple(found)


def _with_default(text: str, default: Any) -> str:
    said = default is None or isinstance(default, bool) or default is dataclasses.MISSING
    return text if said or "[default" in text else f"{text} [default: {default}]".lstrip()


def _type_of(hint: Any) -> tuple[type, tuple[str, ...]] | None:
    """What is made of a typed word, and the words there are if they are few; None: of no word."""
    if get_origin(hint) in (Union, types.UnionType):
        kinds = (_type_of(each) for each in get_args(hint) if each is not type(None))
        return next((kind for kind in kinds if kind is not None), None)
    if get_origin(hint) is Literal and all(isinstance(each, str) for each in get_args(hint)):
        return str, get_args(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint, tuple(member.value for member in hint)
    return (hint, ()) if hint in (bool, int, float, str) else None


class MethodOptions:
    """The options of some methods, by the method's name."""

    def __init__(self, methods: Mapping[str, type[Method]]) -> None:
        self.by_method = {name: field_options(name, cls) for name, cls in methods.items()}

    def of(self, names: Iterable[str]) -> MethodOptions:
        """Those of the named methods alone."""
        found = MethodOptions({})
        found.by_method = {name: self.by_method[name] for name in names}
        return found

    def each(self) -> Iterable[FieldOption]:
        return (option for options in self.by_method.values() for option in options)

    def having(self, word: str) -> list[str]:
        """The methods that have an option, by one of its words."""
        return [each.method for each in self.each() if word in each.words.split("/")]

    def params(self, taken: Iterable[str] = ()) -> list[click.Option]:
        """For click to parse, each once. Words in ``taken`` are the command's own: a method's field
        of such a name cannot be typed."""
        found: dict[str, FieldOption] = {}
        clashing: dict[str, list[str]] = {}
        own = set(taken)
        for each in self.each():
            if each.word in own:
                continue
            first = found.setdefault(each.word, each)
            if not each.same_words(first):
                clashing.setdefault(each.word, [first.method]).append(each.method)
        return [
            _unclear(each, clashing[word]) if word in clashing else each.option()
            for word, each in found.items()
        ]


def _unclear(option: FieldOption, methods: list[str]) -> click.Option:
    """An option that means other things to other methods: which is meant must be said."""

    def refuse(context: click.Context, _param: click.Parameter, value: Any) -> None:
        if value:
            raise click.UsageError(
                f"{option.word} means different things to {' and '.join(methods)}: choose one"
                " with --method.",
                context,
            )

    return click.Option(
        [f"{_PREFIX}{option.field}", option.word], is_flag=True, default=None, callback=refuse
    )


def typed_config(context: click.Context, params: Iterable[click.Option]) -> dict[str, Any]:
    """What was typed, by field; it is taken out of the context's own parameters."""
    found = {}
    for param in params:
        name = str(param.name)
        source = context.get_parameter_source(name)
        value = context.params.pop(name, None)
        if source is click.core.ParameterSource.COMMANDLINE and value is not None:
            found[name.removeprefix(_PREFIX)] = value
    return found


def field_of(param: click.Parameter) -> str:
    """The field that a parameter stands for."""
    return str(param.name).removeprefix(_PREFIX)
