"""A peer, run by an interpreter of its own that has dpmm (its pins are not ours): a table in, a
synthetic one out.

    python peer_dpmm.py TRAIN.csv SCHEMA.json EPSILON DELTA SEED OUT.csv

Imports nothing of capemix. MST (McKenna, Miklau, Sheldon 2021), with the declared ranges and
categories as its public domain, and the package's own defaults otherwise. Prints the CPU seconds.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any


def run(train: str, schema: str, epsilon: float, delta: float, seed: int, out: str) -> None:
    pandas: Any = import_module("pandas")
    rows = pandas.read_csv(train, dtype=str, keep_default_na=False)
    declared = json.loads(Path(schema).read_text())
    domain: dict[str, Any] = {}
    label = declared["label"] | {"type": "category", "missing": False}
    for column in (*declared["columns"], label):
        name = column["name"]
        if column["type"] == "category":
            words = [str(value) for value in column["categories"]]
            words += ["(missing)"] * column["missing"]
            cells = rows[name].replace("", "(missing)")
            rows[name] = pandas.Categorical(cells, categories=words)
            domain[name] = {"categories": words}
        else:
            rows[name] = rows[name].astype(float)
            domain[name] = {"lower": float(column["low"]), "upper": float(column["high"])}
    start = time.process_time()
    pipeline = import_module("dpmm.pipelines").MSTPipeline(epsilon=epsilon, delta=delta, n_jobs=1)
    pipeline.fit(rows, domain=domain, random_state=seed)
    made = pipeline.generate(n_records=len(rows), random_state=seed)
    print(time.process_time() - start)
    for name, known in domain.items():
        if "categories" in known:
            made[name] = made[name].astype(str).replace("(missing)", "")
        else:
            made[name] = made[name].astype(float).clip(known["lower"], known["upper"])
    made.to_csv(out, index=False)


if __name__ == "__main__":
    first, second, epsilon, delta, seed, last = sys.argv[1:]
    run(first, second, float(epsilon), float(delta), int(seed), last)
