"""What one image adds to the training of a small network that takes noise off images (`denoiser`).

A record is looked at with several noises of its own at once. Its gradient, the mean over them, is
shortened to a norm of ``clip``; on the lattice it is whole numbers, checked in whole numbers. Its
noises come from a hash of the record and of a public seed, so that all of what it adds is a
function of the record and of public numbers alone, to the last bit: whom it was drawn with does not
show, nor at which site it is.

With the record's gradient g, of entries at most m in size, and q = round(2^14 g / m):
    what is added is round(q r),   r = min((m / 2^14) (L / clip), L / |q|),
with |q|^2 a sum of whole numbers, exact, and L a little less than the sum's lattice norm bound B.
If rounding makes it longer than B all the same it is taken toward zero; and what is still longer
than B, or no number, is not added. So the bound holds whatever the weights are.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from capemix.errors import InputError
from capemix.statistics.projection import Codes, finite_rows, pieces, whole_scale
from capemix.sums.rows import EXACT_RECORDS, MAX_LATTICE_NORM, normalise_rows
from capemix.sums.statistic import statistic
from capemix.sums.steps import PublicMap

if TYPE_CHECKING:
    from torch import Tensor

MOST_WEIGHTS: Final = 1_450_000
"""Of a network: a message has room for so many."""

FREQUENCIES: Final = 32
"""Waves by which the network is told the level of the noise, as sines and as cosines."""

LEVELS: Final = 1024
"""Noise levels, from the least to the largest."""

SPREAD: Final = 0.5
"""The deviation of pixels that the network is scaled for, in half ranges."""

LOG_LEVEL: Final = (-0.8, 1.2)
"""Mean and deviation of the logarithm of the levels that it is trained at."""

_FINE: Final = 1 << 14
"""The largest of a record's whole numbers before it is shortened."""

_NORMALS: Final = 1 << 16

_RECORDS: Final = {"cuda": 512, "cpu": 16}
"""Gradients that are in memory at a time, at most."""

_POINTS: Final = {"cuda": 512 * 4 * 28**2, "cpu": 16 * 4 * 28**2}
"""Pixels, each with so many noises, that are looked at in that time, at most."""

Single = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Layer:
    """Products of ``inputs`` channels, of a point or of ``side`` by ``side`` of them."""

    name: str
    side: int
    inputs: int
    outputs: int

    @property
    def size(self) -> int:
        return self.side**2 * self.inputs * self.outputs


@dataclass(frozen=True)
class Network:
    """A network for images of ``shape`` in so many ``classes``; ``channels`` on the finer grid,
    twice as many on the coarser, and ``about`` numbers say level and class. A record is looked at
    with ``noises`` at once."""

    shape: tuple[int, int]
    classes: int
    channels: int = 64
    about: int = 128
    noises: int = 4

    def __post_init__(self) -> None:
        parts = (*self.shape, self.classes, self.channels, self.about, self.noises)
        whole = len(self.shape) == 2 and all(type(n) is int and n > 0 for n in parts)
        fits = whole and not any(side % 4 for side in self.shape)
        if not (fits and max(self.shape) <= 64 and self.noises <= 16 and self.classes <= 1000):
            raise InputError(
                "a network",
                "needs images with sides that are multiples of four, up to 64",
                value=self.shape,
                fix="propose it again",
            )
        if self.weights > MOST_WEIGHTS:
            raise InputError(
                "a network",
                f"may have {MOST_WEIGHTS} weights at most",
                value=self.weights,
                fix="take fewer channels",
            )

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        fine, coarse, about = self.channels, 2 * self.channels, self.about
        blocks = {
            "fine": (fine, fine),
            "coarse": (fine, coarse),
            "middle": (coarse, coarse),
            "back": (2 * coarse, coarse),
            "last": (coarse + fine, fine),
        }
        found = [
            Layer("told", 1, 2 * FREQUENCIES + self.classes + 1, about),
            Layer("told again", 1, about, about),
            Layer("first", 3, 5, fine),
        ]
        for name, (inputs, outputs) in blocks.items():
            found += [
                Layer(f"{name} 1", 3, inputs, outputs),
                Layer(f"{name} told", 1, about, outputs),
                Layer(f"{name} 2", 3, outputs, outputs),
            ]
            if inputs != outputs:
                found.append(Layer(f"{name} past", 1, inputs, outputs))
        return (*found, Layer("out", 3, fine, 4))

    @cached_property
    def weights(self) -> int:
        return sum(layer.size for layer in self.layers)


@statistic
@dataclass(frozen=True, eq=False)
class DenoisingGradients:
    """Of a ``network`` with these ``weights``; ``seed`` is the round's public one."""

    network: Network
    normalise: PublicMap
    weights: np.ndarray
    clip: float
    seed: str
    kind: Literal["denoising gradients"] = "denoising gradients"

    groups: ClassVar = 1

    def __post_init__(self) -> None:
        if self.weights.shape != (self.network.weights,) or not 1e-30 < self.clip < 1e30:
            raise InputError(
                "a network",
                "has weights of another size, or no norm to shorten gradients to",
                value=self.weights.shape,
                fix="propose it again",
            )
        if None in (self.normalise.low, self.normalise.high):
            raise InputError(
                "images", "need one declared range of pixels", fix="declare a public_range"
            )

    @property
    def columns(self) -> int:
        return math.prod(self.network.shape)

    @property
    def width(self) -> int:
        return self.network.weights

    @property
    def l2_norm_bound(self) -> float:
        return self.clip

    def add_to(
        self,
        sums: npt.NDArray[Any],
        features: npt.NDArray[Any],
        labels: Codes,
        lattice: int | None,
    ) -> None:
        """Add every record's gradient; a label that is no class's drops its record."""
        kept = np.flatnonzero((labels >= 0) & (labels < self.network.classes))
        if not len(kept):
            return
        most = MAX_LATTICE_NORM if lattice is None else lattice
        total = self._total(features, labels, kept, most)
        sums += total if lattice is not None else total * (self.clip / MAX_LATTICE_NORM)

    def _total(
        self, features: npt.NDArray[Any], labels: Codes, kept: Codes, most: int
    ) -> npt.NDArray[np.int64]:
        torch = needed()
        from capemix.statistics.denoiser import Whole

        device = "cuda" if torch.cuda.is_available() else "cpu"
        with np.errstate(all="ignore"):  # whatever a message brought, a record counts or does not
            weights = np.nan_to_num(np.clip(self.weights, -1e3, 1e3)).astype(np.float32)
        how = Whole(self.network, weights, device)
        total = torch.zeros(self.width, dtype=torch.int64, device=device)
        waiting: list[tuple[Tensor, Tensor]] = []
        at_once = min(_RECORDS[device], _POINTS[device] // (self.columns * self.network.noises))
        for piece in pieces(len(kept), max(1, min(at_once, EXACT_RECORDS))):
            some = kept[piece]
            rows, keys = self._rows(features[some], labels[some])  # while the last ones are made
            if waiting:
                total += torch.cat(_shortened(waiting, most, self.clip))
            waiting = self._gradients(how, rows, labels[some], keys, device)
        total += torch.cat(_shortened(waiting, most, self.clip))
        return np.asarray(total.cpu().numpy())

    def _rows(self, features: npt.NDArray[Any], labels: Codes) -> tuple[Single, Codes]:
        """Images of -1 to 1, and each record's key: a hash of it and of the round's seed."""
        with np.errstate(over="ignore", invalid="ignore"):
            rows = finite_rows(normalise_rows(features, self.normalise)).astype(np.float32)
        np.clip(rows, -2.0, 2.0, out=rows)
        seed = hashlib.blake2b(self.seed.encode(), digest_size=32).digest()
        keys = np.empty(len(rows), dtype=np.int64)
        for at, (row, label) in enumerate(zip(rows, labels.tolist(), strict=True)):
            said = hashlib.blake2b(row.tobytes(), digest_size=8, key=seed, salt=b"%d" % label)
            keys[at] = int.from_bytes(said.digest(), "little", signed=True)
        return rows, keys

    def _gradients(
        self, how: Any, rows: Single, labels: Codes, keys: Codes, device: str
    ) -> list[tuple[Tensor, Tensor]]:
        """These records' gradients, layer by layer, as `denoiser.Whole` has them."""
        torch = needed()
        from capemix.statistics.denoiser import said, told_of

        network, noises = self.network, self.network.noises
        how.begin(len(rows))
        x = torch.from_numpy(rows).to(device).repeat_interleave(noises, 0)
        codes = torch.tensor(labels, device=device).repeat_interleave(noises, 0)
        tables = tables_on(device)
        levels, normals = noise_of(torch.from_numpy(keys).to(device), network, tables)
        inner, skip, outer, deviation = (part[levels][:, None] for part in tables[:4])
        noisy = x + deviation * normals
        target = (x - skip * noisy) / outer
        told = told_of(network, levels, codes, tables[4])
        images = (inner * noisy).reshape(-1, *network.shape)
        found = said(network, how, images, told)
        residual = found.detach().reshape(len(x), -1) - target
        found.backward((residual * (2.0 / (self.columns * noises))).reshape(found.shape))  # type: ignore[no-untyped-call]
        return [how.gradients.pop(layer.name) for layer in network.layers]


def _shortened(parts: list[tuple[Tensor, Tensor]], most: int, clip: float) -> list[Tensor]:
    """The sum over records of gradients, each shortened and rounded. ``parts`` are whole numbers,
    records by weights, and what a 1 is for each record; they are overwritten."""
    torch = needed()
    sizes = [torch.linalg.vector_norm(part, math.inf, dim=1) * unit for part, unit in parts]
    largest = torch.stack(sizes).amax(0)
    fits = torch.isfinite(largest)
    largest = torch.where(fits & (largest > 1e-30), largest, torch.ones_like(largest))
    fine = [part.mul_((unit * (_FINE / largest))[:, None]).round_() for part, unit in parts]
    if not bool(fits.all()):
        for part in fine:
            part[~fits] = 0.0
    aim = whole_scale(most, sum(part.shape[1] for part in fine))
    length = _squares(fine).sqrt_().clamp_(min=1.0)
    factor = torch.minimum(largest.double() * (aim / clip / _FINE), aim / length).float()
    scaled = [part.mul_(factor[:, None]) for part in fine]
    whole = [part.round() for part in scaled]
    long = _squares(whole) > most**2
    if bool(long.any()):
        for part, exact in zip(whole, scaled, strict=True):
            part[long] = exact[long].trunc()
        long = _squares(whole) > most**2
        for part in whole:
            part[long] = 0.0
    return [part.sum(0).to(torch.int64) for part in whole]


def _squares(parts: list[Tensor]) -> Tensor:
    """Each record's squared norm, of whole numbers of up to 2^15 of which there are fewer than
    2^21: below 2^51 doubles add them exactly, in any order, and a root's square is nearest to it.
    """
    torch = needed()
    norms = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]
    squares: Tensor = torch.stack([norm.square_().round_() for norm in norms]).sum(0)
    return squares


def noise_of(keys: Tensor, network: Network, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Each image's level and its normals, from its record's key: the outputs of a counter-based
    generator (Steele, Lea, Flood 2014), sixteen bits for each, looked up in tables."""
    torch = needed()
    noises, pixels = network.noises, math.prod(network.shape)
    words = -(-(noises * (pixels + 1)) // 4)
    counters = torch.arange(1, words + 1, device=keys.device)
    mixed = keys[:, None] + counters * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ ((mixed >> shift) & ((1 << (64 - shift)) - 1))) * factor
    mixed = mixed ^ ((mixed >> 31) & ((1 << 33) - 1))
    bits = torch.stack([(mixed >> shift) & (_NORMALS - 1) for shift in (0, 16, 32, 48)], 2)
    bits = bits.reshape(len(keys), -1)
    # One level in each of as many equal parts as there are noises.
    part = torch.arange(noises, device=keys.device) * _NORMALS + bits[:, :noises]
    levels = (part * LEVELS) // (noises * _NORMALS)
    normals = tables[5][bits[:, noises : noises * (pixels + 1)]]
    return levels.reshape(-1), normals.reshape(-1, pixels)


@lru_cache(maxsize=2)
def tables_on(device: str) -> tuple[Tensor, ...]:
    """By level: c_in, c_skip, c_out, the deviation and the waves; and the normals' quantiles."""
    torch = needed()
    return tuple(torch.from_numpy(table).to(device) for table in (*level_tables(), _quantiles()))


@lru_cache(maxsize=1)
def level_tables() -> tuple[Single, ...]:
    mean, deviation = LOG_LEVEL
    levels = np.exp(mean + deviation * ndtri((np.arange(LEVELS) + 0.5) / LEVELS))
    return scales_of(levels)


def scales_of(levels: npt.NDArray[np.float64]) -> tuple[Single, ...]:
    """c_in, c_skip, c_out (Karras et al. 2022, Table 1), the levels and their waves."""
    whole = np.sqrt(levels**2 + SPREAD**2)
    frequencies = np.exp(np.linspace(math.log(0.5), math.log(50.0), FREQUENCIES))
    angles = np.log(levels)[:, None] / 4.0 * frequencies
    waves = np.hstack([np.sin(angles), np.cos(angles)])
    found = (1.0 / whole, SPREAD**2 / whole**2, levels * SPREAD / whole, levels, waves)
    return tuple(part.astype(np.float32) for part in found)


@lru_cache(maxsize=1)
def _quantiles() -> Single:
    normals = ndtri((np.arange(_NORMALS) + 0.5) / _NORMALS)
    return np.asarray(normals / normals.std(), dtype=np.float32)


def needed() -> Any:
    """torch, which nothing else here needs."""
    try:
        import torch
    except ImportError:
        raise InputError(
            "torch",
            "is needed for image-diffusion, at every site, and is not installed",
            fix="pip install 'capemix[torch]'",
        ) from None
    return torch
