"""Training runs that are killed, and observations of them."""

from __future__ import annotations

INTERVAL_SECONDS = 1.0
"""Time between checkpoints in the trials: some twenty steps of the nano model."""

BASELINE_STEPS = 20
"""The baseline's interval, as Ray Train counts: about INTERVAL_SECONDS of steps."""

KILLS_PER_RUN = 2
