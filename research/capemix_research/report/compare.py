"""Which of our settings stands against which of the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from capemix_research.report.cells import Printed, Runs, Sample

NEAR: Final = 3.0
"""Points within which a cell counts as reproduced."""

CAPE: Final = "CAPE"


@dataclass(frozen=True)
class Compared:
    """A cell of the paper's with what we measured for it, if anything yet."""

    paper: Printed
    ours: Sample | None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in points."""
        if self.ours is None or self.paper.accuracy is None:
            return None
        return self.ours.mean - self.paper.accuracy

    @property
    def near(self) -> bool:
        return self.difference is not None and abs(self.difference) <= NEAR


def of_scheme(
    runs: Runs,
    scheme: str,
    dataset: str,
    sites: object,
    mixture: object,
    epsilon: str,
    **otherwise: str,
) -> Sample | None:
    """Under the stated assumptions but for ``otherwise``, with each scheme's noise in Table 1."""
    asked = {"dataset": dataset, "sites": sites, "mixture": mixture, "epsilon": epsilon}
    asked |= otherwise
    if epsilon == "inf":
        # Without noise Algorithm 1 and the conventional scheme are one and the same.
        method = "conventional" if scheme == "algorithm1" else scheme
        return runs.of(**asked, method=method, labels_noised=False, accountant="none")
    noise = {"algorithm1": "appendix", "conventional": "sites"}.get(scheme, "")
    return runs.of(**asked, method=scheme, site_noise=noise)


def table1(
    runs: Runs, cells: Iterable[Printed], cape: str = "", **otherwise: str
) -> list[Compared]:
    """Panel (a) against central mixing, which its columns turn out to be: one curator without
    noise, the joint form with; or against the scheme ``cape``. Panel (b) against averaging."""

    def found(cell: Printed) -> Sample | None:
        scheme, sites = cape or "joint", 10
        if cell.panel == "b":
            scheme = "conventional"
        elif not cape and cell.epsilon == "inf":
            scheme, sites = "central", 1
        asked = (cell.dataset, sites, cell.mixture, cell.epsilon)
        return of_scheme(runs, scheme, *asked, **otherwise)

    return [Compared(cell, found(cell)) for cell in cells]


def figure2(runs: Runs, cells: Iterable[Printed]) -> list[Compared]:
    def found(cell: Printed) -> Sample | None:
        scheme = "joint" if cell.method.startswith(CAPE) else "conventional"
        return of_scheme(runs, scheme, cell.dataset, cell.sites, cell.mixture, cell.epsilon)

    return [Compared(cell, found(cell)) for cell in cells]


TABLE2: Final = {
    "Random Projection": "random-projection",
    "Local Perturbation": "local-perturbation",
    "DP-Mix": "dp-mix",
    "DP-CDA": "central",
    "Federated DP-CDA (conventional)": "conventional",
    "CAPE Assisted Federated DP-CDA": "joint",
}


def table2(runs: Runs, cells: Iterable[Printed]) -> list[Compared]:
    """Mixtures of 4 rows, where Table 1 is at its best: Table 2 does not say."""

    def found(cell: Printed) -> Sample | None:
        method = TABLE2[cell.method]
        if method in ("random-projection", "local-perturbation"):
            asked = {"dataset": cell.dataset, "epsilon": cell.epsilon, "accountant": "gaussian"}
            return runs.of(**asked, method=method, sites=1, mixture=0)
        sites = 10 if method in ("conventional", "joint") else 1
        return of_scheme(runs, method, cell.dataset, sites, 4, cell.epsilon)

    return [Compared(cell, found(cell)) for cell in cells]


def pick(cells: Iterable[Compared], **wanted: str) -> list[Compared]:
    return [c for c in cells if all(getattr(c.paper, name) == wanted[name] for name in wanted)]


def within(cells: Iterable[Compared]) -> tuple[int, int]:
    """How many cells are near the paper's, of how many that have both numbers."""
    both = [cell for cell in cells if cell.difference is not None]
    return sum(cell.near for cell in both), len(both)
