"""The status screen, node by node."""

from __future__ import annotations

from workloads.jobs.command import node_rows
from workloads.jobs.entry_point import DRIVER_RESOURCES


def test_what_is_in_use_of_a_node_is_told_as_people_read_it() -> None:
    nodes = [
        {"ip": "10.0.0.2", "raylet": {"nodeId": "b", "state": "ALIVE"}},
        {"ip": "10.0.0.1", "raylet": {"nodeId": "a", "state": "ALIVE", "isHeadNode": True}},
    ]
    # As Ray 2.60 writes them.
    used = {
        "a": "0B/1.86GiB memory\n0B/190.73MiB object_store_memory\n0.02/1000.0 driver",
        "b": "1.0/8.0 CPU (1.0 used of 2.0 reserved in placement groups)\n0.5/2.0 GPU",
    }
    assert DRIVER_RESOURCES == {"driver": 0.01}
    assert node_rows({"summary": nodes, "nodeLogicalResources": used}) == [
        ("head", "10.0.0.1", "alive", "0B of 1.86GiB memory, drivers of 2 jobs"),
        ("worker", "10.0.0.2", "alive", "1 of 8 CPU (1.0 used of 2.0 reserved in placement groups), 0.5 of 2 GPU"),
    ]
    assert node_rows({"summary": nodes[:1]}) == [("worker", "10.0.0.2", "alive", "")]
