"""`capemix verify`, `capemix certificate`, `capemix key`: whether a release is what it says."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from capemix.cli import options as opt
from capemix.errors import InputError

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A release.")]
Key = Annotated[
    str | None,
    typer.Option(
        metavar="FILE or FINGERPRINT",
        help="Whose signature it must have: the signer's NAME.json or fingerprint; of a federation"
        " the roster.json or its digest, for the sites' keys, too.",
        show_default=False,
    ),
]


def verify(folder: Folder, key: Key = None, json: opt.Json = False) -> None:
    """Check a release: its files, its signatures, and that its guarantee follows from its plan.

    Exits with 0 if all of it holds, 1 if something does not, 2 if the folder cannot be looked at,
    and 3 if nothing is wrong but not all could be checked: it is not signed, say, or no --key was
    given.
    """
    from capemix import documents
    from capemix.cli.show import print_json
    from capemix.errors import printable
    from capemix.verify import Trusted
    from capemix.verify import verify as look

    verdict = look(folder, None if key is None else Trusted.of(key))
    if json:
        said = {"holds": verdict.exit_code == 0, "exit_code": verdict.exit_code}
        print_json({**said, "findings": documents.as_json(list(verdict.findings))})
    else:
        for each in verdict.findings:
            print(printable(f"{each.outcome + ':':14}{each.about}: {each.says}"))
        print(_SUMMARY[verdict.exit_code])
    raise typer.Exit(verdict.exit_code)


_SUMMARY = {
    0: "All of it holds. That the signer ran capemix as it is, and that what is declared is public,"
    " is the signer's word.",
    1: "Something does not hold: do not use this release.",
    3: "Nothing is wrong, but not all of it could be checked.",
}


def certificate(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="A new .html file, outside the release.")],
    key: Key = None,
) -> None:
    """A page to sign and file, of a release that was checked: what is promised, how it was made,
    what held. A browser prints it on one sheet, or as PDF."""
    from capemix.certificate import certificate as page
    from capemix.release import MANIFEST, outside_releases
    from capemix.verify import Trusted
    from capemix.verify import verify as look

    target = outside_releases(out)
    if target.suffix != ".html" or target.exists():
        problem = "is in use" if target.exists() else "must end in .html"
        raise InputError("--out", problem, value=out, fix="name a new HTML file")
    verdict = look(folder, None if key is None else Trusted.of(key))
    if verdict.manifest is None or verdict.exit_code == 1:
        raise InputError(
            "FOLDER", "does not hold", value=folder, fix="see what with `capemix verify`"
        )
    digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    try:
        made = page(verdict.manifest, verdict, digest)
    except (KeyError, TypeError, ValueError):  # of a plan that nothing could be worked out from
        raise InputError(
            "FOLDER", "has no guarantee to certify", value=folder, fix="get the release again"
        ) from None
    try:
        target.write_text(made, "utf-8")
    except OSError as error:
        raise InputError(
            "--out",
            f"cannot be written: {(error.strerror or 'unknown error').lower()}",
            value=out,
            fix="name a file in a folder that you may write to",
        ) from None
    print(target)


def key(json: opt.Json = False) -> None:
    """The key that your own releases are signed with; made if there is none."""
    from capemix import documents
    from capemix.cli.show import print_json
    from capemix.errors import printable
    from capemix.identity import OWN
    from capemix.ledger import default_path

    identity, new = opt.own_key()
    place = default_path().parent / f"{OWN}.json"
    if json:
        print_json({**documents.as_json(identity.member), "public": str(place), "new": new})
        return
    print(f"{printable(str(identity.member))}")
    print(f"public part, for whoever verifies your releases: {place}")
    print(f"the key itself, for you alone: {place.with_suffix('.key')}")
