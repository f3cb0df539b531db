"""`capemix bench`: how fast it is."""

from __future__ import annotations

from typing import Annotated

import typer

from capemix.cli import options as opt


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the rows.")] = False,
    threads: Annotated[int | None, typer.Option(help="Threads [default: all cores].")] = None,
    json: opt.Json = False,
) -> None:
    """Speed of the secure path, as ratios to the obvious loop and to copying the output."""
    from capemix.bench import bench as run
    from capemix.cli.progress import spinner
    from capemix.cli.show import print_json, print_table

    size = 6_000 if quick else 60_000
    timings = []
    with spinner("timing", quiet=json):
        for mixture, part in ((4, 1), (512, 10 if quick else 30)):
            timings.append(
                run(mixture, samples=size, loop_part=part, repeats=3, threads=threads).as_json()
            )
    if json:
        print_json({"timings": timings})
    else:
        print_table("60,000 x 784 rows, eps = 10, secure lattice noise", timings)
