"""What every command is made of: errors that speak of options, and a method's own options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click
import typer
from typer.core import TyperCommand
from typer.models import CommandFunctionType

from capemix.cli.errors import speak_of_options
from capemix.cli.method_options import FieldOption, MethodOptions, field_of, typed_config
from capemix.cli.moved import check_moved
from capemix.cli.options.groups import MORE
from capemix.cli.renamed import note, old_name, with_new_names
from capemix.cli.settings import words_of_file
from capemix.errors import InputError, StoppedError

if TYPE_CHECKING:
    from capemix.facts import Facts
    from capemix.methods import Method

_ASKED: Final = "capemix.method"
_OPTIONS: Final = "capemix.method options"
_SHOWN: Final = "capemix.methods shown in help"
_EVERYTHING: Final = "capemix.everything is shown"
_HELP_ALL: Final = "--help-all"
_QUIET: Final = "capemix.quiet"


class Command(TyperCommand):
    """A command of capemix: what the library says of a field, it says of an option."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(_quiet())

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if not (extra.get("resilient_parsing") or (parent and parent.resilient_parsing)):
            path = [*(parent.command_path.split() if parent else ()), info_name or ""]
            more = isinstance(self, MethodCommand)
            args = [*words_of_file(path, self.params, args, more=more), *args]
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        unheard = ctx.meta.get(_QUIET) and not ctx.params.get("json")
        try:
            with redirect_stdout(StringIO()) if unheard else nullcontext():
                return super().invoke(ctx)
        except InputError as error:
            speak_of_options(error, self.words_of_fields(ctx))
            raise
        except (KeyboardInterrupt, click.Abort) as error:
            if isinstance(error.__context__, EOFError):  # a question that nobody is there to answer
                raise
            raise StoppedError("stopped.") from None

    def words_of_fields(self, ctx: click.Context) -> dict[str, str]:
        """What is typed for a field of the library, by its name."""
        return {field_of(param): _typed(param, ctx) for param in self.params}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.write_groups(ctx, formatter, None)

    def write_groups(
        self,
        ctx: click.Context,
        formatter: click.HelpFormatter,
        shown: tuple[str | None, ...] | None,
    ) -> None:
        """The command's own options: those of the groups that are ``shown``, or of all."""
        groups: dict[str | None, list[tuple[str, str]]] = {}
        for param in Command.get_params(self, ctx):
            record = param.get_help_record(ctx)
            if record is not None and record[1]:  # arguments are the command's text to explain
                said = record[0], record[1].replace("\\[", "[")  # as rich would want it
                group = getattr(param, "rich_help_panel", None)
                groups.setdefault(group, []).append(said)
        for name, records in groups.items():
            if shown is None or name in shown:
                with formatter.section(name or "Options"):
                    formatter.write_dl(records)


def is_quiet() -> bool:
    """Whether the command that runs says nothing of how far it is."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_QUIET))


def _quiet() -> click.Option:
    def keep(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
        ctx.meta[_QUIET] = ctx.meta.get(_QUIET, False) or asked

    found = click.Option(
        ["--quiet"],
        is_flag=True,
        expose_value=False,
        callback=keep,
        help="Print nothing but errors, and what --json asks for.",
    )
    found.rich_help_panel = MORE  # type: ignore[attr-defined]
    return found


def _typed(param: click.Parameter, ctx: click.Context) -> str:
    if param.param_type_name == "argument":
        return param.make_metavar(ctx).strip("[]")
    return max(param.opts, key=len)


class Commands(typer.Typer):
    """Commands, or a group of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(no_args_is_help=True, rich_markup_mode=None, **settings)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        return super().command(name, cls=cls or Command, **settings)


@dataclass(frozen=True)
class MethodAsked:
    """Which method is asked for, and what was typed of its config.

    ``names`` are those that it may be, by what was typed: the rows decide between them, and between
    all methods where there are none. ``old`` is the name of a synthesizer of former times.
    """

    names: tuple[str, ...] = ()
    typed: dict[str, Any] = field(default_factory=dict)
    old: str | None = None

    def method(
        self,
        facts: Facts,
        *,
        scheme: str = "central",
        form: str = "joint",
        measured: bool = True,
        **known: Any,
    ) -> Method:
        """The config for these rows, of which ranges that are not declared will be ``measured``.
        ``known`` are fields with what is known of the data, for a method that has them and where
        nothing was typed."""
        from capemix.methods import method_named

        name = self._name(facts, measured)
        options = {each.field: each for each in MethodOptions({name: method_named(name)}).each()}
        config = {
            part: options[part].read(value)
            for part, value in known.items()
            if part in options and value is not None
        }
        renamed = {} if self.old is None else old_name(self.old).config
        for part, value in (renamed | self.typed).items():
            if part not in options:
                raise _meaningless(part, value, name)
            config[part] = options[part].read(value)
        if self.old is not None:
            note(f"--synthesizer {self.old}", f"--method {name}{old_name(self.old).words}")
        return method_named(name).usual(scheme=scheme, form=form, **config)

    def _name(self, facts: Facts, measured: bool) -> str:
        from capemix.api import usual_method

        if len(self.names) == 1:
            return self.names[0]
        usual = usual_method(facts, measured=measured)
        return usual if not self.names or usual in self.names else self.names[0]


def _meaningless(part: str, value: Any, name: str) -> InputError:
    from capemix.methods import methods

    word = f"--{part.replace('_', '-')}"
    having = MethodOptions(methods()).having(word)
    return InputError(
        word,
        f"is no option of {name}, the method for such rows",
        value=value,
        fix=f"leave it out, or say --method {' or '.join(having)}",
    )


def method_asked(context: typer.Context) -> MethodAsked:
    """What the command line says of the method."""
    found: MethodAsked = context.meta[_ASKED]
    return found


class MethodCommand(Command):
    """A command with options of its own, and those that come from a method's config.

    Which these are is known before anything is parsed: the method is named, or by ``usual`` of the
    command; or else every method's options are taken, and the rows decide. Nothing of a method is
    imported where no word needs it.
    """

    usual: ClassVar[str | None] = None
    shown: ClassVar[tuple[str | None, ...]] = (None,)
    """The groups of options that most people need; None is that of no name."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(_help_all())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = with_new_names(args)
        asked, everything = self._asked(args), _HELP_ALL in args
        named = _typed_value(args, "--method", "--synthesizer") is not None
        own = {word for param in self.params for word in (*param.opts, *param.secondary_opts)}
        own |= {"--", *self.get_help_option_names(ctx)}
        typed = {word.partition("=")[0] for word in args if word.startswith("--")}
        every, params = MethodOptions({}), []
        if everything or named or not typed <= own:
            every = _every_method()
            _check_names(asked.names, every)
            chosen = every.of(asked.names or every.by_method)
            params = chosen.params(own)
            ctx.meta[_SHOWN] = every if everything else chosen if named else None
        ctx.meta[_OPTIONS], ctx.meta[_EVERYTHING] = params, everything
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._explained(error, asked, every, ctx) from None
        ctx.meta[_ASKED] = MethodAsked(asked.names, typed_config(ctx, params), asked.old)
        return rest

    def _asked(self, args: Sequence[str]) -> MethodAsked:
        method = _typed_value(args, "--method")
        old = _typed_value(args, "--synthesizer")
        if method is not None and old is not None:
            raise InputError(
                "--synthesizer", "is the old name of --method", value=old, fix="leave it out"
            )
        if old is not None:
            return MethodAsked(old_name(old).methods, old=old)
        if method is not None:
            check_moved(method)
        name = method or self.usual
        return MethodAsked(() if name is None else (name,))

    def _explained(
        self,
        error: click.NoSuchOption,
        asked: MethodAsked,
        every: MethodOptions,
        ctx: click.Context,
    ) -> click.NoSuchOption:
        """An option of another method says whose it is."""
        having = every.having(error.option_name)
        if not having:
            return error
        of, whose = " or ".join(asked.names), " and ".join(having)
        return click.NoSuchOption(
            error.option_name,
            f"{error.option_name} is no option of the method {of}; it is one of {whose}.",
            ctx=ctx,
        )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *ctx.meta.get(_OPTIONS, ())]

    def every_option(self) -> list[click.Parameter]:
        """Its own options, and those of every method that is known."""
        own = [word for param in self.params for word in param.opts]
        return [*self.params, *_every_method().params(own)]

    def words_of_fields(self, ctx: click.Context) -> dict[str, str]:
        found = {field_of(param): _typed(param, ctx) for param in self.every_option()}
        if ctx.params.get("file") is not None:
            found["data"] = found["file"]
        return found

    # -- help ----------------------------------------------------------------------------------

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The few that most people need; the others in groups, where they are asked for."""
        self.write_groups(ctx, formatter, None if ctx.meta.get(_EVERYTHING) else self.shown)
        shown: MethodOptions = ctx.meta.get(_SHOWN) or MethodOptions({})
        for method, options in shown.by_method.items():
            _write_method(ctx, formatter, method, options)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text(
            f"More: `{ctx.command_path} --method NAME --help` adds the options of a method (see"
            f" `capemix methods`), and `{ctx.command_path} {_HELP_ALL}` shows every option."
        )


def _help_all() -> click.Option:
    def show(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
        if asked and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        [_HELP_ALL],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show every option, in groups.",
    )


def _write_method(
    ctx: click.Context,
    formatter: click.HelpFormatter,
    method: str,
    options: Sequence[FieldOption],
) -> None:
    for group in dict.fromkeys(each.group for each in options):
        said = "" if group is None else f" ({group})"
        records = [each.option().get_help_record(ctx) for each in options if each.group == group]
        with formatter.section(f"Options of {method}{said}"):
            formatter.write_dl([record for record in records if record is not None])


def _every_method() -> MethodOptions:
    from capemix.methods import methods

    return MethodOptions(methods())


def _check_names(names: Sequence[str], every: MethodOptions) -> None:
    for name in names:
        if name not in every.by_method:
            raise InputError(
                "--method",
                "is unknown",
                value=name,
                fix=f"use one of {', '.join(every.by_method)}",
            )


def _typed_value(args: Sequence[str], *options: str) -> str | None:
    """The last value that was typed for one of these options."""
    found = None
    for at, word in enumerate(args):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name in options:
            found = value if equals else args[at + 1] if at + 1 < len(args) else None
    return found
