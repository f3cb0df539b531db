"""One page on a release, to be read, signed and filed: what is promised, how it came to be, and
what a check of the folder found. It prints on one sheet."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, Final

from capemix.guarantee import Status
from capemix.identity import in_groups
from capemix.manifest import Manifest
from capemix.queries import Relation
from capemix.verify import Verdict

_STYLE: Final = """
@page { size: A4; margin: 12mm 15mm }
:root { color-scheme: light }
body { font: 9.5pt/1.35 system-ui, sans-serif; color: #111; background: #fff;
  max-width: 180mm; margin: 0 auto; padding: 8mm 4mm }
@media print { body { padding: 0 } }
h1 { font-size: 15pt; margin: 0 0 1mm }
h2 { font-size: 10.5pt; margin: 3.5mm 0 1mm; border-bottom: 1px solid #999 }
p { margin: 1mm 0 }
table { border-collapse: collapse; width: 100% }
th { text-align: left; font-weight: 600; width: 36mm }
th, td { vertical-align: top; padding: .3mm 2mm .3mm 0; overflow-wrap: anywhere }
ul { margin: 0; padding-left: 4.5mm; font-size: 8pt; line-height: 1.25 }
.promise { font-size: 12pt; margin: 2mm 0 }
.sign { display: grid; grid-template-columns: 1fr 1fr; gap: 8mm; margin-top: 3mm;
  break-inside: avoid }
.sign div { border-top: 1px solid #111; margin-top: 9mm; padding-top: .5mm; font-size: 8pt }
"""

_CHANGE: Final = {
    Relation.ADD_REMOVE: "{} is added or left out",
    Relation.REPLACE_ONE: "{} is replaced by another",
}


def certificate(manifest: Manifest, verdict: Verdict, sha256: str) -> str:
    """The page, as HTML that needs nothing else. ``sha256`` is the manifest's."""
    promise: Any = manifest.guarantee
    epsilon, label, how = promise["epsilon"], manifest.facts.label, manifest.how_made
    unit = str(promise.get("unit", "one record"))
    change = _CHANGE[Relation(promise["relation"])].format(unit)
    words = "no bound" if epsilon is None else f"epsilon {epsilon:.4g}, delta {promise['delta']:g}"
    by = "nobody" if manifest.signer is None else manifest.signer.name
    made = [
        ("Rows", f"{manifest.rows:,} synthetic rows of {len(manifest.facts.features)} columns"
         + ("" if label is None else f" and the label {label}")),
        ("Status", promise["status"]),
        ("Against", _against(promise)),
        ("Made on", None if how is None else how.date or "no day: by a test seed"),
        ("Counted", None if how is None else _counted(manifest)),
        ("Schema", None if how is None else how.schema),
        ("The curator saw", None if how is None else how.curator_saw),
        ("Signed by", by),
        ("Fingerprint", None if manifest.signer is None else in_groups(manifest.signer.identity)),
        ("Manifest", f"SHA-256 {in_groups(sha256)}"),
    ]  # fmt: skip
    checks = [(each.about, f"{each.outcome}: {each.says}") for each in verdict.findings]
    caution = "" if promise["status"] == Status.GUARANTEE else " Only the status guarantee is one."
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy"'
            " content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Certificate of a release</title><style>{_STYLE}</style></head><body><main>",
            "<h1>Certificate of a differentially private release</h1>",
            f'<p class="promise"><strong>{escape(words)}</strong> when {escape(change)}</p>',
            "<p>Whatever anyone learns from the release, they would have learned almost the same if"
            f" {escape(unit)}, whichever it is, had not been as it is.{caution}</p>",
            "<h2>What it is</h2>",
            _table(made),
            "<h2>What a check of the folder found</h2>",
            _table(checks),
            "<h2>What the promise rests on</h2>",
            _list(map(str, promise["assumptions"])),
            f"<p>{len(manifest.warnings)} warnings of the release are in its manifest.</p>",
            "<h2>Approved</h2>",
            '<div class="sign"><div>Owner of the data: name, date, signature</div>',
            "<div>Privacy officer: name, date, signature</div></div>",
            "</main></body></html>",
            "",
        )
    )


def _against(promise: Any) -> str:
    who = promise["adversary"]
    if who["sites"] < 2:
        return "anyone who has the release"
    return (
        f"anyone who has the release; the server with {who['colluding']} of {who['sites']} sites,"
        f" {who['dropouts']} missing"
    )


def _counted(manifest: Manifest) -> str:
    how = manifest.how_made
    assert how is not None
    if how.lineage is None:
        return how.counted
    return f"{how.counted}, as {how.lineage}, head {', '.join(how.ledger_heads)}"


def _table(rows: Iterable[tuple[str, object]]) -> str:
    cells = (
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(said))}</td></tr>'
        for name, said in rows
        if said is not None
    )
    return f"<table>{''.join(cells)}</table>"


def _list(said: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in said)}</ul>"
