"""The learning rate over a run: a linear warm-up, then a cosine."""

from __future__ import annotations

import math

from workloads.convnext.config import TrainConfig

FINAL_LEARNING_RATE = 0.01
"""Where the cosine ends, as a share of the peak."""


def learning_rate(config: TrainConfig, epochs_done: float) -> float:
    """Linear warm-up, then a cosine to one hundredth of the peak, by epochs done (a fraction within an epoch)."""
    if epochs_done < config.warmup_epochs:
        return config.learning_rate * max(epochs_done, 1e-3) / config.warmup_epochs
    span = max(config.epochs - config.warmup_epochs, 1e-9)
    fraction = min((epochs_done - config.warmup_epochs) / span, 1.0)
    share = FINAL_LEARNING_RATE + (1 - FINAL_LEARNING_RATE) * (1 + math.cos(math.pi * fraction)) / 2
    return config.learning_rate * share
