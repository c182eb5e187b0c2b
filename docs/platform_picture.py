"""Draws the picture of the platform in the README: `python -m docs.platform_picture` writes docs/platform.svg.

The texts stand here, next to where they are drawn, and a test holds them to the program's resources, so that the
picture cannot show what is not built.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, SOFT, LINE = "#1f2933", "#52606d", "#9aa5b1"
BLUE, GREEN, AMBER, VIOLET, WHITE = "#e3eefb", "#e4f4ea", "#fdf1d8", "#efe9fb", "#ffffff"


@dataclass(frozen=True)
class Box:
    """One rounded box: lower left corner, size (in the 160 x 100 units of the canvas), title, lines below it."""

    x: float
    y: float
    width: float
    height: float
    title: str
    lines: tuple[str, ...] = ()
    fill: str = WHITE
    title_size: float = 9.5

    def draw(self, axes: Axes) -> None:
        axes.add_patch(
            FancyBboxPatch(
                (self.x, self.y),
                self.width,
                self.height,
                boxstyle="round,pad=0,rounding_size=1.1",
                facecolor=self.fill,
                edgecolor=LINE,
                linewidth=1.0,
            )
        )
        top = self.y + self.height - 1.3
        axes.text(self.x + 1.4, top, self.title, va="top", fontsize=self.title_size, color=INK, weight="bold")
        for row, line in enumerate(self.lines):
            axes.text(self.x + 1.4, top - 3.4 - 2.65 * row, line, va="top", fontsize=7.6, color=SOFT)


BOXES = (
    Box(1, 1, 26, 98, "Your machine", fill=WHITE, title_size=11),
    Box(
        3,
        73,
        22,
        20,
        "pulumi up / destroy",
        (
            "one program, one stack file",
            "Pulumi.dev.yaml",
            "the settings refuse",
            "what Google would refuse",
            "before anything is made",
        ),
        BLUE,
    ),
    Box(
        3,
        47,
        22,
        22,
        "workloads submit",
        (
            "train: ConvNeXt, Ray Train",
            "bench: NCCL all-reduce",
            "any other command",
            "Jobs API + token",
            "follows by status,",
            "not by log stream",
        ),
        GREEN,
    ),
    Box(
        3,
        28,
        22,
        15,
        "make dashboard",
        ("port-forward to the head,", "token required,", "never a public address"),
        VIOLET,
    ),
    Box(
        3,
        4,
        22,
        20,
        "make demo",
        (
            "the same program on an",
            "emulated Google Cloud:",
            "real Pulumi engine,",
            "real Kubernetes API,",
            "real KubeRay, real Ray",
        ),
        AMBER,
    ),
    Box(31, 1, 128, 98, "Google Cloud project", fill=WHITE, title_size=11),
    Box(33, 28, 88, 65, "GKE cluster: private nodes, Dataplane V2, multi-networking, Workload Identity", fill=BLUE),
    Box(
        35,
        68,
        27,
        19,
        "system pool (autoscaled)",
        (
            "Ray head: 0 CPUs, resource 'driver'",
            "Ray autoscaler v2",
            "KubeRay operator, Kueue",
            "disruption budget, default-deny",
            "NetworkPolicy",
        ),
    ),
    Box(35, 49, 27, 15, "CPU pool (0..n)", ("CPU worker group", "preprocessing, jobs", "that need no GPU")),
    Box(35, 31, 27, 15, "ComputeClass h200", ("rules = whole node pools,", "in ladder order;", "no active migration")),
    Box(
        65,
        31,
        54,
        56,
        "GPU pools: a3-ultragpu-8g, 0 nodes at rest",
        (
            "one pool per ladder entry, tried in this order:",
            "reservation  >  flex-start  >  Spot;  queued: all of a job's nodes or none",
            "teams share the queue: nodes of their own, lent while unused",
        ),
        GREEN,
    ),
    Box(
        67,
        55,
        50,
        19,
        "Ray GPU worker = one whole node",
        (
            "8 x H200 141 GB,  32 local SSDs as /scratch",
            "gIB (NCCL for RDMA) required: no gIB, no ray start",
            "/data   data bucket through Cloud Storage FUSE, cached",
            "/bucket runs bucket, no cache: results, logs",
            "SIGTERM: Ray drains it before it goes",
        ),
    ),
    Box(
        67,
        34,
        50,
        18,
        "10 network interfaces",
        (
            "eth0           primary VPC: nodes, pods, services",
            "eth1           gVNIC VPC (Network gvnic-1)",
            "eth2 .. eth9   RDMA VPC (Networks rdma-0 .. rdma-7)",
            "in NIC order, from one list",
        ),
    ),
    Box(
        33,
        4,
        27,
        21,
        "primary VPC",
        ("MTU 8896, Cloud NAT + router", "node, pod, service ranges", "firewall: own ranges only"),
        AMBER,
    ),
    Box(63, 4, 27, 21, "gVNIC VPC", ("MTU 8896", "1 subnet", "firewall: own range only"), AMBER),
    Box(
        93,
        4,
        28,
        21,
        "RDMA VPC",
        ("<zone>-vpc-roce profile", "MTU 8896, 8 subnets", "no firewall, NAT or router:", "the profile refuses them"),
        AMBER,
    ),
    Box(
        124,
        72,
        33,
        21,
        "Cloud Storage",
        (
            "data bucket: read by jobs",
            "runs bucket: checkpoints, results",
            "(hierarchical namespace, a folder per team)",
            "kept on destroy, adopted by up",
        ),
        VIOLET,
    ),
    Box(
        124,
        49,
        33,
        20,
        "Artifact Registry",
        (
            "Docker and Python,",
            "each local + remote + virtual",
            "clean-up policies",
            "Cloud Build private pool fills it",
        ),
        VIOLET,
    ),
    Box(
        124,
        28,
        33,
        18,
        "Secret Manager",
        ("W&B key: the value never passes", "through Pulumi unless asked", "read by workload identity"),
        VIOLET,
    ),
    Box(
        124,
        4,
        33,
        21,
        "Identity",
        (
            "node account: logs, metrics, pull",
            "workloads: principal:// grants on",
            "one bucket, one secret;",
            "no project-wide workload role",
        ),
        VIOLET,
    ),
)

ARROWS = (
    ((25, 83), (33, 83)),
    ((25, 60), (35, 74)),
    ((25, 36), (35, 70)),
    ((62, 40), (65, 44)),
    ((121, 80), (124, 80)),
    ((121, 58), (124, 58)),
    ((121, 38), (124, 38)),
    ((72, 34), (50, 25)),
    ((85, 34), (77, 25)),
    ((100, 34), (107, 25)),
)


def draw(path: Path) -> None:
    """Write the picture as SVG."""
    with plt.rc_context({"font.family": "DejaVu Sans", "svg.hashsalt": "oasis", "svg.fonttype": "path"}):
        figure, axes = plt.subplots(figsize=(16, 10))
        axes.set_xlim(0, 160)
        axes.set_ylim(0, 100)
        axes.axis("off")
        for box in BOXES:
            box.draw(axes)
        for start, end in ARROWS:
            axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=SOFT, linewidth=1.1))
        figure.subplots_adjust(left=0.005, right=0.995, bottom=0.005, top=0.995)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_name("platform.svg"))
