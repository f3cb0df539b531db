"""Figure 2: more and more sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from capemix_research.report import compare
from capemix_research.report.cells import Printed, Runs, Sample
from capemix_research.report.compare import NEAR, within
from capemix_research.report.markdown import NAMES, budget, difference, listed, of, said, table

SITES: Final = (5, 10, 20, 50)
_NOISY: Final = ("20", "10")
_CHANCE: Final = 10.0


def figure2(runs: Runs, cells: Sequence[Printed]) -> str:
    every = compare.figure2(runs, cells)
    lines = [
        (
            "CAPE" if c.paper.method.startswith(compare.CAPE) else "conventional",
            budget(c.paper.epsilon),
            c.paper.sites,
            said(c.ours),
            c.paper.accuracy,
            difference(c),
        )
        for c in every
    ]
    noised = [c for c in every if c.paper.epsilon != "inf"]
    head = ("scheme", "epsilon", "S", "ours", "paper's text", "difference")
    return f"""## Figure 2

The figure itself has no printed values; the text gives {len(every)}, all for MNIST at `l = 4`. CAPE
is set against the joint form, with noise and without, and the conventional scheme against averages,
with noise `sqrt(S) TAU`. Of those that have been run, {of(*within(every))} are within {NEAR:.0f}
points.

![Accuracy against the number of sites](figures/reproduction-figure2.png)

{table(head, lines)}
{_free_over_sites(runs)}{_noisy_over_sites(runs)}With noise {of(*within(noised))} values are near:
how high the lines lie depends on what is assumed, the conventional scheme's on
its noise as well ([errata 9](../theory/errata.md#9-the-noise-of-the-conventional-scheme)).

"""


def _free_over_sites(runs: Runs) -> str:
    """Without noise: what has been run for every number of sites."""
    joint = [(d, _over_sites(runs, "joint", d, "inf")) for d in NAMES]
    averages = [(d, _over_sites(runs, "conventional", d, "inf")) for d in NAMES]
    steady = [f"{_range(found):.1f} on {NAMES[d]}" for d, found in joint if found]
    falling = [
        f"from {found[0].mean:.1f} to {found[-1].mean:.1f} on {NAMES[d]}"
        for d, found in averages
        if found and found[0].mean > found[-1].mean
    ]
    text = ""
    if steady:
        text += f"""Without noise the joint form mixes `l` rows on average whatever `S` is: the best
and the worst `S` are {listed(steady)} apart. """
    if falling:
        text += f"""Averages mix `S l` rows, and lose accuracy from 5 sites to 50 without any noise:
{listed(falling)}. """
    return text


def _over_sites(runs: Runs, scheme: str, dataset: str, epsilon: str) -> list[Sample]:
    """One sample for each number of sites, or none at all while any is missing."""
    found = [compare.of_scheme(runs, scheme, dataset, sites, 4, epsilon) for sites in SITES]
    return [one for one in found if one is not None] if None not in found else []


def _range(samples: Sequence[Sample]) -> float:
    return max(s.mean for s in samples) - min(s.mean for s in samples)


def _noisy_over_sites(runs: Runs) -> str:
    """With noise: the joint form has the same released noise for every S, averages more."""
    columns = [(d, e) for d in NAMES for e in _NOISY]
    joint = [_over_sites(runs, "joint", *column) for column in columns]
    falling = [_over_sites(runs, "conventional", *column) for column in columns]
    if not all(joint) or not all(falling):
        return ""
    between = max(_range(samples) for samples in joint)
    seeds_apart = max(sample.spread for samples in joint for sample in samples)
    levels = [
        f"{min(means):.1f} to {max(means):.1f} with {sites}"
        for place, sites in enumerate(SITES)
        if (means := [samples[place].mean for samples in falling])
    ]
    beyond = [sample.mean for samples in falling for sample in samples[1:]]
    chance = all(abs(mean - _CHANCE) <= NEAR for mean in beyond)
    only = (
        " From 10 sites on that is near chance, so only the step from 5 to 10 shows a fall."
        * chance
    )
    return f"""With noise the joint form shows no difference between numbers of sites beyond that of
the seeds, at equal released noise: the means of different `S` are up to {between:.1f} points apart,
seeds of one `S` up to {seeds_apart:.1f}. The conventional scheme has {listed(levels)} sites.{only}
The paper's text has a small decline there. """
