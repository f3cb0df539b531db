"""`capemix report`: the report of a release, made again of its folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capemix.cli import options as opt
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.manifest import Manifest


def report(
    release: Annotated[Path, typer.Argument(help="A release folder.")],
    out: Annotated[Path, typer.Option(help="A new .html file, outside the release.")],
    json: opt.Json = False,
) -> None:
    """Make the report of a release again, of its folder alone: the same bytes by the same versions.
    It reads no records, so it costs nothing."""
    from capemix.cli.show import print_json
    from capemix.pages import REPORT
    from capemix.release import read_release

    target = new_page(out, "--out")
    manifest = read_release(release).manifest
    made = _made(release, manifest)
    write_page(target, made, "--out")
    own = release / REPORT
    same = own.is_file() and own.read_bytes() == made.encode()
    if json:
        print_json({"out": str(target), "same": same})
        return
    typer.echo(str(target))
    if not own.is_file():
        typer.echo(f"The release has no {REPORT} of its own.")
    elif same:
        typer.echo(f"The release's own {REPORT} is the same, byte for byte.")
    else:
        made_with = manifest.versions.get("capemix", "another version")
        typer.echo(
            f"The release's own {REPORT} is another: made by capemix {made_with}, or changed."
        )


def _made(release: Path, manifest: Manifest) -> str:
    """A folder that somebody sent may have figures of a wrong kind under right digests."""
    from pyarrow import ArrowException

    from capemix.pages import report_of

    try:
        return report_of(release, manifest)
    except (ArrowException, ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
        raise InputError(
            "release",
            "has figures that no report can be made of",
            value=release,
            fix="get the release again",
        ) from error


def new_page(file: Path, option: str) -> Path:
    """A file for a page, if it can be written: outside any release, and new."""
    from capemix.release import outside_releases

    target = outside_releases(file, option)
    if target.suffix != ".html":
        raise InputError(option, "must end in .html", value=file, fix="name an HTML file")
    if target.exists() or not target.parent.is_dir():
        raise InputError(
            option,
            "is in use" if target.exists() else "lies in no folder that there is",
            value=file,
            fix="name a new file in a folder that exists",
        )
    return target


def write_page(target: Path, made: str, option: str) -> None:
    """Whole, or not at all as far as is known."""
    try:
        target.write_text(made, "utf-8")
    except OSError as error:
        raise InputError(
            option,
            f"cannot be written: {error.strerror}",
            value=target,
            fix="name a file in a folder that you may write to",
        ) from error
