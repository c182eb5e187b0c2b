"""Times a training step of our loop beside loops over timm's and torchvision's APIs: `python -m benchmarks.step_time`.

The three take turns step by step in one process, on the same images, so that other load on the machine affects all
alike. Each does what its documented ConvNeXt recipe does between one batch of its loader and the next; `bare` leaves
out mixing and erasing, which the recipes set differently. Results go to benchmarks/step_time.json; a ratio above 1 is
time we save.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision

# Imported from where they are defined: the packages above re-export them invisibly to a type checker.
from timm.data.loader import PrefetchLoader
from timm.data.mixup import Mixup
from timm.loss.cross_entropy import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.optim._optim_factory import create_optimizer_v2
from timm.scheduler.scheduler_factory import create_scheduler_v2
from timm.utils.metrics import AverageMeter
from timm.utils.model_ema import ModelEmaV3
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.transforms import v2

from benchmarks.harness import command
from benchmarks.harness.figures import Record, median_and_range, say, today
from benchmarks.harness.training import CLASSES, EPOCH_STEPS, EnoughError, Prepared, finished, first_device, observe
from workloads.convnext import config as configuration
from workloads.convnext.config import STAGES, Model, TrainConfig
from workloads.convnext.images.augment import DEVIATION, MEAN
from workloads.convnext.learning.loop import Training

RESULTS = Path(__file__).with_suffix(".json")

OURS = "oasis"
DROP_PATH = 0.1
LABEL_SMOOTHING = 0.1
WARM_UP_STEPS = 3


@dataclasses.dataclass(frozen=True)
class LoopWork:
    """The computation that each of the three loops performs."""

    config: TrainConfig
    """Model, sizes and seed, and our loop's augmentation."""
    recipe: bool
    """Whether each library's mixing and erasing is used."""
    data: Prepared
    """The decoded batches."""
    device: torch.device
    """Where the loops run."""


def timm_model(work: LoopWork) -> nn.Module:
    """timm's ConvNeXt of the same widths and depths."""
    widths, depths = STAGES[work.config.model]
    model = timm.create_model(
        "convnext_tiny", depths=depths, dims=widths, num_classes=CLASSES, drop_path_rate=DROP_PATH
    )
    return model.to(work.device).to(memory_format=torch.channels_last)


def timm_loop(work: LoopWork) -> Iterator[None]:
    """timm's train.py with the ConvNeXt paper's settings: one step per item."""
    config, model = work.config, timm_model(work)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=config.learning_rate, weight_decay=config.weight_decay)
    ema = ModelEmaV3(model, decay=config.ema_decay)
    scheduler, _ = create_scheduler_v2(optimizer, num_epochs=300, warmup_epochs=20, updates_per_epoch=EPOCH_STEPS)
    assert scheduler is not None
    loss_function = SoftTargetCrossEntropy() if work.recipe else LabelSmoothingCrossEntropy(LABEL_SMOOTHING)
    mix = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=LABEL_SMOOTHING, num_classes=CLASSES)
    batches: Any = work.data  # the prefetcher only iterates over a DataLoader
    loader = PrefetchLoader(
        batches,
        mean=tuple(level / 255 for level in MEAN),
        std=tuple(level / 255 for level in DEVIATION),
        device=work.device,
        re_prob=0.25 if work.recipe else 0.0,
        re_mode="pixel",
    )
    model.train()
    losses = AverageMeter()
    for number, (pixels, labels) in enumerate(loader, start=1):
        images, targets = mix(pixels, labels) if work.recipe else (pixels, labels)
        images = images.contiguous(memory_format=torch.channels_last)
        loss = loss_function(model(images), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model, step=number)
        losses.update(loss.item(), len(images))
        scheduler.step_update(num_updates=number, metric=losses.avg)
        yield


def torchvision_model(work: LoopWork) -> nn.Module:
    """torchvision's, which its reference training leaves in the default layout."""
    widths, depths = STAGES[work.config.model]
    stages = [CNBlockConfig(*stage) for stage in zip(widths, (*widths[1:], None), depths, strict=True)]
    return ConvNeXt(stages, stochastic_depth_prob=DROP_PATH, num_classes=CLASSES).to(work.device)


def torchvision_loop(work: LoopWork) -> Iterator[None]:
    """torchvision's references/classification/train.py with its ConvNeXt recipe: one step per item."""
    config, model = work.config, torchvision_model(work)
    norms = [
        parameter for module in model.modules() if isinstance(module, nn.LayerNorm) for parameter in module.parameters()
    ]
    known = {id(parameter) for parameter in norms}
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    groups = [{"params": norms, "weight_decay": 0.0}, {"params": others, "weight_decay": config.weight_decay}]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=config.weight_decay)
    criterion = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    ema = AveragedModel(model, device=work.device, avg_fn=get_ema_avg_fn(config.ema_decay), use_buffers=True)
    scale = v2.ToDtype(torch.float32, scale=True)
    normalise = v2.Normalize([level / 255 for level in MEAN], [level / 255 for level in DEVIATION])
    erase = v2.RandomErasing(p=0.1)
    mix = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=CLASSES), v2.CutMix(alpha=1.0, num_classes=CLASSES)])
    model.train()
    for number, batch in enumerate(work.data):
        images, targets = (part.to(work.device) for part in batch)
        labels, images = targets, normalise(scale(images))
        if work.recipe:
            images, targets = mix(torch.stack([erase(image) for image in images]), targets)
        output = model(images)
        loss = criterion(output, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 32 == 0:
            ema.update_parameters(model)
        correct = output.detach().topk(5).indices == labels[:, None]
        _ = loss.item(), correct[:, :1].sum().item(), correct.sum().item()
        yield


class Turns:
    """Observes our loop, and gives every other loop its turn after each step."""

    def __init__(self, others: dict[str, Iterator[None]], steps: int, device: torch.device) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in (OURS, *others)}
        self._others = others
        self._steps = steps
        self._device = device
        self._begun = 0.0

    def record(self, record: Record) -> None:
        """Records are made, as in a run, and dropped."""

    def after_step(self, training: Training) -> None:
        if self._begun:
            self.seconds[OURS].append(self._now() - self._begun)
        for name, steps in self._others.items():
            begun = self._now()
            next(steps)
            self.seconds[name].append(self._now() - begun)
        if len(self.seconds[OURS]) >= self._steps + WARM_UP_STEPS:
            raise EnoughError
        self._begun = self._now()

    def _now(self) -> float:
        # On a CPU, its own time over all threads, which other programs on the machine hardly change.
        return finished(self._device) if self._device.type == "cuda" else time.process_time()


def measured(work: LoopWork, steps: int) -> dict[str, float]:
    """Median seconds of a step, by contender, with everything built anew."""
    turns = Turns({"timm": timm_loop(work), "torchvision": torchvision_loop(work)}, steps, work.device)
    observe(Training(work.config, work.data, work.data, work.device), turns)
    return {name: statistics.median(taken[-steps:]) for name, taken in turns.seconds.items()}


def compared(rounds: Sequence[dict[str, float]]) -> Record:
    """Seconds and ratios over the rounds: median, least, most."""
    seconds = {name: [one[name] for one in rounds] for name in rounds[0]}
    ratios = {name: [one[name] / one[OURS] for one in rounds] for name in rounds[0] if name != OURS}
    return {
        "seconds per step": {name: median_and_range(values, digits=4) for name, values in seconds.items()},
        "ratio to ours": {name: median_and_range(values, digits=4) for name, values in ratios.items()},
        "rounds": len(rounds),
    }


def configured(model: Model, image_size: int, batch_size: int, recipe: bool) -> TrainConfig:
    """Our ImageNet recipe at this size, in fp32 and eager like the other two.

    Without RandAugment, which theirs do in the loader: `benchmarks.loader` compares it.
    """
    changes: dict[str, Any] = {} if recipe else {"mixup": 0.0, "cutmix": 0.0, "random_erasing": 0.0}
    return dataclasses.replace(
        configuration.imagenet_a3_ultra(),
        model=model,
        image_size=image_size,
        batch_size=batch_size,
        drop_path=DROP_PATH,
        randaugment=0,
        precision="fp32",
        compile=False,
        **changes,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and keep."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--model", choices=configuration.MODELS, default="nano", help="of ConvNeXt (%(default)s)")
    parser.add_argument("--image-size", type=int, default=64, help="pixels of a side (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images of a step (%(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="timed in each round (10)")
    parser.add_argument("--rounds", type=int, default=7, help="each with everything built anew (7)")
    parser.add_argument("--threads", type=int, default=1, help="of torch on a CPU (1)")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    device = first_device()
    figures: Record = {
        "date": today(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {given.threads} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__}
        | {"torchvision": torchvision.__version__, "timm": timm.__version__},
        "clock": "wall" if device.type == "cuda" else "the process's CPU time",
        "work": f"ConvNeXt-{given.model}, {given.batch_size} images of {given.image_size} pixels, fp32",
    }
    for name, recipe in (("bare", False), ("recipe", True)):
        config = configured(given.model, given.image_size, given.batch_size, recipe)
        figures[name] = compared(
            [
                measured(LoopWork(config, recipe, Prepared(config, device), device), given.steps)
                for _ in range(given.rounds)
            ]
        )
        say(json.dumps({name: figures[name]}, indent=1))
    return command.conclude(given.results, figures)


if __name__ == "__main__":
    command.run(main)
