"""`capemix synth`: rows in, a release with its guarantee out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from capemix.cli import options as opt
from capemix.cli.command import method_asked
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data import LabeledRows, UnlistedRows
    from capemix.facts import Facts
    from capemix.plan import Plan

Normalise = Annotated[
    opt.NormaliseName | None,
    typer.Option(
        help="public, or site-zscore as the paper has it, which no sound guarantee covers"
        " [default: site-zscore with --accountant paper, else public].",
        show_default=False,
        rich_help_panel=opt.PAPER,
    ),
]


@opt.with_options(
    opt.DataOptions,
    opt.People,
    opt.MethodName,
    opt.DeclaredFacts,
    opt.Counted,
    opt.Adversary,
    opt.Dealing,
    opt.PaperModes,
    opt.Signed,
)
def synth(
    data: opt.DataOptions,
    people: opt.People,
    _named: opt.MethodName,
    declared: opt.DeclaredFacts,
    counted: opt.Counted,
    adversary: opt.Adversary,
    dealing: opt.Dealing,
    paper: opt.PaperModes,
    signed: opt.Signed,
    context: typer.Context,
    epsilon: opt.Epsilon,
    out: opt.Out,
    delta: opt.Delta = 1e-5,
    scheme: opt.Scheme = None,
    sites: opt.Sites = None,
    normalise: Normalise = None,
    csv: Annotated[bool, typer.Option("--csv", help="Write synthetic.csv, too.")] = False,
    json: opt.Json = False,
) -> None:
    """Make synthetic rows of a file, and say what is promised of them.

    FILE is a .csv, .tsv, .txt, .parquet or .npz file; or digits, mnist or fashion-mnist. What is
    not declared (classes, ranges) is measured, and paid for out of the budget.
    """
    from capemix import documents
    from capemix.cli.progress import ToldEngine, spinner, told
    from capemix.cli.show import account_of, print_json, print_release, print_signer
    from capemix.plan import make_plan
    from capemix.randomness.source import SeededSource, SystemSource
    from capemix.release import check_output
    from capemix.run import run

    check_epsilon(epsilon)  # before any row is read
    check_output(out)
    scheme = scheme or ("central" if sites is None else "cape")
    opened = data.open(declared, dealing, people)
    facts = facts_of(opened, declared, people, normalise)
    known: dict[str, Any] = {} if opened.info is None else {"deskew": opened.info.handwriting}
    nothing = math.isinf(epsilon)
    method = method_asked(context).method(
        facts, scheme=scheme, form=paper.form, measured=not nothing, **known
    )
    free = nothing or method.claimed
    if free:  # nothing is promised of any row, and so nothing is paid for
        opened = opened.as_they_come()
        facts = facts_of(opened, declared, people, normalise)
    parts: list[LabeledRows] | None = None
    if scheme != "central":
        parts = dealing.deal(opened, sites, data.test_seed)
    if free:
        by_site = normalise is None and declared.public_range is None and facts.table is None
        facts = _unpaid(facts, parts or [opened.declared()[0]], z_scores=method.claimed and by_site)
    lineage = counted.account(known=opened.info is not None, ask=not json)
    seed = data.test_seed
    rows: UnlistedRows | list[LabeledRows] | LabeledRows = opened.whole if parts is None else parts
    with spinner("calibrating", quiet=json):
        plan = make_plan(
            facts,
            method,
            delta=delta,
            epsilon=epsilon,
            scheme=scheme,
            sites=len(parts) if parts is not None else 1 if sites is None else sites,
            **adversary.who(),
            **paper.who(),
        )
    identity, new_key = signed.identity()  # before anything is paid for
    source = SystemSource() if seed is None else SeededSource(seed)
    with opt.saying_what_was_charged(lineage) as account, told("", quiet=json) as line:
        release = run(plan, ToldEngine(rows, source, line), account)
        line.begin("writing the release")
        folder = release.save(out, csv=csv, identity=identity)
    made = cast("Plan", release.plan)
    if json:
        said: dict[str, Any] = {"warnings": list(release.warnings), "out": str(folder)}
        said["signer"] = None if identity is None else documents.as_json(identity.member)
        print_json({**account_of(made, release.guarantee), **said})
    else:
        print_release(release, folder, made)
        print_signer(None if identity is None else identity.member, new=new_key)


def check_epsilon(epsilon: float) -> None:
    """A budget is a number above 0."""
    if math.isnan(epsilon) or epsilon <= 0:
        raise InputError("epsilon", "must be above 0", value=epsilon, fix="give a budget, or inf")


def facts_of(
    opened: opt.Opened,
    declared: opt.DeclaredFacts,
    people: opt.People,
    normalise: opt.NormaliseName | None = None,
) -> Facts:
    """What is public of the rows: declared, known of a dataset, or said by a schema."""
    from capemix.facts import Facts
    from capemix.sums.steps import SiteZScore

    sizes, most = declared.sizes(opened.classes, opened.info), people.rows_per_person
    if normalise != "site-zscore":
        how = declared.public_map(opened.info)
        return Facts.of(opened.whole, class_sizes=sizes, normalise=how, rows_per_person=most)
    for field in ("public_range", "public_center"):
        if getattr(declared, field) is not None:
            raise InputError(
                field,
                "has no meaning for --normalise site-zscore",
                value=getattr(declared, field),
                fix="leave it out, or use --normalise public",
            )
    z_scores = SiteZScore()
    return Facts.of(opened.whole, class_sizes=sizes, normalise=z_scores, rows_per_person=most)


def _unpaid(facts: Facts, sites: list[LabeledRows], *, z_scores: bool) -> Facts:
    """Where nothing is promised, rows are taken as they stand, or by each site's own z-scores, as
    the paper has it."""
    from capemix.api import as_they_stand
    from capemix.sums.steps import SiteZScore

    return as_they_stand(replace(facts, normalise=SiteZScore()) if z_scores else facts, sites)
