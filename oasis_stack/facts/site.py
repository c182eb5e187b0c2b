"""The location, name and labels of a stack: the same for every component in Google Cloud."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Site:
    """The place of a stack in Google Cloud."""

    project: str
    """Project id; also names the identity pool `<project>.svc.id.goog`, which exists once the project has a cluster."""
    region: str
    """Region of everything that has one: what is read from another one is slow, and billed as traffic."""
    zone: str
    """The one zone of all nodes: it must offer the GPU machine, and its RoCE network profile is the RDMA VPC's."""
    prefix: str
    """First part of every name that must be found again, as by a later stack that adopts what this one kept."""
    labels: Mapping[str, str]
    """Labels of everything that can carry some, for the bill."""
