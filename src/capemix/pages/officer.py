"""The first part of a report: what is promised, to whom, and on what it rests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from capemix.pages import charts
from capemix.pages.html import Html, Part, bullets, details, join, section, table, tag
from capemix.pages.nist import answers
from capemix.pages.told import Told, number, odds
from capemix.sums.steps import Coverage

_MOST_SHOWN: Final = 40
"""Columns whose declarations are open to the eye, and printed."""

_LONGEST: Final = 1_000

_BEFORE: Final = (0.01, 0.1, 0.5)

_DECISIONS: Final = ("approved", "approved with conditions", "refused")

_COVERED: Final = {
    Coverage.PUBLIC: "by what is declared public",
    Coverage.PER_ROW: "of each record by itself",
    Coverage.PAID: "paid for out of the budget",
    Coverage.NOT_COVERED: "NOT covered by the guarantee",
}


def status(told: Told) -> Html:
    """What kind of statement this is, before anything else."""
    if told.holds:
        said = join(
            [
                tag("strong", "Status: guarantee. "),
                "What follows is proved, under the assumptions that are listed.",
            ]
        )
        return tag("p", said, class_="status")
    said = join(
        [
            tag("strong", f"Status: {told.status}. "),
            "This is not a guarantee. Do not publish this as a private release.",
        ]
    )
    return tag("p", said, class_="status bad", role="note")


def cards(told: Told) -> Html:
    """The figures that everything else explains."""
    epsilon = "infinite" if told.epsilon is None else number(told.epsilon)
    figures = {
        "epsilon": epsilon,
        "delta": number(told.delta),
        "unit of privacy": told.unit,
        "method": told.method,
        "synthetic rows": f"{told.json['rows']:,}",
        "columns": f"{len(told.facts.features) + (told.facts.label is not None):,}",
    }
    if told.sites > 1:
        figures["sites"] = f"{told.sites}, of which {told.colluding} may collude"
    for name, part in (("made on", "date"), ("data, as the ledger calls it", "lineage")):
        if told.how_made.get(part):
            figures[name] = str(told.how_made[part])
    pairs = (tag("div", tag("dt", name), tag("dd", value)) for name, value in figures.items())
    return tag("dl", *pairs, class_="cards")


def sections(told: Told) -> Iterator[tuple[str, str, Html]]:
    """Keys, titles and sections, in order."""
    made = (
        ("guarantee", "The guarantee", _guarantee(told)),
        ("seen", "Who could see what", _seen(told)),
        ("budget", "What the budget was spent on", _budget(told)),
        ("rests", "What it rests on", _rests(told)),
        ("limits", "What is not covered", _limits(told)),
        ("nist", "Answers to NIST SP 800-226", _nist(told)),
        ("verify", "How to verify this folder", _verify(told)),
        ("decision", "Decision", _decision(told)),
    )
    for key, title, parts in made:
        yield key, title, section(3, title, *parts, key=key)


def _guarantee(told: Told) -> Iterator[Part]:
    if told.epsilon is None:
        yield tag("p", "No noise was added, or too little for any bound: nothing is promised.")
        return
    factor = number(math.exp(min(told.epsilon, 700.0)))
    would = "" if told.holds else "If the status were that of a guarantee, it would say: "
    yield tag(
        "p",
        f"{would}Whatever anyone learns from this release, they would have learned almost the same"
        f" if {told.unit} {told.undone}, whichever it is. Almost means: no outcome becomes more"
        f" than {factor} times (e to the power of epsilon) as likely or as unlikely, but for a"
        f" probability of {number(told.delta)} (delta), which is 1 in {1 / told.delta:,.0f}.",
    )
    yield tag(
        "p",
        f"In figures: epsilon is {number(told.epsilon)} and delta is {number(told.delta)}, when"
        f" {told.change}, against the strongest observer that was planned for. The unit of privacy"
        f" is {told.unit}.",
    )
    rows = [(f"{before:.0%}", _sure(odds(before, told.epsilon))) for before in _BEFORE]
    yield table(
        "How sure somebody can become of one fact about the unit of privacy, who already knows all"
        " other data. The bound may fail with probability delta.",
        ("before the release, they gave it", "afterwards, at most"),
        rows,
        numbers=(0, 1),
    )


def _seen(told: Told) -> Iterator[Part]:
    def cost(view: str) -> tuple[str, str]:
        found = told.guarantee["views"].get(view)
        if found is None:
            return "-", "-"
        return number(found["noise_multiplier"]), number(found["epsilon"])

    rows: list[tuple[Part, ...]] = [
        (
            "the public",
            "synthetic rows, noisy statistics, the manifest and this report",
            *cost("public"),
        )
    ]
    if told.sites < 2:
        rows.append(
            ("the curator", "every record: the curator is trusted, and ran the program", "-", "-")
        )
    else:
        if told.one_process:
            rows.append(("whoever ran it", "every record: all sites ran in one process", "-", "-"))
        masked = told.scheme == "cape"
        sums = "sums under masks, and the total" if masked else "each site's noisy sums"
        server, others = cost("server"), "the same, and what these sites hold and drew"
        rows.append(("the server", f"{sums}; no record", *server))
        rows.append(
            (f"the server with {told.colluding} colluding of {told.sites} sites", others, *server)
        )
        rows.append(("a site", "its own records, and what is public", "-", "-"))
    yield table(
        "Observers, what they see, and what is promised against each. Noise is the deviation of"
        " the noise over all sums, as a multiple of the most that the unit of privacy can change"
        " them.",
        ("who", "sees", "noise", "epsilon"),
        rows,
        numbers=(2, 3),
    )
    if told.sites > 1:
        honest = told.sites - told.colluding - told.missing
        yield tag(
            "p",
            f"The bound of the server holds with up to {told.colluding} of {told.sites} sites"
            f" colluding and up to {told.missing} missing.",
        )
        if told.scheme == "cape":
            price = number(told.sites / honest)
            yield tag(
                "p",
                f"The price of trusting nobody: the noise has {price} times the variance that one"
                " trusted curator would need.",
            )


def _budget(told: Told) -> Iterator[Part]:
    lines = told.json["budget"]
    if not lines:
        yield tag("p", "The plan has no lines of a budget.")
        return
    parts = [float(line["share"]) for line in lines]
    listed = "; ".join(
        f"{at}, {line['line']}: {charts.percent(part)}"
        for at, (line, part) in enumerate(zip(lines, parts, strict=True), 1)
    )
    yield charts.stacked(parts, f"The budget by line: {listed}")
    rows = [
        (
            f"{at}. {line['line']}",
            line["reads"],
            charts.percent(part),
            number(line["epsilon_alone"]),
            number(line["epsilon_composed"]),
        )
        for at, (line, part) in enumerate(zip(lines, parts, strict=True), 1)
    ]
    yield table(
        "Each sum of the release, its share of the budget, and its epsilon: by itself, and together"
        " with the lines above it.",
        ("sum", "reads", "share", "alone", "so far"),
        rows,
        numbers=(2, 3, 4),
    )
    if told.facts.unpaid:
        unpaid = ", ".join(told.facts.unpaid)
        yield tag("p", f"Read from the rows without paying: {unpaid}.", class_="warn")


def _rests(told: Told) -> Iterator[Part]:
    yield bullets(_sentence(each) for each in told.guarantee["assumptions"])
    yield table(
        "What is done to a record before it is added up",
        ("step", "what is done", "covered"),
        [
            (each["name"], each["says"], _COVERED.get(each["coverage"], each["coverage"]))
            for each in told.json["steps"]
        ],
    )
    schema = told.facts.table
    if schema is not None:
        named = schema.columns if schema.label is None else (*schema.columns, schema.label)
        words = [(each.name, _cut(str(each))) for each in named]
        said = "The schema: what was declared public of each column"
        shown = table(said, ("column", "declared"), words)
        yield shown if len(words) <= _MOST_SHOWN else details(said, shown)


def _limits(told: Told) -> Iterator[Part]:
    limits = [
        "What is true of groups. If smokers in the data fall ill, the release shows it: that is its"
        " purpose.",
        "Likeness. A synthetic row may look like somebody. The promise is that this does not"
        " depend on that person's own data.",
        f"More than {told.unit}. For k of them that belong together epsilon is k times as large,"
        " and delta grows faster.",
        "Other releases of the same data. Their epsilons add up; a ledger counts them.",
        "A weakness in the operating system's randomness, and whoever can read the memory of the"
        " machine while the release is made.",
        "Conclusions from how long something took, or from a refusal that was made known.",
        "Whether the data are true, fair or fit for a purpose. That is for their users to judge.",
    ]
    if told.sites > 1:
        limits.append("A site that does not add its noise as told.")
    yield bullets(limits)
    for said in told.json["warnings"]:
        yield tag("p", tag("strong", "Warning. "), _sentence(said), class_="warn")


def _nist(told: Told) -> Iterator[Part]:
    yield tag(
        "p",
        "NIST SP 800-226 lists what to ask of a claim of differential privacy. Here is each point"
        " in our words, with the answer for this release.",
    )
    pairs = (each for point, said in answers(told) for each in (tag("dt", point), tag("dd", said)))
    yield tag("dl", *pairs, class_="points")


def _verify(told: Told) -> Iterator[Part]:
    signed = (
        f"The manifest names {told.signer} as its signer. Compare this key with the one that you"
        " have from them by another way."
        if told.signer
        else "The manifest names no signer: digests show whether files were changed after it was"
        " written, and nothing shows who wrote it."
    )
    yield tag("p", "Run this in the folder that holds the release's folder:")
    yield tag("pre", tag("code", "capemix verify FOLDER"), tabindex=0)
    yield tag(
        "p",
        "It compares every file with the manifest's digests, looks for a signature, and works out"
        " the printed guarantee from the plan anew. ",
        signed,
    )
    yield tag("p", "This page is made of the folder alone. To make it again, byte for byte:")
    yield tag("pre", tag("code", "capemix report FOLDER --out again.html"), tabindex=0)
    rows = [(name, digest) for name, digest in told.json["sha256"].items()]
    yield table(
        "SHA-256 of the release's files. That of this page is in manifest.json.",
        ("file", "SHA-256"),
        rows,
        key="digests",
    )
    versions = ", ".join(f"{name} {each}" for name, each in told.json["versions"].items())
    yield tag("p", f"Made with {versions}.", class_="soft")


def _decision(told: Told) -> Iterator[Part]:
    epsilon = "infinite" if told.epsilon is None else number(told.epsilon)
    yield tag(
        "p",
        f"On the release with epsilon {epsilon}, delta {number(told.delta)}, status"
        f" “{told.status}”, whose synthetic.parquet has the SHA-256",
    )
    digest = told.json["sha256"].get("synthetic.parquet", "")
    yield tag("p", tag("code", digest))
    boxes = tag(
        "div",
        tag("dt", "Decision"),
        tag("dd", *(tag("span", f"☐ {each}") for each in _DECISIONS)),
        class_="boxes",
    )
    blanks = ("Conditions", "Name and role", "Place and date", "Signature")
    yield tag(
        "dl", boxes, *(tag("div", tag("dt", each), tag("dd")) for each in blanks), class_="sign"
    )


def _cut(said: str) -> str:
    if len(said) <= _LONGEST:
        return said
    return f"{said[:_LONGEST]}… (manifest.json has all of it)"


def _sure(part: float) -> str:
    return f"{100 * part:.3g}%" if part < 0.9995 else "almost 100%"


def _sentence(said: str) -> str:
    return f"{said[:1].upper()}{said[1:]}{'' if said.endswith('.') else '.'}"
