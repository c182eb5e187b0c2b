"""From a model, a batch and all-reduce's times to efficiency on any number of nodes, beside what was trained. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workloads.errors import UsageError
from workloads.nccl.scaling import gradients, scaling
from workloads.nccl.scaling.observed import Measured
from workloads.nccl.scaling.published import TABLED_NODES
from workloads.nccl.scaling.scaling import Fabric, Step, Work
from workloads.reporting.progress import duration

GRADIENT_BYTES = 4
"""Weights and so gradients are fp32, whatever the matrix products are in."""

OPTIMIZER_BYTES, MEMORY_BANDWIDTH = 48, 4.3e12
"""Bytes that fused AdamW and the averaged weights move for each parameter; an H200's memory, bytes per second."""

ASSUMED_JITTER = 0.02
"""Jitter where none is given; nobody has measured it on H200. Two published figures, each as if the slowest rank were
all of the loss: ResNet-50 in mixed precision keeps 7.74 to 7.95 of 8 V100s' speed (NVIDIA/DeepLearningExamples, READMEs
of 2019, `weak scaling`), which is 0.4 to 2.4 %; 64,000 GPUs vary by 9 % (arXiv 2510.15596), which is 2.1 %."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is to be trained."""

    model: str
    """One of `gradients.SHAPES`."""
    batch: int
    """Images per GPU and step."""
    bucket_bytes: int
    """Limit of every bucket; 0 is DDP's default, which has a smaller first one."""
    contention: float
    """By which share all-reduce slows the backward pass."""
    jitter: float
    """Standard deviation of a rank's step, as a share of it, over ranks and steps."""
    input_rate: float
    """Images per second that a GPU's share of the loaders can feed; 0 for any."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What is to be expected of a number of nodes."""

    nodes: int
    gpus: int
    step: Step
    efficiency: float
    """Predicted."""
    images_per_second: float
    all_reduce: str
    """Where its time comes from: NCCL's likely algorithm for the largest bucket, or the measured number of nodes."""
    measured: float | None
    """Efficiency as trained; None where that was not measured."""
    extrapolated: bool
    """Whether no all-reduce on as many nodes is behind it, neither measured nor published."""


def work(setting: Setting, rate: float) -> Work:
    """What one GPU does in a step.

    Args:
        setting: what is trained.
        rate: images per second of one GPU alone.

    Raises:
        UsageError: the optimizer alone takes longer than a step.
    """
    counted = gradients.elements(setting.model)
    alone = setting.batch / rate
    optimizer = sum(counted) * OPTIMIZER_BYTES / MEMORY_BANDWIDTH
    if alone <= optimizer:
        raise UsageError(
            f"{setting.batch} images at {rate:g} a second are a step of {duration(alone)}, and the optimizer alone "
            f"takes {duration(optimizer)}.",
            "Give a larger --batch or fewer --images-per-second.",
        )
    sizes = [elements * GRADIENT_BYTES for elements in counted]
    limit = setting.bucket_bytes
    return Work(
        buckets=gradients.buckets(sizes, limit, limit) if limit else gradients.buckets(sizes),
        # Of three products per weight, one is the forward pass's and two are the backward pass's.
        forward=(alone - optimizer) / 3,
        backward=(alone - optimizer) * 2 / 3,
        optimizer=optimizer,
        contention=setting.contention,
        jitter=setting.jitter * alone,
        input=setting.batch / setting.input_rate if setting.input_rate else 0.0,
    )


@dataclass(frozen=True, kw_only=True)
class Model:
    """All-reduce's times, measured or from the constants."""

    fabric: Fabric
    curve: Measured | None

    def all_reduce(self, size: int, nodes: int) -> float:
        """Seconds of so many bytes."""
        return (
            self.curve.seconds(size, nodes) if self.curve else scaling.seconds("all_reduce", size, nodes, self.fabric)
        )

    def step(self, of: Work, nodes: int) -> Step:
        """One step on all GPUs of so many nodes."""
        return scaling.step(of, nodes, self.fabric.gpus_per_node, self.all_reduce)

    def nodes_of(self, workers: int) -> int:
        """Nodes that so many workers fill; 0 where they do not fill whole ones."""
        return workers // self.fabric.gpus_per_node if workers % self.fabric.gpus_per_node == 0 else 0

    @property
    def most_nodes(self) -> int:
        """Up to which number of nodes all-reduce is known."""
        return max(self.curve.nodes) if self.curve else TABLED_NODES

    def origin(self, size: int, nodes: int) -> str:
        """Where the time of an all-reduce of so many bytes comes from."""
        if self.curve:
            start = self.curve.nearest(nodes)
            return "measured" if start == nodes else f"formula, from {start} measured"
        times = scaling.by_algorithm("all_reduce", size, nodes, self.fabric)
        fastest = min(times, key=times.__getitem__)
        return "nvlstree" if fastest == "nvls" and nodes > 1 else fastest

    def rate_alone(self, setting: Setting, workers: int, together: float) -> float:
        """Images per second that one GPU alone must have for a run of several to be as it was measured.

        Args:
            setting: what was trained.
            workers: of the run; where they do not fill whole nodes, each is taken for one alone.
            together: images per second of all of them.
        """
        nodes, each = self.nodes_of(workers), together / workers
        rate = each
        for _ in range(5 if nodes else 0):  # each round is some hundred times closer
            one = work(setting, rate)
            rate = each / scaling.efficiency(one, self.step(one, nodes))
        return rate

    def predict(self, setting: Setting, nodes: int, rate: float, trained: Mapping[int, float]) -> Prediction:
        """Predict one number of nodes.

        Args:
            setting: what is trained.
            nodes: how many.
            rate: images per second of one GPU alone.
            trained: images per second as measured, by number of workers.
        """
        one, gpus = work(setting, rate), nodes * self.fabric.gpus_per_node
        found = self.step(one, nodes)
        return Prediction(
            nodes=nodes,
            gpus=gpus,
            step=found,
            efficiency=scaling.efficiency(one, found),
            images_per_second=gpus * setting.batch / found.seconds,
            all_reduce=self.origin(max(one.buckets), nodes),
            measured=trained[gpus] / gpus * one.alone / setting.batch if gpus in trained else None,
            extrapolated=nodes > self.most_nodes,
        )
