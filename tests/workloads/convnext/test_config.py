"""A training run's configuration: recipes, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.training import small
from workloads.convnext import config as configuration
from workloads.convnext.config import TrainConfig
from workloads.errors import UsageError


def test_every_recipe_is_a_complete_configuration_that_survives_plain_data() -> None:
    for name, recipe in configuration.RECIPES.items():
        assert recipe().recipe == name
        assert TrainConfig(**recipe().to_dict()) == recipe()


def test_the_imagenet_recipe_is_the_papers() -> None:
    """Table 5 of arXiv 2201.03545 for ConvNeXt-B; its magnitude is 9 of timm's 10, 27 of torchvision's 30."""
    paper = {
        "epochs": 300,
        "batch_size": 4096,
        "learning_rate": 4e-3,
        "warmup_epochs": 20,
        "weight_decay": 0.05,
        "randaugment": 27,
        "mixup": 0.8,
        "cutmix": 1.0,
        "random_erasing": 0.25,
        "label_smoothing": 0.1,
        "drop_path": 0.5,
        "ema_decay": 0.9999,
        "clip_norm": 0.0,
        "image_size": 224,
        "model": "base",
    }
    recipe = configuration.imagenet_a3_ultra().to_dict()
    assert {name: recipe[name] for name in paper} == paper


def test_an_unknown_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"there is no recipe 'digits_labtop'.*Did you mean digits_laptop\?") as caught:
        configuration.from_recipe("digits_labtop")
    assert caught.value.exit_code == 2


def test_wrong_values_are_all_named_at_once_with_what_is_allowed() -> None:
    with pytest.raises(
        UsageError, match=r"model is 'huge' but must be one of nano, tiny.*epochs is 0 but must be at least 1"
    ):
        configuration.from_recipe("digits_laptop", model="huge", epochs=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("precision", "fp16"),
        ("accumulate", 0),
        ("accumulate", 257),
        ("randaugment", 31),
        ("mixup", -0.1),
        ("cutmix", 11.0),
        ("random_erasing", 1.5),
        ("checkpoint_seconds", -1.0),
        ("failure_hours", 0.0),
    ],
)
def test_a_value_that_no_run_can_have_is_refused(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"^{field} is {value!r} but must be"):
        dataclasses.replace(small(), **{field: value})
