"""Training rows of a setting, made on the device that trains on them.

For research on public data: the laws are the product's, the randomness is torch's, and nothing
made here can become a release. A block of mixtures is one matrix product, draws times rows: every
draw is a row of the first matrix, with 1/l at the records that were drawn.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from capemix.accounting.gaussian import kept_probability
from capemix.data.registry import load_dataset
from capemix_research.experiments.settings import Setting

_CLASSES: Final = 10
_DRAWS: Final = 2_000
"""Draws in one product over all records."""

PROJECTED: Final = 100
"""Dimensions that random projection keeps."""


@dataclass(frozen=True, eq=False)
class Records:
    """A dataset on a device."""

    train: Tensor
    labels: Tensor
    test: Tensor
    test_labels: Tensor

    @classmethod
    def load(cls, dataset: str, device: torch.device) -> Records:
        train, test = load_dataset(dataset)

        def pixels(features: Any) -> Tensor:
            return torch.tensor(features, device=device).float()

        return cls(
            pixels(train.features),
            torch.tensor(train.labels, device=device),
            pixels(test.features),
            torch.tensor(test.labels, device=device),
        )

    def test_rows(self, clip: float) -> Tensor:
        """Test images through the preparation of the pooled training images."""
        return clipped(by_pixel(self.test, self.train), clip)


def by_pixel(rows: Tensor, by: Tensor) -> Tensor:
    """Z-scores by each pixel's mean and deviation in ``by``; a constant pixel becomes 0."""
    deviation, mean = torch.std_mean(by, dim=0, correction=0)
    return (rows - mean) / torch.where(deviation > 0, deviation, 1.0)


def by_all_pixels(rows: Tensor, by: Tensor) -> Tensor:
    """Z-scores by the one mean and deviation of everything in ``by``."""
    deviation, mean = torch.std_mean(by, correction=0)
    return (rows - mean) / deviation


Normalise = Callable[[Tensor, Tensor], Tensor]
"""Rows normalised by what other rows have."""


def clipped(rows: Tensor, clip: float) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / (norms / clip).clamp_min(1.0)


def training_rows(
    setting: Setting,
    noise: float,
    records: Records,
    seed: int,
    normalise: Normalise = by_pixel,
) -> tuple[Tensor, Tensor]:
    """Rows and labels of a setting; ``noise`` is the deviation on a released value."""
    device = records.train.device
    drawn_by = zlib.crc32("|".join((*setting.text(), str(seed))).encode())
    generator = torch.Generator(device).manual_seed(drawn_by)
    # Which record lies at which site is the seed's alone: settings are compared on equal splits.
    site = _stratified(records.labels, setting.sites, seed)
    prepared = torch.empty_like(records.train)
    for s in range(setting.sites):
        mine = site == s
        own = records.train[mine]
        prepared[mine] = clipped(normalise(own, own), setting.clip)
    one_hot = torch.nn.functional.one_hot(records.labels, _CLASSES).float()
    if setting.method == "real":
        return prepared, records.labels
    if setting.method in ("random-projection", "local-perturbation"):
        return _record_by_record(setting, noise, prepared, records.labels, generator)
    if setting.method == "dp-mix":
        parts = (  # one at a time: each is as wide as there are records
            _fixed(draws, len(prepared), setting.mixture, generator) for draws in _pieces(setting)
        )
        pairs = [(part @ prepared, part @ one_hot) for part in parts]
        rows, mixed = (torch.cat(side) for side in zip(*pairs, strict=True))
    else:
        rows, mixed = _class_by_class(setting, prepared, records.labels, site, generator)
    return _noised(rows, mixed, noise, setting.labels_noised, generator)


def _class_by_class(
    setting: Setting, prepared: Tensor, labels: Tensor, site: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    averaged = setting.method in ("algorithm1", "conventional")
    poisson = setting.method == "joint" or setting.accountant == "sound"
    draws = setting.samples // _CLASSES
    rows, mixed = [], []
    for k in range(_CLASSES):
        of_class = labels == k
        pools = [of_class & (site == s) for s in range(setting.sites)] if averaged else [of_class]
        mean = prepared.new_zeros(draws, prepared.shape[1])
        count = prepared.new_zeros(draws, 1)
        for pool in pools:
            mine = prepared[pool]
            pick = _poisson if poisson else _fixed
            part = pick(draws, len(mine), setting.mixture, generator) / len(pools)
            mean += part @ mine
            count += part.sum(1, keepdim=True)
        rows.append(mean)
        # A label that is not noised is the class, whatever was drawn: an empty draw has it too.
        weight = count if setting.labels_noised else torch.ones_like(count)
        mixed.append(weight * torch.eye(_CLASSES, device=count.device)[k])
    return torch.cat(rows), torch.cat(mixed)


def _record_by_record(
    setting: Setting, noise: float, prepared: Tensor, labels: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """As `capemix_research.baselines.recordwise`: half of epsilon for the row, half for the label.

    Every record is released, or a random ``samples`` of them where a setting asks for fewer.
    """
    if setting.samples < len(labels):
        few = torch.randperm(len(labels), generator=generator, device=labels.device)
        prepared, labels = prepared[few[: setting.samples]], labels[few[: setting.samples]]
    kept = kept_probability(setting.epsilon / 2, _CLASSES)
    chance = torch.rand(labels.shape, generator=generator, device=labels.device)
    other = torch.randint(1, _CLASSES, labels.shape, generator=generator, device=labels.device)
    told = torch.where(chance < kept, labels, (labels + other) % _CLASSES)

    def noised(rows: Tensor) -> Tensor:
        return rows + noise * torch.randn(rows.shape, generator=generator, device=rows.device)

    if setting.method == "local-perturbation":
        return noised(prepared), told
    shape = (prepared.shape[1], PROJECTED)
    matrix = torch.randn(shape, generator=generator, device=prepared.device) / PROJECTED**0.5
    return noised(clipped(prepared @ matrix, setting.clip)) @ torch.linalg.pinv(matrix), told


def _noised(
    rows: Tensor, mixed: Tensor, noise: float, labels_too: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    def like(values: Tensor) -> Tensor:
        return noise * torch.randn(values.shape, generator=generator, device=values.device)

    labels = (mixed + like(mixed) if labels_too else mixed).argmax(1)
    return rows + like(rows), labels


def _fixed(draws: int, pool: int, size: int, generator: torch.Generator) -> Tensor:
    """1/l at l of ``pool`` records, drawn without replacement, for every draw."""
    keys = torch.rand(draws, pool, generator=generator, device=generator.device)
    chosen = keys.topk(size, dim=1, sorted=False).indices
    return keys.zero_().scatter_(1, chosen, 1.0 / size)


def _poisson(draws: int, pool: int, size: int, generator: torch.Generator) -> Tensor:
    """1/l at every record that takes part, each with probability l/pool."""
    keys = torch.rand(draws, pool, generator=generator, device=generator.device)
    return (keys < size / pool).float() / size


def _pieces(setting: Setting) -> list[int]:
    full, rest = divmod(setting.samples, _DRAWS)
    return [_DRAWS] * full + ([rest] if rest else [])


def _stratified(labels: Tensor, sites: int, seed: int) -> Tensor:
    """A site for every record: each class dealt out evenly, in a random order."""
    generator = torch.Generator().manual_seed(seed)
    site = torch.empty_like(labels)
    for k in range(_CLASSES):
        where = (labels == k).nonzero()[:, 0]
        order = torch.randperm(len(where), generator=generator).to(labels.device)
        site[where[order]] = torch.arange(len(where), device=labels.device) % sites
    return site
