"""The points that NIST SP 800-226 asks of a claim of differential privacy, and a release's answers
by its manifest. The points are in our own words."""

from __future__ import annotations

from collections.abc import Iterator

from capemix.guarantee import Status
from capemix.pages.told import Told, number
from capemix.queries import Relation
from capemix.sums.steps import PublicMap


def answers(told: Told) -> Iterator[tuple[str, str]]:
    """Each point with its answer."""
    yield "Parameters: epsilon and delta", _parameters(told)
    yield "Unit of privacy", _unit(told)
    yield "Definition, and what neighbouring data are", _definition(told)
    yield "Trust model", _trust(told)
    yield "Mechanism", _mechanism(told)
    yield "Correctness of the implementation", _correctness(told)
    yield "Bounding what one contributes", _bounding(told)
    yield "Composition within the release", _within()
    yield "Composition over releases", _over(told)
    yield "What is declared instead of measured", _declared(told)
    yield "Utility", _utility(told)
    yield "Bias", _bias()
    yield "Side channels", _side_channels()
    yield "Security and access control", _security(told)
    yield "Exposure of the collected data", _exposure(told)
    yield "Post-processing", _after()


def _parameters(told: Told) -> str:
    if told.epsilon is None:
        return "Epsilon is infinite: nothing is promised."
    size = (
        "This is in the range in which a bound says much about each single record"
        if told.epsilon <= 1
        else "This is a weak bound by itself: read the table of the guarantee before you rely on it"
        if told.epsilon > 5
        else "This is a moderate bound: read the table of the guarantee"
    )
    return (
        f"Epsilon {number(told.epsilon)}, delta {number(told.delta)}. {size}. Delta is to be"
        " smaller than one over the number of records; that is for the owner of the records to see."
    )


def _unit(told: Told) -> str:
    if told.unit == "one record":
        return (
            "One record. It is assumed that a person has one record, across all sites; for a person"
            " with k records epsilon is k times as large."
        )
    return f"{told.unit.capitalize()}."


def _definition(told: Told) -> str:
    relation = told.guarantee["relation"]
    stronger = (
        "The number of records is protected, too."
        if relation == Relation.ADD_REMOVE
        else "The number of records is taken to be public."
    )
    return (
        f"Approximate differential privacy. Data are neighbours when {told.change} ({relation})."
        f" {stronger}"
    )


def _trust(told: Told) -> str:
    if told.sites < 2:
        return (
            "The central model: one curator holds all records and is trusted. Whoever sees the"
            " release is not."
        )
    simulated = " Here all sites ran in one process, which saw every record." * told.one_process
    return (
        f"Distributed: {told.sites} sites keep their records and add noise. Neither the server nor"
        f" up to {told.colluding} sites together with it are trusted, and up to {told.missing} may"
        f" be missing.{simulated}"
    )


def _mechanism(told: Told) -> str:
    lines = len(told.json["budget"])
    sums = "one private sum" if lines == 1 else f"{lines} kinds of private sums"
    return (
        f"Gaussian noise on {sums} of bounded parts of records; the rows are made of these by the"
        f" method {told.method}. The accountant is “{told.guarantee['accountant']}”."
    )


def _correctness(told: Told) -> str:
    arithmetic = told.guarantee["arithmetic"]
    exact = (
        "Records are whole numbers when they are added up, so attacks on rounded floating-point"
        " noise do not apply, and what the samplers may be off by is counted in delta."
        if arithmetic.startswith("integer")
        else "It is proved for exact real numbers and computed with rounded ones."
    )
    status = (
        "" if told.holds else f" The status is “{told.status}”, so this release has no guarantee."
    )
    noise = (
        "Noise is from a test seed, which anyone can repeat."
        if told.status == Status.SEEDED
        else "Noise is from AES-256 under keys of the operating system."
    )
    return (
        f"Arithmetic: {arithmetic}. {exact} {noise} The proofs and their tests are in the"
        f" project's documentation; nobody outside the project has certified them.{status}"
    )


def _bounding(told: Told) -> str:
    most = "; ".join(
        f"{line['line']}: {number(line['sensitivity'])}" for line in told.json["budget"]
    )
    return (
        "What a record adds to a sum is shortened to a bound that is checked in whole numbers, and"
        f" each record is treated by itself. The bounds: {most or 'none'}."
    )


def _within() -> str:
    return (
        "All sums share one budget that was fixed beforehand, and are accounted together; the"
        " section on the budget has each line. Nothing else reads a record."
    )


def _over(told: Told) -> str:
    how = told.how_made
    counted = how.get("counted")
    if counted == "in a ledger":
        return (
            f"Counted in a ledger, under the name “{how.get('lineage')}”, before it was made. The"
            " ledger's limit bounds all releases that are counted under this name."
        )
    if counted == "by each site in its own ledger":
        return "Counted by each site, in a ledger of its own, before anything was sent."
    if counted is not None:
        return (
            "This release was counted in no ledger. Whoever releases the same data again must add"
            " the epsilons up."
        )
    return (
        "The manifest does not say whether a ledger counted this release. Ask its maker for the"
        " ledger: epsilons of releases of the same data add up."
    )


def _declared(told: Told) -> str:
    facts = told.facts
    known = ["the names of columns"]
    known += ["the classes"] if facts.label is not None and facts.classes else []
    known += ["each column's range or list"] if facts.table is not None else []
    known += ["the range of all columns"] if isinstance(facts.normalise, PublicMap) else []
    schema = told.how_made.get("schema")
    drafted = any("drafted" in each for each in told.guarantee["assumptions"])
    said = f" The schema was {schema}." if schema and facts.table is not None else ""
    if drafted and not said:
        said = " The schema was drafted from the rows, and their owner confirmed it."
    return (
        f"Taken to be public knowledge, and not paid for: {', '.join(known)}. The section on what"
        f" it rests on lists each step and how it is covered.{said}"
    )


def _utility(told: Told) -> str:
    counts = any(name.startswith("statistics/") for name in told.json["sha256"])
    noisy = (
        "The noisy figures in the folder statistics come with their standard errors, and the second"
        " part of this page shows them beside the rows. "
        if counts
        else ""
    )
    return (
        f"{noisy}What depends on three or more columns at once may be lost in the rows. Accuracy on"
        " real records is not part of this page, since nothing was paid for it."
    )


def _bias() -> str:
    return (
        "Noise is as large for a small group as for a large one, so small groups are told less"
        " well, and a group that cannot be told from noise may be gone from the rows. Values beyond"
        " a declared range, and categories off a declared list, are moved or count as missing."
        " Whatever is unfair in the records is in the release, too."
    )


def _side_channels() -> str:
    return (
        "The manifest and this page hold no time of day, no duration and no count of the input's"
        " records but the noisy one. Cells are read one by one, so that no record decides how"
        " another is read. How long the program runs is not hidden: it is assumed that nobody"
        " measures it."
    )


def _security(told: Told) -> str:
    if told.sites < 2 or told.one_process:
        where = "The process that made the release held every record in memory."
    else:
        where = (
            "Each site's records stayed with the site, under its own access control; what left it"
            " is noisy and masked."
        )
    return f"{where} Nothing of the release needs to be kept secret."


def _exposure(told: Told) -> str:
    return (
        f"The guarantee is about what is released, and not about how {told.unit} came to be"
        " collected, where it is stored and who else has it. That is outside what a release can"
        " show, and is to be judged by itself."
    )


def _after() -> str:
    return (
        "Whatever is computed from the release alone costs nothing more. This page is such a"
        " computation: it read the manifest, the noisy statistics and the synthetic rows."
    )
