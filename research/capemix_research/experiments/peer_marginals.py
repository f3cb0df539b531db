"""A marginal-based peer, run by an interpreter of its own (its pins are not ours): a table in, a
synthetic one out.

    python peer_marginals.py METHOD TRAIN.csv SCHEMA.json EPSILON DELTA ROWS SEED SECONDS OUT.csv

Imports nothing of capemix. METHOD is dpmm-mst, dpmm-aim or dpmm-priv-bayes, with dpmm installed, or
mbi-mst or mbi-aim, with mbi installed and the mechanisms folder of its repository on the path; each
has the defaults of its authors. Marginals need columns of few values: a whole number of at most
BINS values is taken as it is, and any other number has BINS equal bins of its declared range (or of
its logarithm's) and comes back as a place drawn in its bin. That is public, so all of epsilon goes
to the marginals. Ends by a signal when SECONDS of CPU are spent. Its last words are the package,
its version, and the CPU seconds of the method.
"""

from __future__ import annotations

import itertools
import json
import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

BINS = 20


@dataclass(frozen=True)
class Asked:
    """Which release, of how many rows."""

    method: str
    epsilon: float
    delta: float
    rows: int
    seed: int


@dataclass(frozen=True)
class Coder:
    """A column as whole numbers below ``size``, and back."""

    words: tuple[str, ...]
    low: float = 0.0
    high: float = 0.0
    log: bool = False

    @property
    def size(self) -> int:
        return len(self.words) or BINS

    def codes(self, cells: Any) -> Any:
        if self.words:
            return cells.map({word: at for at, word in enumerate(self.words)}).astype(int)
        values = cells.astype(float)
        values = values.map(math.log) if self.log else values
        share = (values - self.low) / ((self.high - self.low) or 1.0)  # or a constant
        return (share * BINS).astype(int).clip(0, BINS - 1)

    def cells(self, codes: Any, generator: Any) -> Any:
        if self.words:
            return codes.map(dict(enumerate(self.words)))
        share = (codes + generator.random(len(codes))) / BINS
        values = self.low + share * (self.high - self.low)
        return values.map(math.exp) if self.log else values


def whole(column: dict[str, Any]) -> bool:
    return column["type"] == "integer" or column.get("decimals") == 0


def coders(schema: str) -> dict[str, Coder]:
    declared = json.loads(Path(schema).read_text())
    out = {}
    label = declared["label"] | {"type": "category", "missing": False}
    for column in (*declared["columns"], label):
        name, kind = column["name"], column["type"]
        if kind == "category":
            words = [
                value if isinstance(value, str) else json.dumps(value)
                for value in column["categories"]
            ]
            out[name] = Coder((*words, *[""] * column["missing"]))
        elif whole(column) and column["high"] - column["low"] < BINS:
            values = range(round(column["low"]), round(column["high"]) + 1)
            out[name] = Coder(tuple(str(value) for value in values))
        else:
            log = column.get("scale") == "log"
            low, high = float(column["low"]), float(column["high"])
            low, high = (math.log(low), math.log(high)) if log else (low, high)
            out[name] = Coder((), low, high, log)
    return out


def dpmm(codes: Any, sizes: dict[str, int], asked: Asked) -> Callable[[], Any]:
    """dpmm's pipelines, their bins left out."""
    known = import_module("dpmm.pipelines").PIPELINE_DICT

    def made() -> Any:
        pipeline = known[asked.method.removeprefix("dpmm-")](
            epsilon=asked.epsilon, delta=asked.delta, n_jobs=1, disable_processing=True
        )
        pipeline.fit(codes, domain=sizes, random_state=asked.seed)
        return pipeline.generate(n_records=asked.rows, random_state=asked.seed)

    return made


def mbi(codes: Any, sizes: dict[str, int], asked: Asked) -> Callable[[], Any]:
    """The mechanisms of mbi's repository."""
    base = import_module("mbi")
    pandas = import_module("pandas")
    name = asked.method.removeprefix("mbi-")
    mechanism = import_module(name)
    import_module("numpy").random.seed(asked.seed)
    drawn = base.MarkovRandomField.synthetic_data

    def made() -> Any:
        rows = base.Dataset(codes.to_dict("list"), base.Domain.fromdict(sizes))
        if name == "mst":
            # It has no option for how many rows, and would draw as many as it counts records.
            base.MarkovRandomField.synthetic_data = lambda model: drawn(model, asked.rows)
            found = mechanism.MST(rows, asked.epsilon, asked.delta)
        else:
            pairs = [(pair, 1.0) for pair in itertools.combinations(rows.domain, 2)]
            aim = mechanism.AIM(asked.epsilon, asked.delta)
            found = aim.run(rows, pairs, num_synth_rows=asked.rows)[1]
        return pandas.DataFrame(found.to_dict())

    return made


def run(asked: Asked, train: str, schema: str, out: str) -> None:
    pandas = import_module("pandas")
    given = pandas.read_csv(train, dtype=str, keep_default_na=False)
    known = coders(schema)
    codes = pandas.DataFrame({name: coder.codes(given[name]) for name, coder in known.items()})
    sizes = {name: coder.size for name, coder in known.items()}
    # Imports and reading are not timed, as they are not for our own release.
    made = (dpmm if asked.method.startswith("dpmm-") else mbi)(codes, sizes, asked)
    start = time.process_time()
    found = made()
    seconds = time.process_time() - start
    generator = import_module("numpy").random.default_rng(asked.seed)
    cells = {name: coder.cells(found[name], generator) for name, coder in known.items()}
    pandas.DataFrame(cells).to_csv(out, index=False)
    package = asked.method.partition("-")[0]
    print(package, version(package), seconds)


if __name__ == "__main__":
    method, train, schema, epsilon, delta, rows, seed, seconds, out = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
    run(Asked(method, float(epsilon), float(delta), int(rows), int(seed)), train, schema, out)
