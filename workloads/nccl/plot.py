"""Bus bandwidth over message size as a picture. A limit is drawn only for a machine type whose limit is published."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from workloads.nccl.bandwidth import Row, format_size

_OUT_OF_PLACE = "#1f77b4"
_IN_PLACE = "#d95f02"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A bandwidth that a machine cannot pass, or that others have measured on it."""

    gigabytes_per_second: float
    label: str


REFERENCES: dict[tuple[str, bool], Reference] = {
    # Compute Engine documentation, "GPU machine types" and "Networking and GPU machines": eight NICs with 3,200 Gb/s in
    # all between the GPUs of a3-ultragpu-8g.
    ("a3-ultragpu-8g", True): Reference(gigabytes_per_second=400, label="400 GB/s: eight 400 Gb/s NICs"),
    # NVIDIA/nccl-tests and NVIDIA/nccl issue threads: all-reduce of eight H200 through NVSwitch (NVLS), largest sizes.
    ("a3-ultragpu-8g", False): Reference(
        gigabytes_per_second=480, label="480 GB/s: eight H200 over NVSwitch, as published"
    ),
}
"""By machine type and whether the ranks are on several nodes."""


def draw(op: str, title: str, rows: Sequence[Row], reference: Reference | None) -> bytes:
    """The plot as a PNG.

    Args:
        op: the collective's name.
        title: where it was measured.
        rows: at least one.
        reference: a line to compare with.
    """
    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    sizes = [row.size for row in rows]
    # A single rank moves nothing over a bus, so its bus bandwidth is 0 and its own speed is what there is to show.
    alone = all(row.factor == 0 for row in rows)
    value = Row.algbw if alone else Row.busbw
    axes.plot(sizes, [value(row, row.out_of_place) for row in rows], "o-", color=_OUT_OF_PLACE, label="out of place")
    axes.plot(sizes, [value(row, row.in_place) for row in rows], "s-", color=_IN_PLACE, label="in place")
    if reference is not None:
        axes.axhline(reference.gigabytes_per_second, color="#555555", linestyle="--", label=reference.label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(
        sizes[:: max(1, len(sizes) // 8)], [format_size(size) for size in sizes[:: max(1, len(sizes) // 8)]]
    )
    axes.minorticks_off()
    axes.set_xlabel("message size per rank")
    axes.set_ylabel(f"{'algorithm' if alone else 'bus'} bandwidth (GB/s, 10⁹ bytes)")
    axes.set_title(f"{op}\n{title}", fontsize=11)
    axes.grid(visible=True, which="both", color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()
