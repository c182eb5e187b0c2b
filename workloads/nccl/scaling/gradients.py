"""ConvNeXt's gradients in the order in which a backward pass produces them, and the buckets that DDP makes of them.

Derived from the model's shapes alone, so that a prediction needs no torch; tests compare both with the real module and
DDP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from workloads.convnext.config import STAGES

FIRST_BUCKET_BYTES = 1024**2
"""Limit of DDP's first bucket, so that the first collective starts early (torch's `_DEFAULT_FIRST_BUCKET_BYTES`)."""

BUCKET_BYTES = 25 * 1024**2
"""Limit of the others (torch's default `bucket_cap_mb`, which the trainer keeps)."""


def elements(model: str, classes: int = 1000) -> tuple[int, ...]:
    """Elements of each gradient, in the order in which they are ready.

    Args:
        model: size of ConvNeXt.
        classes: of the classifier.
    """
    widths, depths = STAGES[model]
    found = [classes, classes * widths[-1], *_affine(widths[-1])]
    stages = list(zip(widths, depths, strict=True))
    for (width, depth), (before, _) in pairwise([*reversed(stages), (0, 0)]):
        for _ in range(depth):
            found += _block(width)
        if before:
            found += [2 * 2 * before * width, width, *_affine(before)]
    return (*found, *_affine(widths[0]), 4 * 4 * 3 * widths[0], widths[0])


def _affine(width: int) -> tuple[int, int]:
    return width, width


def _block(width: int) -> Iterator[int]:
    """Layer scale, the two linear layers (bias, then weight), the norm, the depthwise convolution."""
    hidden = 4 * width
    yield from (width, width, hidden * width, hidden, hidden * width, *_affine(width), 7 * 7 * width, width)


def buckets(sizes: Sequence[int], first: int = FIRST_BUCKET_BYTES, limit: int = BUCKET_BYTES) -> tuple[int, ...]:
    """Bytes of DDP's buckets, by torch's rule: one is closed by the gradient that reaches its limit.

    Args:
        sizes: bytes of each gradient, in the order in which they are ready.
        first: limit of the first bucket.
        limit: of the others.
    """
    found, filled = [], 0
    for size in sizes:
        filled += size
        if filled >= (limit if found else first):
            found.append(filled)
            filled = 0
    return (*found, filled) if filled else tuple(found)
