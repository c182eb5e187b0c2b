"""`python -m workloads bench predict`: what training keeps of its speed on more nodes. Needs neither torch nor Ray."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rich.table import Table

from workloads import tables
from workloads.errors import EXIT_OK, UsageError
from workloads.nccl.scaling import gradients, observed
from workloads.nccl.scaling.prediction import ASSUMED_JITTER, Model, Prediction, Setting, work
from workloads.nccl.scaling.scaling import PUBLISHED
from workloads.reporting.progress import counted, duration

DESCRIPTION = """\
How fast ConvNeXt would train on more nodes: the gradients' buckets, all-reduce's time for each, what of it the backward
pass does not hide, and the slowest of so many ranks. Needs no GPU."""

EPILOG = """\
Without --from, all-reduce takes what published tables of such nodes say (benchmarks/scaling.json has how far off each
is). Without --measured and --images-per-second, one GPU's speed is an assumption; without --jitter, that is another.
Beyond the nodes that were measured or published, all-reduce is extrapolated. The output says each.

efficiency: images per second of a GPU among so many, over those of one alone. Where a measured one is more than two
points lower than the predicted one, look at the input pipeline and at single slow nodes before the wire. Runs that
are compared must have had --batch images per GPU each: the trainer's batch_size is that of all workers together.
"""

ASSUMED_RATE = 2000.0
"""Images per second of ConvNeXt-Base on one H200 that a roofline gives as a safe aim; nobody has measured it."""

RESIDUAL = 0.02
"""A measured efficiency that is lower than the predicted one by more than this is pointed out."""


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads bench predict`."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", default="convnext-base", help="convnext-tiny and so on (%(default)s)")
    parser.add_argument(
        "--nodes", default="1,2,4,16,128,1000", metavar="N,N,...", help="numbers of nodes (%(default)s)"
    )
    parser.add_argument("--from", dest="results", metavar="RESULTS", help="file or folder of `bench`, also gs://")
    parser.add_argument(
        "--measured", action="append", default=[], metavar="RUN", help="folder of a train run, also gs://; repeatable"
    )
    parser.add_argument(
        "--images-per-second", type=float, metavar="X", help=f"of one GPU alone (as measured; else {ASSUMED_RATE:g})"
    )
    parser.add_argument("--batch", type=int, default=256, metavar="N", help="images per GPU and step (%(default)s)")
    parser.add_argument(
        "--bucket-mb", type=float, metavar="MIB", help="limit of DDP's buckets (25, the first 1, as the trainer has)"
    )
    parser.add_argument(
        "--jitter",
        type=float,
        metavar="SHARE",
        help=f"deviation of a rank's step, as a share ({ASSUMED_JITTER:g}, an assumption)",
    )
    parser.add_argument(
        "--contention",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="by which share all-reduce slows the backward pass (%(default)g)",
    )
    parser.add_argument(
        "--input-images-per-second", type=float, metavar="X", help="that a GPU's share of the loaders can feed (any)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write prediction.json, efficiency.png and .svg")


def run_predict(args: argparse.Namespace) -> int:
    """Print the prediction; returns the exit code.

    Raises:
        UsageError: an argument is not what it should be, or what it names cannot be used.
        DataIntegrityError: results are damaged or cut off.
    """
    model, nodes = _model(args.model), _nodes(args.nodes)
    _check(args)
    curve = observed.all_reduce(args.results) if args.results else None
    times = Model(fabric=curve.fabric if curve else PUBLISHED, curve=curve)
    trained = observed.images_per_second(args.measured)
    setting = Setting(
        model=model,
        batch=args.batch,
        bucket_bytes=int((args.bucket_mb or 0) * 1024**2),
        contention=args.contention,
        jitter=ASSUMED_JITTER if args.jitter is None else args.jitter,
        input_rate=args.input_images_per_second or 0.0,
    )
    rate, whose = _rate(args.images_per_second, times, setting, trained)
    # Those that were trained stand in the table whether asked for or not: a prediction is worth its comparison.
    counts = sorted({*nodes, *map(times.nodes_of, trained)} - {0})
    found = [times.predict(setting, count, rate, trained) for count in counts]
    said = f"{args.results}, {', '.join(map(str, curve.nodes))} nodes" if curve else "published constants"
    head = _head(setting, rate, whose, said, "assumed, not measured" if args.jitter is None else "given")
    for line in head:
        print(line)
    _show(found)
    for line in (*_extrapolated(found, times), *_residuals(found)):
        print(line)
    if args.out:
        _write(args.out, head, found, model)
    return EXIT_OK


def _rate(given: float | None, times: Model, setting: Setting, trained: Mapping[int, float]) -> tuple[float, str]:
    """Images per second of one GPU alone, and where the number comes from."""
    if given is not None:
        return given, "given"
    if trained:
        least = min(trained)
        whose = f"so that {least} of them are as measured" if least > 1 else "as measured"
        return times.rate_alone(setting, least, trained[least]), whose
    return ASSUMED_RATE, "assumed, not measured"


def _model(text: str) -> str:
    name = text.removeprefix("convnext-")
    if name in gradients.SHAPES:
        return name
    known = [f"convnext-{model}" for model in gradients.SHAPES]
    near = get_close_matches(text, known, n=1)
    raise UsageError(
        f"--model is {text!r}, which is none of {', '.join(known)}.",
        f"Did you mean {near[0]}?" if near else "Give one of them.",
    )


def _nodes(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise UsageError(
            f"--nodes is {text!r}; numbers of nodes are whole, at least 1, with commas between them.",
            "Write for example --nodes 1,2,4,16.",
        )
    return sorted({int(word) for word in words})


def _check(args: argparse.Namespace) -> None:
    for flag, value in (
        ("--images-per-second", args.images_per_second),
        ("--batch", args.batch),
        ("--bucket-mb", args.bucket_mb),
        ("--input-images-per-second", args.input_images_per_second),
    ):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{flag} is {value:g}.", "Give more than 0.")
    for flag, value in (("--jitter", args.jitter), ("--contention", args.contention)):
        if value is not None and not 0 <= value < 1:
            raise UsageError(f"{flag} is {value:g}, which is no share.", "Give 0 or more and less than 1, as 0.005.")


def _head(setting: Setting, rate: float, whose: str, all_reduce: str, jitter: str) -> list[str]:
    one = work(setting, rate)
    smallest, largest = (size / 1e6 for size in (min(one.buckets), max(one.buckets)))
    return [
        f"# ConvNeXt-{setting.model}: {sum(one.buckets) / 1e6:.1f} MB of fp32 gradients in {len(one.buckets)} buckets "
        f"of {smallest:.1f} to {largest:.1f} MB",
        f"# one GPU: {rate:,.0f} images/s ({whose}), {setting.batch} images a step: {duration(one.alone)}",
        f"# all-reduce: {all_reduce}; jitter {setting.jitter:.1%} ({jitter}), contention {setting.contention:.1%}",
    ]


def _extrapolated(found: Sequence[Prediction], times: Model) -> Iterator[str]:
    """Which numbers of nodes nothing but the formula speaks for."""
    counts = [f"{one.nodes:,}" for one in found if one.extrapolated]
    if not counts:
        return
    words = " and ".join(filter(None, [", ".join(counts[:-1]), counts[-1]]))
    behind = f"all-reduce was measured on at most {counted(times.most_nodes, 'node')}"
    if not times.curve:
        behind = f"the published tables have at most {times.most_nodes} nodes, and there is one figure of 248"
    yield f"# extrapolated: {words} nodes; {behind}. No routing, no other traffic and no lost node is in them."


def _residuals(found: Sequence[Prediction]) -> Iterator[str]:
    """Which measured efficiencies the wire does not explain."""
    for one in found:
        if one.measured is not None and one.efficiency - one.measured > RESIDUAL:
            points = 100 * (one.efficiency - one.measured)
            yield (
                f"# {counted(one.nodes, 'node')}: {points:.1f} points below the prediction. More than "
                f"{100 * RESIDUAL:.0f} are rarely the wire: look at train/data_wait_share, and at each node alone."
            )


def _show(found: Sequence[Prediction]) -> None:
    compared = any(one.measured is not None for one in found)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("nodes", "GPUs", "step", "all-reduce", "exposed", "images/s", "efficiency", "", "all-reduce by"):
        if heading or compared:
            table.add_column(heading or "measured", justify="left" if heading.endswith("by") else "right", no_wrap=True)
    for one in found:
        cells = [f"{one.nodes:,}", f"{one.gpus:,}", *map(duration, (one.step.seconds, one.step.communication))]
        cells += [duration(one.step.exposed), f"{one.images_per_second:,.0f}", f"{one.efficiency:.2%}"]
        cells += [f"{one.measured:.2%}" if one.measured is not None else ""] if compared else []
        table.add_row(*cells, one.all_reduce + (", extrapolated" if one.extrapolated else ""))
    tables.show(table)


def _write(folder: Path, head: Sequence[str], found: Sequence[Prediction], model: str) -> None:
    from workloads.nccl.scaling import efficiency_plot

    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"conditions": list(head), "predictions": [asdict(one) for one in found]}
    (folder / "prediction.json").write_text(json.dumps(record, indent=2) + "\n")
    points = [(one.nodes, one.efficiency, one.measured, one.extrapolated) for one in found]
    for form, picture in efficiency_plot.draw(points, f"ConvNeXt-{model}", head[1].removeprefix("# ")).items():
        (folder / f"efficiency.{form}").write_bytes(picture)
    print(f"prediction.json, efficiency.png, efficiency.svg written to {folder}")
