"""Alterations of training images: keyed by image and epoch alone, with targets that say what is in the picture."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torchvision.transforms import v2

from tests.support.training import CPU
from workloads.convnext import config as configuration
from workloads.convnext.config import TrainConfig
from workloads.convnext.images.augment import (
    DEVIATION,
    MEAN,
    QUANTILES,
    DeviceAugmentation,
    beta_quantiles,
)
from workloads.convnext.images.framing import Framing
from workloads.convnext.images.randaugment import RandAugment
from workloads.convnext.images.sampling import order, slots

RECIPE = {"label_smoothing": 0.1, "mixup": 0.8, "cutmix": 1.0, "random_erasing": 0.25}
"""The ConvNeXt paper's, arXiv 2201.03545, table 5."""


def small(**changes: Any) -> TrainConfig:
    """No alteration but the named."""
    values = {"augmentation": "none", "label_smoothing": 0.0, "mixup": 0.0, **changes}
    return dataclasses.replace(configuration.digits_laptop(), **values)


def black_and_white(count: int, side: int) -> tuple[Tensor, Tensor]:
    """Class 0 is black, class 1 white: how much of each is in a picture can be measured."""
    labels = torch.arange(count) % 2
    images = (labels * 255).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, side, side)
    return images, labels


def whiteness(pixels: Tensor) -> Tensor:
    """Normalised pixels back to 0 for black and 1 for white, [N, 3, H, W]."""
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return (pixels * deviation + mean) / 255


# On the device


def test_nothing_asked_for_is_normalisation_alone_as_torchvision_does_it() -> None:
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    augment = DeviceAugmentation(small(), 3, CPU)
    pixels, targets = augment(images, torch.tensor([0, 2, 1, 2]), torch.arange(4), 0)
    expected = v2.functional.normalize(images.float(), list(MEAN), list(DEVIATION))
    torch.testing.assert_close(pixels, expected)
    assert torch.equal(pixels, augment.normalise(images))
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    assert targets.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]]


def test_smoothed_targets_give_the_loss_that_torch_gives_with_label_smoothing() -> None:
    labels, logits = torch.tensor([0, 2, 1, 2]), torch.randn(4, 3)
    augment = DeviceAugmentation(small(label_smoothing=0.1), 3, CPU)
    _, targets = augment(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), labels, torch.arange(4), 0)
    ours = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    theirs = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_a_target_says_how_much_of_each_class_is_in_the_mixed_picture(mixup: float, cutmix: float) -> None:
    images, labels = black_and_white(2000, side=32)
    augment = DeviceAugmentation(small(mixup=mixup, cutmix=cutmix), 2, CPU)
    pixels, targets = augment(images, labels, torch.arange(2000), epoch=1)
    white = whiteness(pixels)
    torch.testing.assert_close(white.mean((1, 2, 3)), targets[:, 1], atol=1e-5, rtol=0)
    torch.testing.assert_close(targets.sum(1), torch.ones(2000))
    # Pairs mix with each other alike: what one has of the other, the other has of it.
    torch.testing.assert_close(targets[0::2, 0], targets[1::2, 1])
    flat = (white.amax((1, 2, 3)) - white.amin((1, 2, 3))) < 1e-4
    mixed = (targets[:, 1] - labels).abs() > 1e-3
    if not cutmix:
        assert flat.all()
        # Beta(a, a) has mean 1/2 and variance 1 / (4 (2 a + 1)); 1,000 pairs have drawn.
        share = targets[0::2, 0]
        assert share.mean() == pytest.approx(0.5, abs=0.05)
        assert share.var() == pytest.approx(1 / (4 * (2 * mixup + 1)), rel=0.1)
    elif not mixup:
        assert (((white < 1e-4) | (white > 1 - 1e-4)).all(dim=1)).all()
        # The border cuts a box of share u = s^2 down to (s - s^2/4)^2 on average; with u even over 0 to 1, to 0.321.
        assert (targets[:, 1] - labels).abs().mean() == pytest.approx(1 / 2 - 1 / 5 + 1 / 48, abs=0.03)
    else:
        assert 0.4 < flat[mixed].float().mean() < 0.6


@pytest.mark.parametrize("parameter", [0.1, 0.8, 1.0, 5.0])
def test_the_shares_have_the_beta_distributions_moments(parameter: float) -> None:
    table = beta_quantiles(parameter, CPU).double()
    assert len(table) == QUANTILES
    assert (table.diff() >= 0).all()
    assert table.mean() == pytest.approx(0.5, abs=1e-4)
    assert table.var() == pytest.approx(1 / (4 * (2 * parameter + 1)), rel=1e-3)


@pytest.mark.thorough
def test_erasing_takes_one_rectangle_of_the_asked_size_from_the_asked_share_of_images() -> None:
    images = torch.full((2000, 3, 64, 64), 255, dtype=torch.uint8)
    augment = DeviceAugmentation(small(random_erasing=0.25), 2, CPU)
    pixels, targets = augment(images, torch.zeros(2000, dtype=torch.int64), torch.arange(2000), epoch=0)
    assert (targets[:, 0] == 1).all()
    gone = (pixels == 0).all(1)  # the mean colour, which no white pixel has
    erased = gone.any(2).any(1)
    assert erased.float().mean() == pytest.approx(0.25, abs=0.03)
    masks = gone[erased]
    rows, columns, area = masks.any(2).sum(1), masks.any(1).sum(1), masks.sum((1, 2))
    assert torch.equal(area, rows * columns)
    assert (area > 0.015 * 64 * 64).all()
    assert (area < 0.35 * 64 * 64).all()
    assert 0.25 < (rows / columns).min() < 0.4
    assert 2.5 < (rows / columns).max() < 4
    # Every part of the picture is as likely to go, but for the border that fewer rectangles reach.
    often = gone[erased].float().mean(0)
    assert often[16:48, 16:48].min() > 0.05
    assert pixels[~erased].unique().numel() == 3


def test_a_step_is_altered_alike_whatever_the_number_of_workers_and_parts() -> None:
    config = small(**RECIPE, seed=5)
    images = torch.randint(0, 256, (61, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 7, (61,))
    augment = DeviceAugmentation(config, 7, CPU)

    def altered(world_size: int, accumulate: int, epoch: int) -> dict[int, tuple[Tensor, Tensor]]:
        found = {}
        for rank in range(world_size):
            for slot in slots(order(61, 5, epoch), 23, rank, world_size, accumulate):
                pixels, targets = augment(images[slot.indices], labels[slot.indices], slot.indices, epoch)
                for row in range(int(slot.weights.sum())):
                    found[int(slot.indices[row])] = (pixels[row], targets[row])
        return found

    alone = altered(1, 1, epoch=2)
    assert sorted(alone) == list(range(61))
    for world_size, accumulate in [(2, 1), (4, 1), (1, 3), (2, 2)]:
        for image, (pixels, targets) in altered(world_size, accumulate, epoch=2).items():
            assert torch.equal(pixels, alone[image][0]), (world_size, accumulate, image)
            assert torch.equal(targets, alone[image][1]), (world_size, accumulate, image)
    other_epoch = altered(1, 1, epoch=3)
    assert sum(torch.equal(other_epoch[image][0], alone[image][0]) for image in alone) < 10


class Sending(TorchFunctionMode):
    """Refuses what waits for a GPU's queue: a copy that may block, or a tensor made there of the host's values."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if function in (torch.tensor, torch.as_tensor):
            assert given.get("device") is None, f"{function} sends {args} to the device"
        if function is Tensor.to and args[0].device != torch.device("meta") and torch.device("meta") in args:
            assert given.get("non_blocking"), f"{args} is sent to the device and waited for"
        return function(*args, **given)


def test_the_device_is_never_waited_for() -> None:
    # A tensor of the meta device has no values: whatever looked at one to decide would fail.
    meta = torch.device("meta")
    augment = DeviceAugmentation(small(**RECIPE, augmentation="crop-flip", randaugment=27), 10, meta)
    images = torch.empty(90, 3, 32, 32, dtype=torch.uint8, device=meta)
    labels = torch.empty(90, dtype=torch.int64, device=meta)
    with Sending():
        pixels, targets = augment(images, labels, torch.arange(90), epoch=0)
    assert (pixels.shape, targets.shape) == ((90, 3, 32, 32), (90, 10))


# What moves


def noise(count: int, side: int) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)


@pytest.mark.thorough
@pytest.mark.parametrize("magnitude", [1, 9, 14, 27, 30])
@pytest.mark.parametrize("side", [32, 224])
def test_randaugment_has_torchvisions_operations(magnitude: int, side: int) -> None:
    picture = noise(1, side)
    fill = [round(level) for level in MEAN]
    theirs = v2.RandAugment(num_ops=1, magnitude=magnitude, interpolation=v2.InterpolationMode.BILINEAR, fill=fill)
    torch.manual_seed(0)
    # 500 draws of 28 equally likely operations.
    every = torch.stack([theirs(picture[0]) for _ in range(500)]).unique(dim=0)
    ours = RandAugment(magnitude, side, fill, CPU)(picture.expand(28, -1, -1, -1), [torch.arange(28)]).unique(dim=0)
    assert len(ours) >= len(every) >= 17
    # Share of the pixels that differ by more than a rounding: none but on the edge of what a move uncovers.
    apart = torch.stack([((every.int() - one.int()).abs() > 1).float().mean((1, 2, 3)) for one in ours])
    edge = 2.5 / side
    assert apart.amin(0).max() < edge and apart.amin(1).max() < edge
    assert (apart.amin(0) == 0).sum() >= 11


def test_images_of_a_batch_draw_their_operations_for_themselves_one_after_the_other() -> None:
    images, first, second = noise(50, 32), torch.randperm(50), torch.randperm(50)
    augment = RandAugment(9, 32, [0, 0, 0], CPU)
    whole = augment(images, [first, second])
    for number in range(50):
        mine = slice(number, number + 1)
        once = augment(images[mine], [first[mine]])
        assert torch.equal(augment(once, [second[mine]])[0], whole[number])
    assert not torch.equal(whole, images)


MOVING = [{"augmentation": "crop-flip"}, {"augmentation": "shift"}, {"randaugment": 9}, {"randaugment": 30}]


@pytest.mark.parametrize("changes", MOVING, ids=str)
def test_an_image_is_moved_by_itself_and_the_epoch_alone_whichever_batch_it_falls_into(changes: dict[str, Any]) -> None:
    images, labels = noise(32, 32), torch.zeros(32, dtype=torch.int64)
    augment = DeviceAugmentation(small(seed=3, **changes), 1, CPU)
    whole, _ = augment(images, labels, torch.arange(32), epoch=5)
    torch.rand(100)  # whatever else draws meanwhile
    for slot in (cut for rank in (0, 1) for cut in slots(torch.randperm(32), 8, rank, 2)):
        part, _ = augment(images[slot.indices], labels[slot.indices], slot.indices, epoch=5)
        assert torch.equal(part, whole[slot.indices])
    assert not torch.equal(whole, augment(images, labels, torch.arange(32), epoch=6)[0])
    assert not torch.equal(
        whole, DeviceAugmentation(small(seed=4, **changes), 1, CPU)(images, labels, torch.arange(32), 5)[0]
    )


def test_a_stronger_randaugment_changes_more() -> None:
    gradient = torch.arange(64, dtype=torch.uint8).mul(4).expand(100, 3, 64, 64)

    def change(magnitude: int) -> float:
        augment = DeviceAugmentation(small(image_size=64, randaugment=magnitude), 1, CPU)
        altered, _ = augment(gradient, torch.zeros(100, dtype=torch.int64), torch.arange(100), 0)
        return float((altered - augment.normalise(gradient)).abs().mean())

    assert change(0) == 0
    assert change(3) < change(15) < change(30)


# What is seen of a picture


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 700), (375, 500), (500, 375)])
def test_a_random_part_lies_in_the_picture_follows_its_seed_and_leaves_the_callers_random_numbers(
    height: int, width: int
) -> None:
    framing = Framing(small(resident=False, augmentation="crop-flip"), train=True)
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    parts = [framing(height, width, seed) for seed in range(300)]
    assert torch.equal(torch.rand(3), expected)
    assert parts == [framing(height, width, seed) for seed in range(300)]
    for top, left, tall, wide in parts:
        assert min(top, left) >= 0 and tall >= 1 and wide >= 1 and top + tall <= height and left + wide <= width
    if min(height, width) > 300:
        # 8 to 100 % of the picture, evenly, but for those that fit nowhere.
        shares = torch.tensor([tall * wide / (height * width) for _, _, tall, wide in parts])
        assert 0.07 < shares.min() < 0.12 and 0.42 < shares.mean() < 0.56 and shares.max() > 0.9


def test_validation_sees_the_middle_and_what_is_neither_cropped_nor_random_the_whole() -> None:
    assert Framing(small(augmentation="crop-flip", resident=False), train=False)(400, 800, 7) == (25, 225, 350, 350)
    assert Framing(small(augmentation="crop-flip", resident=True), train=True)(400, 800, 7) == (25, 225, 350, 350)
    assert Framing(small(augmentation="shift", resident=False), train=True)(400, 800, 7) == (0, 0, 400, 800)
