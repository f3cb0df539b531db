"""`capemix verify`, `capemix key`: what a release's folder says of itself, held against itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capemix.cli import options as opt

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
