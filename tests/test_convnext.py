"""The trainer's torch half: configuration, data, model and loop, on one process or two gloo ranks, without Ray."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from workloads import process_group
from workloads.convnext import config as configuration
from workloads.convnext.config import TrainConfig
from workloads.convnext.data import ResidentImages, sources
from workloads.convnext.loop import Record, Training, learning_rate
from workloads.convnext.model import build
from workloads.convnext.sampling import order, slots
from workloads.errors import DataIntegrityError, UsageError, WorkloadFailedError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """As a worker has it; two threads on two busy cores wait for each other."""
    torch.set_num_threads(1)


def small(**changes: Any) -> TrainConfig:
    """A configuration that trains in a second."""
    values = {"data": "synthetic", "epochs": 2, "batch_size": 256, "log_steps": 2, "warmup_epochs": 0, **changes}
    return dataclasses.replace(configuration.digits_laptop(), **values)


class Recorder:
    """Keeps the records, and the state at one step."""

    def __init__(self, snapshot_step: int | None = None) -> None:
        self.records: list[Record] = []
        self.snapshot: dict[str, Any] = {}
        self._step = snapshot_step

    def record(self, record: Record) -> None:
        self.records.append(record)

    def after_step(self, training: Training) -> None:
        if training.position.step == self._step and not self.snapshot:
            state = training.state()
            self.snapshot = {
                "model": {name: value.clone() for name, value in state["model"].items()},
                "optimizer": {
                    "state": {
                        key: {k: v.clone() for k, v in s.items()} for key, s in state["optimizer"]["state"].items()
                    },
                    "param_groups": state["optimizer"]["param_groups"],
                },
                "ema": [value.clone() for value in state["ema"]],
                "position": dict(state["position"]),
            }


def image_folder(root: Path, counts: dict[str, dict[str, int]]) -> Path:
    """`counts` is split -> class -> images."""
    for split, classes in counts.items():
        for name, count in classes.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                picture = Image.new("RGB", (40, 36), (10 * number, 200, 30))
                picture.save(root / split / name / f"{number}.png")
    return root


# Configuration


def test_every_recipe_is_a_complete_configuration_that_survives_plain_data() -> None:
    for name, recipe in configuration.RECIPES.items():
        assert recipe().recipe == name
        assert TrainConfig(**recipe().to_dict()) == recipe()


def test_an_unknown_recipe_is_answered_with_the_nearest_and_a_wrong_value_with_what_is_allowed() -> None:
    with pytest.raises(UsageError, match=r"there is no recipe 'digits_labtop'.*Did you mean digits_laptop\?") as caught:
        configuration.from_recipe("digits_labtop")
    assert caught.value.exit_code == 2
    with pytest.raises(
        UsageError, match=r"model is 'huge' but must be one of nano, tiny.*epochs is 0 but must be at least 1"
    ):
        configuration.from_recipe("digits_laptop", model="huge", epochs=0)


# Sampling


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_image_has_weight_one_on_exactly_one_rank_and_ranks_stay_in_step(world_size: int) -> None:
    visit = order(103, seed=1, epoch=4)
    shares = [slots(visit, 10, rank, world_size) for rank in range(world_size)]
    assert {len(share) for share in shares} == {11}
    assert {len(slot.indices) for share in shares for slot in share} == {math.ceil(10 / world_size)}
    for step in zip(*shares, strict=True):
        assert sum(float(slot.weights.sum()) for slot in step) == step[0].total
    seen = [int(i) for share in shares for slot in share for i, w in zip(slot.indices, slot.weights, strict=True) if w]
    assert sorted(seen) == list(range(103))


def test_an_image_is_altered_alike_whichever_batch_it_falls_into() -> None:
    images = torch.randint(0, 256, (32, 3, 32, 32), dtype=torch.uint8)
    source = ResidentImages(images, torch.zeros(32, dtype=torch.int64), ["a"], "crop-flip", seed=3)
    visit = torch.arange(32)
    whole = next(source.batches(slots(visit, 32, 0, 1), epoch=5)).images
    parts = [batch.images for rank in (0, 1) for batch in source.batches(slots(visit, 8, rank, 2), epoch=5)]
    indices = [slot.indices for rank in (0, 1) for slot in slots(visit, 8, rank, 2)]
    assert torch.equal(torch.cat(parts), whole[torch.cat(indices)])
    assert not torch.equal(whole, next(source.batches(slots(visit, 32, 0, 1), epoch=6)).images)


# Data folders


@pytest.mark.parametrize("resident", [True, False])
def test_a_folder_gives_its_images_and_labels_resident_or_streamed(tmp_path: Path, resident: bool) -> None:
    root = image_folder(tmp_path, {"train": {"cat": 5, "dog": 3}, "val": {"dog": 2}})
    train, val = sources(small(batch_size=8, resident=resident, augmentation="none"), root, CPU)
    batch = next(train.batches(slots(torch.arange(8), 8, 0, 1), 0))
    assert batch.images.shape == (8, 3, 32, 32)
    assert batch.images.dtype == torch.uint8
    assert batch.labels.tolist() == [0] * 5 + [1] * 3
    assert val.classes == train.classes == ("cat", "dog")
    assert next(val.batches(slots(torch.arange(2), 2, 0, 1), 0)).labels.tolist() == [1, 1]


def test_a_streamed_image_is_cropped_alike_in_any_worker_process_and_otherwise_in_another_epoch(tmp_path: Path) -> None:
    root = image_folder(tmp_path, {"train": {"a": 6}, "val": {"a": 1}})
    for number in range(6):
        Image.effect_noise((40, 36), 90).convert("RGB").save(root / "train" / "a" / f"{number}.png")

    def crops(workers: int, epoch: int) -> torch.Tensor:
        config = small(batch_size=4, resident=False, augmentation="crop-flip", loader_workers=workers)
        train, _ = sources(config, root, CPU)
        return torch.cat([batch.images for batch in train.batches(slots(torch.arange(6), 4, 0, 1), epoch)])

    assert torch.equal(crops(0, epoch=1), crops(2, epoch=1))
    assert not torch.equal(crops(0, epoch=1), crops(0, epoch=2))


def test_what_is_wrong_with_a_folder_is_named_with_its_path(tmp_path: Path) -> None:
    def refusal(root: Path, kind: type[Exception], **changes: Any) -> str:
        with pytest.raises(kind) as caught:
            sources(small(batch_size=4, **changes), root, CPU)
        return str(caught.value)

    assert f"the data path {tmp_path / 'none'} does not exist" in refusal(tmp_path / "none", UsageError)
    (tmp_path / "empty").mkdir()
    assert "holds no folder 'train'" in refusal(tmp_path / "empty", UsageError)
    (tmp_path / "bare" / "train").mkdir(parents=True)
    assert "holds no classes" in refusal(tmp_path / "bare", UsageError)
    bare_class = image_folder(tmp_path / "c", {"train": {"cat": 3, "dog": 0}, "val": {"cat": 1}})
    assert "class 'dog' has no images in" in refusal(bare_class, DataIntegrityError)
    stranger = image_folder(tmp_path / "s", {"train": {"cat": 4}, "val": {"cow": 1}})
    assert "classes that train/ lacks: cow" in refusal(stranger, DataIntegrityError)
    few = image_folder(tmp_path / "f", {"train": {"cat": 3}, "val": {"cat": 1}})
    assert "batch_size is 4, but synthetic has 3 training images" in refusal(few, UsageError)


@pytest.mark.parametrize("content", [b"", b"no image at all"])
@pytest.mark.parametrize("resident", [True, False])
def test_an_image_that_does_not_decode_is_named(tmp_path: Path, content: bytes, resident: bool) -> None:
    root = image_folder(tmp_path, {"train": {"a": 4}, "val": {"a": 1}})
    torn = root / "train" / "a" / "2.png"
    torn.write_bytes(content or torn.read_bytes()[:60])
    with pytest.raises(DataIntegrityError, match=f"{torn} cannot be decoded") as caught:
        train, _ = sources(small(batch_size=4, resident=resident), root, CPU)
        list(train.batches(slots(torch.arange(4), 4, 0, 1), 0))
    assert caught.value.exit_code == 6


# Model and schedule


@pytest.mark.parametrize(
    ("variant", "parameters"),
    [("tiny", 28_589_128), ("small", 50_223_688), ("base", 88_591_464), ("large", 197_767_336)],
)
def test_the_variants_have_the_parameters_that_torchvision_publishes(variant: Any, parameters: int) -> None:
    with torch.device("meta"):
        model = build(variant, classes=1000, drop_path=0.1, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_the_learning_rate_rises_in_a_line_and_falls_along_a_cosine() -> None:
    config = small(epochs=10, warmup_epochs=2, learning_rate=1.0)
    assert learning_rate(config, 1) == pytest.approx(0.5)
    assert learning_rate(config, 2) == pytest.approx(1.0)
    assert learning_rate(config, 6) == pytest.approx((1 + 0.01) / 2)
    assert learning_rate(config, 10) == pytest.approx(0.01)


# Loop


def test_a_run_learns_and_one_that_resumes_mid_epoch_ends_bitwise_alike() -> None:
    config = small(ema_decay=0.9, drop_path=0.1)
    data = sources(config, None, CPU)
    through = Recorder(snapshot_step=2)
    whole = Training(config, *data, CPU)
    last = whole.run(through)
    assert last["val/accuracy"] > 0.9
    assert [record["event"] for record in through.records].count("epoch") == 2
    assert through.snapshot["position"] == {"step": 2, "epoch": 0, "consumed": 512}

    again, tail = Training(config, *data, CPU), Recorder()
    again.load(through.snapshot)
    again.run(tail)
    times = {"seconds", "train/images_per_second", "train/data_wait_share"}
    expected, got = ({k: v for k, v in r.records[-1].items() if k not in times} for r in (through, tail))
    assert got == expected
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_a_finished_run_is_evaluated_and_not_trained() -> None:
    config = small(epochs=1, batch_size=1024)
    data = sources(config, None, CPU)
    first = Training(config, *data, CPU)
    last = first.run(Recorder())
    recorder = Recorder()
    again = Training(config, *data, CPU)
    again.load(first.state())
    assert again.run(recorder)["val/loss"] == pytest.approx(last["val/loss"])
    assert recorder.records == []


def test_a_loss_that_is_no_number_ends_the_run() -> None:
    config = small(epochs=1, log_steps=1)
    training = Training(config, *sources(config, None, CPU), CPU)
    with torch.no_grad():
        next(training.model.parameters()).fill_(math.nan)
    with pytest.raises(WorkloadFailedError, match="the training loss is nan at step 1"):
        training.run(Recorder())


def _rank(rank: int, meeting: Any, results: Any) -> None:
    torch.set_num_threads(1)
    listener = process_group.listen("127.0.0.1") if rank == 0 else None
    if listener:
        for _ in range(2):
            meeting.put(listener.getsockname()[1])
    process_group.join(rank, 2, "127.0.0.1", meeting.get(timeout=60), listener, timedelta(seconds=60), CPU)
    # 1024 images in batches of 300: uneven over ranks and in the last batch; 256 to validate, in one batch.
    config = small(batch_size=300, epochs=1, clip_norm=0.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training = Training(config, *sources(config, None, CPU), CPU)
        recorder = Recorder()
        training.run(recorder)
    weights = torch.cat([parameter.detach().flatten() for parameter in training.model.parameters()])
    results.put((rank, recorder.records[-1], weights.numpy(), [str(warning.message) for warning in caught]))
    process_group.leave()


def test_two_ranks_compute_what_one_computes_although_nothing_divides_evenly() -> None:
    context = multiprocessing.get_context("spawn")
    meeting, results = context.Queue(), context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, meeting, results)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    answers = sorted((results.get(timeout=120) for _ in ranks), key=lambda answer: answer[0])
    for process in ranks:
        process.join(30)
    (_, first, weights, warned), (_, second, other_weights, _) = answers
    assert (weights == other_weights).all()
    assert first == second
    assert not [message for message in warned if "strides" in message]

    config = small(batch_size=300, epochs=1, clip_norm=0.0)
    recorder = Recorder()
    alone = Training(config, *sources(config, None, CPU), CPU)
    alone.run(recorder)
    assert first["val/images"] == 256
    for name in ("train/loss", "train/accuracy", "val/loss", "val/accuracy"):
        assert first[name] == pytest.approx(recorder.records[-1][name], rel=2e-2), name


def test_padding_does_not_count_in_the_evaluation() -> None:
    def evaluated(batch_size: int) -> Record:
        config = small(batch_size=batch_size)
        training = Training(config, *sources(config, None, CPU), CPU)
        training.position.epoch = config.epochs
        return training.run(Recorder())

    in_one_batch, padded = evaluated(256), evaluated(100)
    assert padded["val/images"] == in_one_batch["val/images"] == 256
    assert padded["val/loss"] == pytest.approx(in_one_batch["val/loss"], rel=1e-5)
    assert padded["val/accuracy"] == in_one_batch["val/accuracy"]
