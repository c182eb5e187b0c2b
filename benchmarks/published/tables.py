"""Published tables of collectives on nodes of eight GPUs, as data for fitting and testing the scaling model.

Figures are quoted as printed, so times and bandwidths have the digits of their source. Sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 1024, 1024**2, 1024**3


@dataclass(frozen=True, kw_only=True)
class Table:
    """One published measurement."""

    name: str
    op: str = "all_reduce"
    nodes: int
    seconds: dict[int, float]
    """Time of a call by size; out of place if both were printed."""
    algorithms: tuple[str, ...]
    """Algorithms among which NCCL could choose, by the source's words or settings: names of `scaling.ALGORITHMS`."""
    source: str
    """Public source, and what was measured there."""


def _times(first: int, microseconds: str) -> dict[int, float]:
    """Rows of nccl-tests: sizes doubling from the first, each with its time."""
    return {first << step: float(time) / 1e6 for step, time in enumerate(microseconds.split())}


def _bandwidths(first: int, factor: float, busbw: str) -> dict[int, float]:
    """Rows that were printed as bus bandwidth in GB/s, sizes doubling from the first."""
    return {first << step: (first << step) * factor / (float(value) * 1e9) for step, value in enumerate(busbw.split())}


def _one(size: int, factor: float, busbw: float) -> dict[int, float]:
    return {size: size * factor / (busbw * 1e9)}


RING, ANY, ONE_NODE = ("ring",), ("ring", "tree", "nvls"), ("ring", "nvls")
_EIGHT, _SIXTEEN, _THIRTY_TWO = 2 * 7 / 8, 2 * 15 / 16, 2 * 31 / 32

GKE_ALL_GATHER = Table(
    name="GKE, RoCE with gIB, 2 nodes, all_gather",
    op="all_gather",
    nodes=2,
    seconds=_times(
        KIB,
        "43.34 42.80 43.10 44.48 46.17 47.93 48.31 50.06 50.99 54.63 63.77 84.46 94.15 107.9 140.4 152.6 236.2 415.7 "
        "742.9 1412.5 2767.0 5429.5 10757 21395",
    ),
    algorithms=RING,
    source="github.com/esaaren/verl-on-gke README (70b01d6): NCCL 2.26.6; Spot B200 or H200, which of them is not said",
)
AZURE_NVSWITCH = Table(
    name="Azure ND H200 v5, 1 node, all_reduce",
    nodes=1,
    seconds=_bandwidths(
        KIB,
        _EIGHT,
        "0.06 0.12 0.23 0.47 0.93 1.84 3.72 7.39 14.75 29.38 52.96 88.78 138.44 181.94 240.41 300.91 368.11 412.45 "
        "432.24 442.72 467.58 472.57 477.41 479.98",
    ),
    algorithms=ONE_NODE,
    source="github.com/Azure/AI-benchmarking-guide ND_H200_v5_results.md (7f20e5f): NCCL 2.20.5, in place",
)

_ML_ENGINEERING = "github.com/stas00/ml-engineering network/README.md (744d01e)"

TESTS: tuple[Table, ...] = (
    Table(
        name="GKE A3 Ultra (H200), RoCE with gIB, 2 nodes, all_gather",
        op="all_gather",
        nodes=2,
        seconds=_times(
            KIB,
            "28.70 28.05 28.39 31.44 31.61 32.81 34.77 34.65 39.47 42.75 54.70 69.52 77.41 87.98 117.6 177.2 277.8 "
            "493.7 876.1 1580.2 3126.8 6218.0 12400 24739",
        ),
        algorithms=RING,
        source="github.com/skypilot-org/skypilot examples/gcp_gpu_direct_tcpx/README.md (088eebc): NCCL 2.26.6",
    ),
    Table(
        name="GKE, documentation's sample, 2 nodes, all_gather",
        op="all_gather",
        nodes=2,
        seconds=_times(
            KIB,
            "54.07 55.46 55.59 56.05 57.08 57.49 59.20 59.58 63.87 64.83 79.74 78.41 83.21 94.35 122.9 184.2 294.7 "
            "495.4 877.5 1589.8 3105.7 6161.7 12305 24489",
        ),
        algorithms=RING,
        source="github.com/GoogleCloudPlatform/cluster-toolkit: the guides to A3 Ultra (00fbae7) and A4 print the same",
    ),
    Table(
        name="H200, 1 node, all_reduce, blocking",
        nodes=1,
        seconds=_bandwidths(
            32 * KIB,
            _EIGHT,
            "1.44 2.93 5.73 11.74 23.94 39.93 64.53 107.16 155.53 219.89 275.84 346.51 401.93 436.15 450.29 463.58 "
            "469.17 473.10 477.45 482.26",
        ),
        algorithms=ONE_NODE,
        source=f"{_ML_ENGINEERING}: all_reduce_bench.py, NCCL 2.27.7",
    ),
    Table(
        name="H200, 2 nodes, all_reduce, NCCL's choice",
        nodes=2,
        seconds=_times(
            KIB,
            "45.06 43.84 43.51 47.64 53.65 64.93 70.32 81.24 63.59 80.78 76.86 86.37 106.13 149.76 304.32 276.88 "
            "461.01 742.13 1275.21 2327.12 4388.55 8497.37 16715.2 33169.3 66326.9",
        ),
        algorithms=ANY,
        source="a public guide to Spectrum-X on OpenShift, Validate Spectrum-X Topology: 8x 400G RoCE, NCCL 2.30.4",
    ),
    Table(
        name="H200, 2 nodes, all_reduce of int8, which has no NVLS",
        nodes=2,
        seconds={10 * GIB: 51702.1e-6, 20 * GIB: 103274e-6, 40 * GIB: 206424e-6},
        algorithms=("ring", "tree"),
        source="the same guide",
    ),
    Table(
        name="AWS p5en (H200, EFA), 4 nodes, all_reduce, ring",
        nodes=4,
        seconds=_one(4 * GIB, _THIRTY_TWO, 364.65),
        algorithms=RING,
        source=f"{_ML_ENGINEERING}: NCCL 2.27.7, NCCL_ALGO=allreduce:ring",
    ),
    Table(
        name="AWS p5en (H200, EFA), 4 nodes, all_reduce, NVLSTree",
        nodes=4,
        seconds=_one(4 * GIB, _THIRTY_TWO, 310.07),
        algorithms=("nvls",),
        source=f"{_ML_ENGINEERING}: NCCL 2.27.7, NCCL_ALGO=allreduce:nvlstree",
    ),
    Table(
        name="B200, EFA, 4 nodes, all_reduce, blocking",
        nodes=4,
        seconds=_bandwidths(
            32 * KIB,
            _THIRTY_TWO,
            "0.01 0.04 0.45 1.33 2.84 5.37 10.38 18.90 35.12 64.43 91.19 156.74 197.94 229.09 326.90 361.99 372.42 "
            "377.34 380.39 381.80",
        ),
        algorithms=ANY,
        source=f"{_ML_ENGINEERING}: all_reduce_bench.py, NCCL 2.27.7; another network, another GPU",
    ),
    Table(
        name="H200, 8 NICs, 248 nodes, all_reduce, one typical figure",
        nodes=248,
        seconds=_one(512 * MIB, 2 * 1983 / 1984, 350.0),
        algorithms=ANY,
        source="github.com/NVIDIA/nccl-tests issue 283: around 350 GB/s, sometimes below 300",
    ),
    Table(
        name="HGX with 8x 400G IB, 4 nodes, all_reduce",
        nodes=4,
        seconds=_one(16 * GIB, _THIRTY_TWO, 365.8),
        algorithms=ANY,
        source="github.com/NVIDIA/nccl-tests issues 290 and 309",
    ),
    Table(
        name="HGX with 8x 400G IB, 2 nodes, all_reduce, NCCL's choice",
        nodes=2,
        seconds=_one(16 * GIB, _SIXTEEN, 470.0),
        algorithms=ANY,
        source="github.com/NVIDIA/nccl-tests issues 290 and 309",
    ),
    Table(
        name="MI355X, 8x 400G RoCE, 2 nodes, all_reduce",
        nodes=2,
        seconds={8 * GIB: 43674e-6, 16 * GIB: 86980e-6},
        algorithms=RING,
        source="OCI GPU quick start, MI355X with Pollara: another vendor's GPU, NIC and library, the same wire",
    ),
    Table(
        name="MI355X, 8x 400G RoCE, 4 nodes, all_reduce",
        nodes=4,
        seconds={8 * GIB: 44952e-6, 16 * GIB: 89839e-6},
        algorithms=RING,
        source="OCI GPU quick start, MI355X with Pollara",
    ),
    Table(
        name="H200, 1 node, all_reduce, ring",
        nodes=1,
        seconds=_one(16 * GIB, _EIGHT, 367.61),
        algorithms=RING,
        source=f"{_ML_ENGINEERING}: NCCL_NVLS_ENABLE=0",
    ),
    Table(
        name="H200, 1 node, all_gather",
        op="all_gather",
        nodes=1,
        seconds=_one(16 * GIB, 7 / 8, 361.4),
        algorithms=RING,
        source=f"{_ML_ENGINEERING}: nccl-tests",
    ),
)
"""Tables that nothing was fitted on."""
