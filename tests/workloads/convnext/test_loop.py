"""The training loop on one process or two gloo ranks: what it computes, survives, and says."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import resource
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import psutil
import pytest
import torch
from torch import Tensor

from tests.support import gloo
from tests.support.training import CPU, Few, Killed, Killer, Recorder, small, weights
from workloads.convnext.images.sampling import Batch, Slot
from workloads.convnext.learning import execution
from workloads.convnext.learning import model as architecture
from workloads.convnext.learning.loop import Position, Record, Training, learning_rate
from workloads.errors import UsageError, WorkloadFailedError
from workloads.nccl.definitions.collectives import Seat

TIMES = {"seconds", "train/images_per_second", "train/data_wait_share"}

EVERYTHING = {
    "accumulate": 2,
    "ema_decay": 0.9,
    "drop_path": 0.3,
    "mixup": 0.8,
    "cutmix": 1.0,
    "random_erasing": 0.5,
    "label_smoothing": 0.1,
    "clip_norm": 1.0,
}


def timeless(records: list[Record]) -> list[Record]:
    return [{name: value for name, value in record.items() if name not in TIMES} for record in records]


def test_the_learning_rate_rises_in_a_line_and_falls_along_a_cosine() -> None:
    config = small(epochs=10, warmup_epochs=2, learning_rate=1.0)
    assert learning_rate(config, 1) == pytest.approx(0.5)
    assert learning_rate(config, 2) == pytest.approx(1.0)
    assert learning_rate(config, 6) == pytest.approx((1 + 0.01) / 2)
    assert learning_rate(config, 10) == pytest.approx(0.01)
    assert learning_rate(small(warmup_epochs=1e-4, learning_rate=1.0), 0) == 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [[4], [1, 7], [2, 6], [3, 5], [1, 2, 3, 4, 5, 6, 7]])
def test_a_run_that_is_killed_and_resumed_ends_bitwise_like_one_that_was_not(
    kills: list[int], never_killed: tuple[Tensor, list[Tensor], list[Record]]
) -> None:
    config = small(batch_size=32, log_steps=1, **EVERYTHING)
    data, written = (Few(120), Few(40)), b""
    for kill in kills:
        training, killer = Training(config, *data, CPU), Killer(kill)
        if written:
            training.load(torch.load(io.BytesIO(written), weights_only=True))
        with pytest.raises(Killed):
            training.run(killer)
        written = killer.written
    training, recorder = Training(config, *data, CPU), Recorder()
    training.load(torch.load(io.BytesIO(written), weights_only=True))
    training.run(recorder)
    expected_weights, expected_average, expected_records = never_killed
    assert torch.equal(weights(training), expected_weights)
    assert all(map(torch.equal, training.state()["ema"], expected_average))
    # Epochs' records too: what was learnt before the kill counts in them.
    assert timeless(recorder.records) == [record for record in expected_records if record["step"] > kills[-1]]
    assert {record["event"] for record in recorder.records} == {"step", "epoch"}


@pytest.mark.thorough
@pytest.mark.parametrize("batches", [0, 1, 3])
def test_a_run_that_is_killed_in_an_evaluation_goes_on_with_it_and_ends_bitwise_like_one_that_was_not(
    batches: int, never_killed: tuple[Tensor, list[Tensor], list[Record]]
) -> None:
    config, data = small(batch_size=32, log_steps=1, **EVERYTHING), (Few(120), Few(40))
    killer, asked = Killer(step=4), itertools.count()

    def evaluating(training: Training) -> None:
        if next(asked) == batches:
            killer.after_step(training)

    with pytest.raises(Killed):
        Training(config, *data, CPU).run(killer, evaluating)
    training, recorder = Training(config, *data, CPU), Recorder()
    training.load(torch.load(io.BytesIO(killer.written), weights_only=True))
    assert training.position == Position(step=4, epoch=0, consumed=120)
    training.run(recorder)
    expected_weights, expected_average, expected_records = never_killed
    assert torch.equal(weights(training), expected_weights)
    assert all(map(torch.equal, training.state()["ema"], expected_average))
    left = expected_records[[record["event"] for record in expected_records].index("epoch") :]
    assert timeless(recorder.records) == left


def test_an_older_release_s_checkpoint_which_counted_nothing_is_loaded() -> None:
    config, killer = small(batch_size=32, epochs=1), Killer(step=2)
    with pytest.raises(Killed):
        Training(config, Few(128), Few(16), CPU).run(killer)
    older = torch.load(io.BytesIO(killer.written), weights_only=True)
    assert older.pop("tally")["images"] == 64
    training = Training(config, Few(128), Few(16), CPU)
    training.load(older)
    assert training.run(Recorder())["step"] == 4


def test_what_is_evaluated_are_the_averaged_weights() -> None:
    config = small(batch_size=64, epochs=1, ema_decay=0.99)
    averaged = Training(config, Few(256), Few(64), CPU)
    found = averaged.run(Recorder())

    def evaluated(trained: bool) -> float:
        plain = Training(dataclasses.replace(config, ema_decay=0.0), Few(256), Few(64), CPU)
        plain.load({**averaged.state(), "ema": []})
        if not trained:
            with torch.no_grad():
                for parameter, average in zip(plain.model.parameters(), averaged.state()["ema"], strict=True):
                    parameter.copy_(average)
        return plain.run(Recorder())["val/loss"]

    assert evaluated(trained=False) == found["val/loss"]
    assert evaluated(trained=True) != pytest.approx(found["val/loss"], rel=1e-3)


def test_gradients_are_clipped_to_the_norm_that_was_asked_for() -> None:
    def norm(limit: float) -> float:
        """Of the first step's gradients, as AdamW saw them."""
        recorder = Recorder(snapshot_step=1)
        Training(small(batch_size=64, epochs=1, clip_norm=limit), Few(64), Few(16), CPU).run(recorder)
        return float(first_moments(recorder).norm()) * 10

    unclipped = norm(0.0)
    assert norm(unclipped / 4) == pytest.approx(unclipped / 4, rel=1e-3)
    assert norm(unclipped * 4) == pytest.approx(unclipped, rel=1e-3)


@pytest.fixture(scope="module")
def never_killed() -> tuple[Tensor, list[Tensor], list[Record]]:
    training, recorder = Training(small(batch_size=32, log_steps=1, **EVERYTHING), Few(120), Few(40), CPU), Recorder()
    training.run(recorder)
    assert training.position.step == 8
    return weights(training), training.state()["ema"], timeless(recorder.records)


def test_later_steps_change_the_state_and_not_a_snapshot_of_it() -> None:
    training = Training(small(batch_size=64, ema_decay=0.5), Few(128), Few(16), CPU)
    taken = training.snapshot()
    before = weights(training).clone()
    training.run(Recorder())
    assert not torch.equal(weights(training), before)
    assert torch.equal(torch.cat([value.flatten() for value in taken["model"].values()]), before)
    assert torch.equal(torch.cat([value.flatten() for value in taken["ema"]]), before)
    assert taken["position"] == {"step": 0, "epoch": 0, "consumed": 0}
    kernel = next(value for value in taken["model"].values() if value.dim() == 4)
    assert kernel.is_contiguous(memory_format=torch.channels_last)


def test_a_finished_run_is_evaluated_and_not_trained() -> None:
    config = small(epochs=1, batch_size=64)
    first = Training(config, Few(64), Few(16), CPU)
    last = first.run(Recorder())
    recorder = Recorder()
    again = Training(config, Few(64), Few(16), CPU)
    again.load(first.state())
    assert again.run(recorder)["val/loss"] == pytest.approx(last["val/loss"])
    assert recorder.records == []


def test_a_loss_that_is_no_number_ends_the_run() -> None:
    training = Training(small(epochs=1, batch_size=32, log_steps=1), Few(64), Few(16), CPU)
    with torch.no_grad():
        next(training.model.parameters()).fill_(math.nan)
    with pytest.raises(WorkloadFailedError, match="the training loss is nan at step 1"):
        training.run(Recorder())


def test_weights_that_are_no_numbers_are_in_no_checkpoint() -> None:
    training = Training(small(ema_decay=0.9), Few(64), Few(16), CPU)
    training.snapshot()
    with torch.no_grad():
        list(training.model.parameters())[-1].fill_(math.inf)
    with pytest.raises(WorkloadFailedError, match="a weight of the model is not a number at step 0"):
        training.snapshot()


def test_a_weight_decay_that_was_changed_is_the_one_that_counts() -> None:
    before = Training(small(weight_decay=0.05), Few(64), Few(16), CPU)
    after = Training(small(weight_decay=0.5), Few(64), Few(16), CPU)
    after.load(before.state())
    assert [group["weight_decay"] for group in after.optimizer.param_groups] == [0.5, 0.0]


# Several ranks


def uneven(**changes: Any) -> tuple[Training, Recorder]:
    """50 images in steps of 21 and 21 and 8, and 37 to validate: nothing divides evenly by two ranks or parts."""
    settings = {**EVERYTHING, "clip_norm": 0.0, "epochs": 1, "batch_size": 21, "log_steps": 1, **changes}
    training, recorder = Training(small(**settings), Few(50), Few(37), CPU), Recorder(snapshot_step=1)
    training.run(recorder)
    return training, recorder


def in_two_parts_and_in_one(_: Seat) -> tuple[list[tuple[list[Record], Any, Any]], list[bool]]:
    """A rank's records, moments after a step and weights of each run; whether DDP warned, and warns of `contiguous`."""
    with strides_warned() as ours:
        runs = [uneven(accumulate=accumulate) for accumulate in (2, 1)]
    with strides_warned() as theirs:
        contiguous()
    found = [(kept.records, first_moments(kept).numpy(), weights(training).numpy()) for training, kept in runs]
    return found, [bool(ours), bool(theirs)]


@contextmanager
def strides_warned() -> Iterator[list[str]]:
    """What torch warns of strides while the block lasts, there once it has ended."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [str(one.message) for one in caught if "strides" in str(one.message)]


def contiguous() -> None:
    """Trains a model whose weights are not channels last."""
    build = architecture.build
    with mock.patch.object(
        architecture, "build", lambda *given: build(*given).to(memory_format=torch.contiguous_format)
    ):
        Training(small(epochs=1, batch_size=16), Few(32), Few(8), CPU).run(Recorder())


def first_moments(recorder: Recorder) -> Tensor:
    """AdamW's first moments after one step: a tenth of the gradient, before the sign-like update amplifies rounding."""
    states = recorder.snapshot["optimizer"]["state"]
    return torch.cat([states[key]["exp_avg"].flatten() for key in sorted(states)])


@pytest.mark.thorough
def test_two_ranks_compute_what_one_computes_although_nothing_divides_evenly() -> None:
    (first, warned), (second, warned_too) = gloo.together(2, in_two_parts_and_in_one)
    assert warned == warned_too == [False, True], "of weights that are channels last, and of such that are not"
    _, alone = uneven(accumulate=1)
    expected = first_moments(alone)
    for (records, moments, ends), (other_records, _, other_ends) in zip(first, second, strict=True):
        assert records == other_records
        assert (ends == other_ends).all()
        assert [record["event"] for record in records] == ["step", "step", "step", "epoch"]
        assert records[-1]["val/images"] == 37
        assert torch.allclose(torch.from_numpy(moments), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
        for mine_then, alone_then in zip(records, alone.records, strict=True):
            for name in ("train/loss", "learning_rate"):
                assert mine_then[name] == pytest.approx(alone_then[name], rel=1e-3), name
        assert records[-1]["val/accuracy"] == alone.records[-1]["val/accuracy"]
        assert records[-1]["val/loss"] == pytest.approx(alone.records[-1]["val/loss"], rel=1e-3)


# Execution


def test_what_a_cpu_cannot_do_is_said_once_and_changes_nothing() -> None:
    def trained(**changes: Any) -> tuple[Tensor, list[str]]:
        training, recorder = Training(small(batch_size=32, **changes), Few(64), Few(16), CPU), Recorder()
        training.run(recorder)
        return weights(training), [record["text"] for record in recorder.records if record["event"] == "note"]

    plain, said = trained()
    assert said == []
    wished, said = trained(precision="bf16", deterministic=True)
    assert said == ["precision bf16 is for GPUs; CPUs compute in fp32"]
    assert torch.equal(plain, wished)
    torch.use_deterministic_algorithms(False)


@contextmanager
def address_space(more: int) -> Iterator[None]:
    """This process may get so many bytes more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.thorough
def test_a_batch_that_does_not_fit_is_refused_in_one_sentence() -> None:
    config = small(batch_size=256, image_size=256, epochs=1)
    training = Training(config, Few(256, size=256), Few(16, size=256), CPU)
    with address_space(100 << 20), pytest.raises(UsageError) as caught:
        training.run(Recorder())
    assert str(caught.value).startswith(
        "256 images of 256 x 256 pixels at a time (a batch of 256 over 1 worker in 1 part) do not fit the memory"
    )
    assert caught.value.exit_code == 2


def test_an_error_that_is_not_about_memory_is_left_alone() -> None:
    with pytest.raises(RuntimeError, match="shapes"), execution.within_memory(small(), 1, 1):
        raise RuntimeError("shapes do not match")


@pytest.mark.thorough
def test_fewer_workers_than_the_run_is_made_for_take_the_batch_in_more_parts() -> None:
    config = small(batch_size=256, epochs=1, ema_decay=0.0)
    most: list[int] = []

    class Counted(Few):
        def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[Batch]:
            most.append(max(len(slot.indices) for slot in slots))
            return super().batches(slots, epoch)

    alone = Training(config, Counted(512), Few(16), CPU, workers=4)
    alone.run(Recorder())
    assert most == [64]
    whole = Training(config, Few(512), Few(16), CPU)
    whole.run(Recorder())
    assert alone.position == whole.position
    assert torch.allclose(weights(alone), weights(whole), atol=1e-4)
