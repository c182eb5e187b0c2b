"""Kubernetes Engine: the collections that are served."""

from __future__ import annotations

from emulator.google.apis.kubernetes_engine.cluster_operations import Operations
from emulator.google.apis.kubernetes_engine.clusters import NODE_POOLS, Clusters
from emulator.google.apis.kubernetes_engine.instance_groups import InstanceGroupManagers

COLLECTIONS = {
    "compute.instanceGroupManagers": InstanceGroupManagers(),
    "container.projects.locations.clusters": Clusters(),
    "container.projects.locations.clusters.nodePools": NODE_POOLS,
    "container.projects.locations.operations": Operations(),
}
