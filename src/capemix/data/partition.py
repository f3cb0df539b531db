"""Which row lies at which site."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from capemix.data.rows import LabeledRows
from capemix.errors import InputError

Split = Literal["iid", "stratified", "dirichlet"]

_LEAST_ALPHA, _MOST_ALPHA = 1e-6, 1e6


def partition(
    rows: LabeledRows, sites: int, how: Split, *, alpha: float = 0.1, seed: int
) -> tuple[LabeledRows, ...]:
    """Deal the rows to ``sites`` sites: each row to exactly one, the same for the same seed.

    - ``iid``: at random, sizes differ by at most one.
    - ``stratified``: as ``iid``, and so do the sizes of each class.
    - ``dirichlet``: each class is cut by a Dirichlet(``alpha``) vector over the sites, so a small
      ``alpha`` skews the labels. A site may then miss a class, or have no rows at all.

    Within a site the rows keep their order. Records that are not among the rows go to the first.
    People with several rows are dealt out as wholes, by their first row.
    One record may change where all others go. A sum over sites does not feel that; what each site
    draws a fixed number of rows from does, and then there is no guarantee.
    """
    if how not in get_args(Split):
        raise InputError(
            "partition", "is unknown", value=how, fix=f"choose one of {', '.join(get_args(Split))}"
        )
    if sites < 1:
        raise InputError("sites", "must be at least 1", value=sites, fix="give 1 or more")
    if not _LEAST_ALPHA <= alpha <= _MOST_ALPHA:
        raise InputError(
            "alpha",
            f"must lie between {_LEAST_ALPHA:g} and {_MOST_ALPHA:g}",
            value=alpha,
            fix="give for example 0.1",
        )
    heads, person_of = rows, np.arange(len(rows))
    if rows.persons is not None:
        _, first_rows, person_of = np.unique(rows.persons, return_index=True, return_inverse=True)
        heads = rows.take(first_rows)
    site_of = _assign(heads, sites, how, alpha, seed)[person_of]
    dealt = replace(rows, dealt=sites > 1)
    first, *others = (dealt.take(np.flatnonzero(site_of == site)) for site in range(sites))
    return replace(first, unfit=rows.unfit), *others


def _assign(
    rows: LabeledRows, sites: int, how: Split, alpha: float, seed: int
) -> npt.NDArray[np.int64]:
    """The site of each row."""
    from capemix.randomness.simulation import simulation_generator

    generator = simulation_generator(seed)
    site_of = np.empty(len(rows), dtype=np.int64)
    shuffled = generator.permutation(len(rows))
    if how == "iid":
        site_of[shuffled] = np.arange(len(rows)) % sites
        return site_of
    by_class = shuffled[np.argsort(rows.labels[shuffled], kind="stable")]
    if how == "stratified":
        site_of[by_class] = np.arange(len(rows)) % sites
        return site_of
    start = 0
    for count in rows.class_counts():
        members = by_class[start : start + count]
        start += count
        shares = generator.dirichlet(np.full(sites, alpha))
        cuts = np.minimum(np.round(np.cumsum(shares[:-1]) * count), count).astype(np.int64)
        site_of[members] = np.searchsorted(cuts, np.arange(count), side="right")
    return site_of
