"""Who sees which image when: shares of a batch, pairs, and no image missed or repeated however often a run stops."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn

from tests.support.training import CPU, Killed, small
from workloads.convnext.images.sampling import Batch, Draw, Slot, chance, order, slots
from workloads.convnext.learning.loop import Position, Record, Training
from workloads.convnext.learning.meter import Meter

SHARINGS = [(1, 1), (2, 1), (3, 1), (4, 1), (1, 3), (2, 2)]
"""World sizes and accumulation."""


def real(slot: Slot) -> list[int]:
    """The slot's images without padding."""
    return slot.indices[slot.weights > 0].tolist()


@pytest.mark.parametrize(("world_size", "accumulate"), SHARINGS)
@pytest.mark.parametrize("batch_size", [1, 10, 11])
def test_every_image_has_weight_one_in_exactly_one_slot_and_ranks_stay_in_step(
    world_size: int, accumulate: int, batch_size: int
) -> None:
    visit = order(103, seed=1, epoch=4)
    ranks = [slots(visit, batch_size, rank, world_size, accumulate) for rank in range(world_size)]
    steps = -(-103 // batch_size)
    assert {len(rank) for rank in ranks} == {steps * accumulate}
    lengths = {len(slot.indices) for rank in ranks for slot in rank}
    assert len(lengths) == 1
    # Dealt out by pairs, so at most one image more than an even share.
    assert max(lengths) <= -(-batch_size // (world_size * accumulate)) + 1
    for step in range(steps):
        whole = [slot for rank in ranks for slot in rank[step * accumulate : (step + 1) * accumulate]]
        seen = [image for slot in whole for image in real(slot)]
        assert sorted(seen) == sorted(visit[step * batch_size : (step + 1) * batch_size].tolist())
        assert {slot.total for slot in whole} == {len(seen)}
        assert all(slot.indices.max() < 103 for slot in whole)


@pytest.mark.parametrize(("world_size", "accumulate"), SHARINGS)
def test_the_same_images_are_pairs_however_a_batch_is_shared(world_size: int, accumulate: int) -> None:
    def pairs(world_size: int, accumulate: int) -> set[tuple[int, ...]]:
        found = set()
        for rank in range(world_size):
            for slot in slots(order(103, 0, 0), 17, rank, world_size, accumulate):
                # The last image of an odd batch stands beside its own copy, or alone at the end.
                couples = [slot.indices[at : at + 2].unique(sorted=False) for at in range(0, len(slot.indices), 2)]
                weights = [slot.weights[at : at + 2].sum() for at in range(0, len(slot.indices), 2)]
                found |= {tuple(sorted(two.tolist())) for two, weight in zip(couples, weights, strict=True) if weight}
        return found

    together = pairs(1, 1)
    assert sorted(image for pair in together for image in pair) == list(range(103))
    assert Counter(len(pair) for pair in together) == {2: 6 * 8, 1: 6 + 1}
    assert pairs(world_size, accumulate) == together


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(order(50, seed, epoch).tolist()) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(orders)) == 4
    assert order(50, 1, 1).tolist() == list(orders[-1])


def test_chance_is_even_without_pattern_and_the_same_wherever_it_is_drawn() -> None:
    indices = torch.arange(20_000)
    draws = torch.arange(len(Draw)).view(-1, 1)
    table = chance(indices, seed=7, epoch=3, draw=draws)
    assert table.shape == (len(Draw), 20_000)
    assert 0 <= table.min() < 2**18 < 2**31 - 2**18 < table.max() < 2**31
    some_images = torch.tensor([19_999, 5, 300])
    assert torch.equal(chance(some_images, 7, 3, Draw.ERASE), table[Draw.ERASE, some_images])
    # Each of the 31 bits is set in half of the draws, within six standard deviations of 20,000 coin flips.
    bits = (table[..., None] >> torch.arange(31) & 1).double()
    assert (bits.mean(1) - 0.5).abs().max() < 6 * 0.5 / 20_000**0.5
    # Neither do draws, nor the same draw of the next epoch, seed or image, follow each other.
    first = table[0]
    others = [*table[1:], chance(indices, 7, 4, 0), chance(indices, 8, 3, 0), first.roll(1)]
    for other in others:
        assert abs(torch.corrcoef(torch.stack([first, other]).double())[0, 1]) < 6 / 20_000**0.5


@dataclass(frozen=True)
class Attempt:
    """One start of the workers, up to its kill."""

    world_size: int
    batch_size: int
    accumulate: int
    save_every: int
    steps: int


def attempts(steps: int) -> some.SearchStrategy[Attempt]:
    small = some.integers(1, 6)
    return some.builds(
        Attempt, some.sampled_from([1, 2, 4]), some.integers(1, 17), small, small, some.integers(0, steps)
    )


class Numbers:
    """A split whose images are nothing but their numbers."""

    classes = ("a",)

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[Batch]:
        return (Batch(slot.indices, slot.indices, slot) for slot in slots)


class Loop(Training):
    """The trainer's own loop and position on one of the ranks, with nothing to compute; keeps what it is given."""

    def __init__(self, size: int, epochs: int, attempt: Attempt, rank: int, position: Position) -> None:
        self.config = small(epochs=epochs, batch_size=attempt.batch_size, seed=3, log_steps=1000, clip_norm=0.0)
        self.position = replace(position)
        self.rank, self.world_size, self._accumulate = rank, attempt.world_size, attempt.accumulate
        self.model = self._parallel = nn.Identity()
        self.optimizer = torch.optim.SGD([torch.zeros(1)], lr=1)
        self._train, self._val, self._device, self._meter = Numbers(size), Numbers(1), CPU, Meter(CPU)
        self._ema, self._notes, self._flops, self._peak = None, [], 0, None
        self.given: list[tuple[int, int]] = []
        self.saved = (replace(position), 0)
        self._attempt, self._done = attempt, 0

    def _learn(self, batch: Batch, meter: Meter, complete: bool) -> None:
        self.given += [(self.position.epoch, image) for image in real(batch.slot)]

    def _evaluate(self, between: object = None) -> Record:
        return {}

    def record(self, record: Record) -> None:
        """Metrics are not what is looked at."""

    def after_step(self, training: Training) -> None:
        """A save or the kill, if it is time."""
        self._done += 1
        self.look(self._done)

    def look(self, done: int) -> None:
        if done % self._attempt.save_every == 0 or self.position.epoch == self.config.epochs:
            self.saved = (replace(self.position), len(self.given))
        if done == self._attempt.steps:
            raise Killed


def looped(position: Position, size: int, epochs: int, attempt: Attempt) -> tuple[Position, list[tuple[int, int]]]:
    """Run from the last save to the kill: the newest save, which is all that is left, and the images of all ranks that
    led to it."""
    saves: list[Position] = []
    learnt: list[tuple[int, int]] = []
    for rank in range(attempt.world_size if attempt.steps else 0):
        loop = Loop(size, epochs, attempt, rank, position)
        with contextlib.suppress(Killed):
            # An epoch's last step is complete when its evaluation is, in which it may be saved, and killed.
            loop.run(loop, lambda training, loop=loop: loop.look(loop._done + 1))
        saved, count = loop.saved
        saves.append(saved)
        learnt += loop.given[:count]
    assert all(saved == saves[0] for saved in saves)
    return (saves or [position])[0], learnt


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(
    size=some.integers(1, 40), epochs=some.integers(1, 3), kills=some.lists(attempts(30), max_size=8), last=attempts(0)
)
def test_no_image_is_missed_or_repeated_over_any_schedule_of_kills_and_world_sizes(
    size: int, epochs: int, kills: list[Attempt], last: Attempt
) -> None:
    position, learnt = Position(), list[tuple[int, int]]()
    for attempt in [*kills, replace(last, steps=-1)]:
        if position.epoch < epochs:
            position, more = looped(position, size, epochs, attempt)
            learnt += more
    assert Counter(learnt) == {(epoch, image): 1 for epoch in range(epochs) for image in range(size)}
