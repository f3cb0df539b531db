"""What a coordinator asks before starting: does it matter which site holds which rows?"""

from __future__ import annotations

from typing import Annotated

import typer

from capemix_research.cli import options as opt


def splits(
    data: Annotated[str, typer.Option(help="A public dataset by name.")] = "digits",
    sites: Annotated[int, typer.Option(help="S: sites, at least 2.")] = 5,
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 10.0,
    mixture: opt.Mixture = 16,
    samples: opt.Samples = 1000,
    seeds: Annotated[int, typer.Option(help="Releases of each split.")] = 5,
    json: opt.Json = False,
) -> None:
    """Utility of the release when rows are split at random, skewed (Dirichlet 0.1), or with a class
    missing at a site; beside the conventional scheme, where each site makes rows of its own."""
    from capemix.cli.progress import spinner
    from capemix.cli.show import print_json, print_table
    from capemix.data import dataset_info, load_dataset
    from capemix.errors import InputError
    from capemix_research.experiments.splits import compare_splits

    if sites < 2 or seeds < 1:
        raise InputError(
            "--sites and --seeds",
            "must be at least 2 and 1",
            value=f"{sites} and {seeds}",
            fix="raise them",
        )
    info = dataset_info(data)
    train, test = load_dataset(data)
    with spinner("making releases", quiet=json):
        found = list(
            compare_splits(
                info,
                train,
                test,
                sites=sites,
                epsilon=epsilon,
                mixture=mixture,
                samples=samples,
                clip=0.5 * train.width**0.5,
                seeds=seeds,
            )
        )
    if json:
        print_json(
            {
                "scores": [
                    {"scheme": s.scheme, "split": s.split, "accuracies": list(s.accuracies)}
                    for s in found
                ]
            }
        )
        return
    print_table(
        f"{data}, {sites} sites, epsilon {epsilon:g}: logistic regression, {seeds} releases each",
        [
            {
                "scheme": s.scheme,
                "split": s.split,
                "accuracy": f"{100 * s.mean:.1f}",
                "spread": f"{100 * s.spread:.1f}",
            }
            for s in found
        ],
    )
