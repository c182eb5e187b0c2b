"""`python -m workloads bench predict`: the scaling efficiency of training on more nodes. Needs neither torch nor Ray.

The command first, then the arithmetic: from a model, a batch and all-reduce's times to the efficiency on any number of
nodes, beside measured training runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from workloads import tables
from workloads.convnext.config import STAGES
from workloads.errors import EXIT_OK, UsageError
from workloads.nccl.scaling import gradients, measured_all_reduce, scaling
from workloads.nccl.scaling.measured_all_reduce import AllReduce
from workloads.nccl.scaling.scaling import PredictedStep, Work
from workloads.reporting.progress import counted, duration

DESCRIPTION = """\
How fast ConvNeXt would train on more nodes: the gradients' buckets, the time of an all-reduce for each, the part that
the backward pass does not hide, and the slowest of so many ranks. Needs no GPU."""

EPILOG = """\
Without --from, all-reduce takes what published tables of such nodes say (benchmarks/scaling.json has how far off each
is). Without --measured and --images-per-second, one GPU's speed is an assumption; without --jitter, that is another.
Beyond the nodes that were measured or published, all-reduce is extrapolated. The output says each.

efficiency: images per second of a GPU among so many, over those of a single GPU. Where a measured one is more than two
points lower than the predicted one, look at the input pipeline and at single slow nodes before the wire. Runs that
are compared must have had --batch images per GPU each: the trainer's batch_size is that of all workers together.
"""

BASE_RATE = 2687.0
"""Images per second of ConvNeXt-Base on one H200 by itself: 256 images a step, bf16, compiled, measured once on
2026-11-26 (docs/figures.md, "On one H200")."""

RESIDUAL = 0.02
"""A measured efficiency that is lower than the predicted one by more than this is pointed out."""

_GRADIENT_BYTES = 4
"""Weights and so gradients are fp32, whatever the matrix products are in."""

_OPTIMIZER_BYTES, _MEMORY_BANDWIDTH = 48, 4.3e12
"""Bytes that fused AdamW and the averaged weights move for each parameter; an H200's memory, bytes per second."""

ASSUMED_JITTER = 0.02
"""Jitter where none is given; nobody has measured it on H200. Two published figures, each as if the slowest rank were
all of the loss: ResNet-50 in mixed precision keeps 7.74 to 7.95 of 8 V100s' speed (NVIDIA/DeepLearningExamples, READMEs
of 2019, `weak scaling`), which is 0.4 to 2.4 %; 64,000 GPUs vary by 9 % (arXiv 2510.15596), which is 2.1 %."""


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
        "--images-per-second",
        type=float,
        metavar="X",
        help=f"speed of one GPU alone (as measured; else {BASE_RATE:g} for base)",
    )
    parser.add_argument("--batch", type=int, default=256, metavar="N", help="images per GPU and step (%(default)s)")
    parser.add_argument(
        "--bucket-mb", type=float, metavar="MIB", help="limit of DDP's buckets (25, the first 1, as the trainer has)"
    )
    parser.add_argument(
        "--jitter",
        type=float,
        metavar="SHARE",
        help=f"standard deviation of a rank's step, as a share ({ASSUMED_JITTER:g}, an assumption)",
    )
    parser.add_argument(
        "--contention",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share by which all-reduce slows the backward pass (%(default)g)",
    )
    parser.add_argument(
        "--input-images-per-second", type=float, metavar="X", help="speed at which its loaders can feed a GPU (any)"
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
    times = measured_all_reduce.all_reduce(args.results) if args.results else AllReduce()
    trained = measured_all_reduce.images_per_second(args.measured)
    setting = PlannedTraining(
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
    found = [predict(times, setting, count, rate, trained) for count in counts]
    measured = ", ".join(map(str, sorted(times.curves)))
    said = f"{args.results}, {measured} nodes" if measured else "published constants"
    head = _head(setting, rate, whose, said, "assumed, not measured" if args.jitter is None else "given")
    for line in head:
        print(line)
    _show(found)
    for line in (*_extrapolated(found, times), *_residuals(found)):
        print(line)
    if args.out:
        _write(args.out, head, found, model)
    return EXIT_OK


def _rate(
    given: float | None, times: AllReduce, setting: PlannedTraining, trained: Mapping[int, float]
) -> tuple[float, str]:
    """Images per second of one GPU alone, and where the number comes from."""
    if given is not None:
        return given, "given"
    if trained:
        least = min(trained)
        whose = f"so that {least} of them are as measured" if least > 1 else "as measured"
        return rate_alone(times, setting, least, trained[least]), whose
    if setting.model != "base":
        raise UsageError(
            f"How fast one GPU trains convnext-{setting.model} is not known: only convnext-base was measured.",
            "Give --images-per-second, or --measured with the history of a run.",
        )
    return BASE_RATE, "as one H200 trained ConvNeXt-Base by itself, 256 images a step"


def _model(text: str) -> str:
    name = text.removeprefix("convnext-")
    if name in STAGES:
        return name
    known = [f"convnext-{model}" for model in STAGES]
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


@dataclass(frozen=True, kw_only=True)
class PlannedTraining:
    """The training to be predicted."""

    model: str
    """Size of ConvNeXt, of `STAGES`."""
    batch: int
    """Images per GPU and step."""
    bucket_bytes: int = 0
    """Limit of every bucket; 0 is DDP's default, which has a smaller first one."""
    contention: float = 0.0
    """By which share all-reduce slows the backward pass."""
    jitter: float = 0.0
    """Standard deviation of a rank's step, as a share of it, over ranks and steps."""
    input_rate: float = 0.0
    """Images per second that a GPU's share of the loaders can feed; 0 for any."""

    def work(self, rate: float) -> Work:
        """One GPU's work in a step.

        Args:
            rate: images per second of one GPU alone.

        Raises:
            UsageError: the optimizer alone takes longer than a step.
        """
        weights = gradients.elements(self.model)
        alone = self.batch / rate
        optimizer = sum(weights) * _OPTIMIZER_BYTES / _MEMORY_BANDWIDTH
        if alone <= optimizer:
            raise UsageError(
                f"{self.batch} images at {rate:g} a second are a step of {duration(alone)}, and the optimizer alone "
                f"takes {duration(optimizer)}.",
                "Give a larger --batch or fewer --images-per-second.",
            )
        sizes = [count * _GRADIENT_BYTES for count in weights]
        limit = self.bucket_bytes
        return Work(
            buckets=gradients.buckets(sizes, limit, limit) if limit else gradients.buckets(sizes),
            # Of three products per weight, one is the forward pass's and two are the backward pass's.
            forward=(alone - optimizer) / 3,
            backward=(alone - optimizer) * 2 / 3,
            optimizer=optimizer,
            contention=self.contention,
            jitter=self.jitter * alone,
            input=self.batch / self.input_rate if self.input_rate else 0.0,
        )


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for a number of nodes."""

    nodes: int
    gpus: int
    step: PredictedStep
    efficiency: float
    """Predicted."""
    images_per_second: float
    all_reduce: str
    """Where its time comes from: NCCL's likely algorithm for the largest bucket, or the measured number of nodes."""
    measured: float | None
    """Efficiency as trained; None where that was not measured."""
    extrapolated: bool
    """Whether no all-reduce on as many nodes is behind it, neither measured nor published."""


def rate_alone(times: AllReduce, setting: PlannedTraining, workers: int, together: float) -> float:
    """Images per second that one GPU alone must have for a run of several to be as it was measured.

    Args:
        times: of all-reduce.
        setting: what was trained.
        workers: of the run; where they do not fill whole nodes, each is taken for one alone.
        together: images per second of all of them.
    """
    nodes, each = times.nodes_of(workers), together / workers
    rate = each
    for _ in range(5 if nodes else 0):  # each round is some hundred times closer
        one = setting.work(rate)
        rate = each / scaling.efficiency(one, times.step(one, nodes))
    return rate


def predict(
    times: AllReduce, setting: PlannedTraining, nodes: int, rate: float, trained: Mapping[int, float]
) -> Prediction:
    """Predict one number of nodes.

    Args:
        times: of all-reduce.
        setting: what is trained.
        nodes: how many.
        rate: images per second of one GPU alone.
        trained: images per second as measured, by number of workers.
    """
    one, gpus = setting.work(rate), nodes * times.fabric.gpus_per_node
    found = times.step(one, nodes)
    return Prediction(
        nodes=nodes,
        gpus=gpus,
        step=found,
        efficiency=scaling.efficiency(one, found),
        images_per_second=gpus * setting.batch / found.seconds,
        all_reduce=times.origin(max(one.buckets), nodes),
        measured=trained[gpus] / gpus * one.alone / setting.batch if gpus in trained else None,
        extrapolated=nodes > times.most_nodes,
    )


def _head(setting: PlannedTraining, rate: float, whose: str, all_reduce: str, jitter: str) -> list[str]:
    one = setting.work(rate)
    smallest, largest = (size / 1e6 for size in (min(one.buckets), max(one.buckets)))
    return [
        f"# ConvNeXt-{setting.model}: {sum(one.buckets) / 1e6:.1f} MB of fp32 gradients in {len(one.buckets)} buckets "
        f"of {smallest:.1f} to {largest:.1f} MB",
        f"# one GPU: {rate:,.0f} images/s ({whose}), {setting.batch} images a step: {duration(one.alone)}",
        f"# all-reduce: {all_reduce}; jitter {setting.jitter:.1%} ({jitter}), contention {setting.contention:.1%}",
    ]


def _extrapolated(found: Sequence[Prediction], times: AllReduce) -> Iterator[str]:
    """Numbers of nodes that only the formula speaks for."""
    counts = [f"{one.nodes:,}" for one in found if one.extrapolated]
    if not counts:
        return
    words = " and ".join(filter(None, [", ".join(counts[:-1]), counts[-1]]))
    behind = f"all-reduce was measured on at most {counted(times.most_nodes, 'node')}"
    if not times.curves:
        behind = f"the published tables have at most {times.most_nodes} nodes, and there is one figure of 248"
    yield f"# extrapolated: {words} nodes; {behind}. Routing, other traffic and lost nodes are not in them."


def _residuals(found: Sequence[Prediction]) -> Iterator[str]:
    """Measured efficiencies that the wire does not explain."""
    for one in found:
        if one.measured is not None and one.efficiency - one.measured > RESIDUAL:
            points = 100 * (one.efficiency - one.measured)
            yield (
                f"# {counted(one.nodes, 'node')}: {points:.1f} points below the prediction. More than "
                f"{100 * RESIDUAL:.0f} are rarely the wire: look at train/data_wait_share, and at each node alone."
            )


def _show(found: Sequence[Prediction]) -> None:
    compared = any(one.measured is not None for one in found)
    table = tables.plain()
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
    from workloads.nccl.results import plot

    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"conditions": list(head), "predictions": [asdict(one) for one in found]}
    (folder / "prediction.json").write_text(json.dumps(record, indent=2) + "\n")
    points = [(one.nodes, one.efficiency, one.measured, one.extrapolated) for one in found]
    for form, picture in plot.draw_efficiency(points, f"ConvNeXt-{model}", head[1].removeprefix("# ")).items():
        (folder / f"efficiency.{form}").write_bytes(picture)
    print(f"prediction.json, efficiency.png, efficiency.svg written to {folder}")
