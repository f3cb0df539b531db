"""What judges of others say of a release, run by an interpreter of its own (their pins are not
ours): tables in, figures out.

    python outside_judges.py JUDGE TRAIN.csv TEST.csv RELEASE.csv SCHEMA.json

Imports nothing of capemix. JUDGE is sdmetrics (its quality report) or syntheval (the metrics below,
with the settings of its own presets). Columns that the schema calls numbers are numbers to them,
and all others are categories. The last line is a JSON object of the judge, its version and its
figures.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from importlib import import_module
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

METRICS: dict[str, dict[str, Any]] = {
    "h_dist": {},
    "corr_diff": {"mixed_corr": True},
    "mi_diff": {},
    "p_mse": {"k_folds": 5, "max_iter": 100, "solver": "liblinear"},
    "auroc_diff": {"model": "log_reg", "num_boots": 1},
    "nndr": {},
    "hit_rate": {"thres_percent": 0.0333},
}
"""Of syntheval: distances of columns, of correlations and of what columns say of each other, pMSE,
what a model loses, and how near synthetic rows come to real ones."""


def sdmetrics(tables: dict[str, Any], numbers: set[str], _label: str | None) -> dict[str, float]:
    """Its quality report: of columns, of pairs, and both."""
    train, release = tables["train"], tables["release"]
    kinds = {name: "numerical" if name in numbers else "categorical" for name in train}
    report = import_module("sdmetrics.reports.single_table").QualityReport()
    known = {"columns": {name: {"sdtype": kind} for name, kind in kinds.items()}}
    report.generate(train, release, known, verbose=False)
    parts = report.get_properties()
    found = dict(zip(parts["Property"], parts["Score"], strict=True))
    return {**found, "Overall": report.get_score()}


def syntheval(tables: dict[str, Any], numbers: set[str], label: str | None) -> dict[str, float]:
    """Some of its metrics; what a model loses, where there is a label to predict."""
    asked = {name: how for name, how in METRICS.items() if label or name != "auroc_diff"}
    train = tables["train"]
    others = [name for name in train if name not in numbers]
    judge = import_module("syntheval").SynthEval(
        train, holdout_dataframe=tables["test"], cat_cols=others, verbose=False
    )
    with contextlib.redirect_stdout(io.StringIO()):  # it draws tables
        found = judge.evaluate(tables["release"], label, **asked)
    return dict(zip(found["metric"], found["val"], strict=True))


def run(judge: str, files: dict[str, str], schema: str) -> dict[str, Any]:
    pandas = import_module("pandas")
    declared = json.loads(Path(schema).read_text())
    numbers = {
        column["name"] for column in declared["columns"] if column["type"] in ("number", "integer")
    }
    tables = {}
    for name, file in files.items():
        tables[name] = pandas.read_csv(file, dtype=str, keep_default_na=False)
        for column in numbers:
            tables[name][column] = pandas.to_numeric(tables[name][column])
    judged = {"sdmetrics": sdmetrics, "syntheval": syntheval}[judge]
    label = declared["label"] and declared["label"]["name"]
    found = judged(tables, numbers, label)
    return {
        "judge": judge,
        "version": version(judge),
        "figures": {name: float(value) for name, value in found.items() if isfinite(value)},
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    judge, train, test, release, schema = sys.argv[1:]
    found = run(judge, {"train": train, "test": test, "release": release}, schema)
    print(json.dumps(found))
