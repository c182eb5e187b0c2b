"""Settings of the Kubernetes provider itself: the kubeconfig, and the switches that the emulator honours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from emulator.protocol import wire

KNOWN = frozenset(
    {
        "kubeconfig",
        "clusterIdentifier",
        "context",
        "namespace",
        "enableServerSideApply",
        "enableConfigMapMutable",
        "enableSecretMutable",
        "upsertExistingObjects",
        "deleteUnreachable",
        "suppressDeprecationWarnings",
        "suppressHelmHookWarnings",
    }
)
"""Those of the real provider's settings that the emulator honours or that change nothing in it."""


@dataclass(frozen=True, kw_only=True)
class ProviderConfig:
    """The provider's settings, read."""

    kubeconfig: dict[str, Any] | None
    """None while it is unknown, in a preview before the cluster is there."""
    namespace: str
    """For objects that name none."""
    mutable_kinds: frozenset[str]
    """Of ConfigMap and Secret, those that are changed in place instead of replaced."""
    cluster: str
    """Which cluster it is; empty while that is unknown. Another one takes no object over: all are made anew."""
    delete_unreachable: bool
    """Whether objects of a cluster that does not answer count as deleted."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> ProviderConfig:
        """From the inputs of the provider resource."""
        kinds = (kind for kind in ("ConfigMap", "Secret") if _is_true(values.get(f"enable{kind}Mutable")))
        unreachable = values.get("deleteUnreachable") or os.environ.get("PULUMI_K8S_DELETE_UNREACHABLE")
        kubeconfig = _kubeconfig(values)
        identifier = values.get("clusterIdentifier") or _server(kubeconfig)
        return cls(
            kubeconfig=kubeconfig,
            cluster="" if identifier == wire.UNKNOWN else str(identifier),
            namespace=str(values.get("namespace") or "default"),
            mutable_kinds=frozenset(kinds),
            delete_unreachable=_is_true(unreachable),
        )


def problems(values: Mapping[str, Any]) -> dict[str, str]:
    """Settings that cannot be honoured, with the reason."""
    found = {
        name: f"the emulated provider does not know it; it knows {', '.join(sorted(KNOWN))}"
        for name in sorted(set(values) - KNOWN - {"version"})
    }
    if str(values.get("enableServerSideApply", "true")).lower() == "false":
        found["enableServerSideApply"] = "the emulated provider applies server-side only; leave it out"
    return found


def _is_true(value: object) -> bool:
    return str(value).lower() in ("true", "1")


def _kubeconfig(values: Mapping[str, Any]) -> dict[str, Any] | None:
    text = values.get("kubeconfig")
    if not text or text == wire.UNKNOWN:
        return None
    is_path = "\n" not in text and not text.startswith("{")
    config = yaml.safe_load(Path(text).expanduser().read_text() if is_path else text)
    if values.get("context"):
        config["current-context"] = values["context"]
    return config


def _server(kubeconfig: dict[str, Any] | None) -> str:
    if kubeconfig is None:
        return ""
    contexts = {entry["name"]: entry["context"] for entry in kubeconfig["contexts"]}
    clusters = {entry["name"]: entry["cluster"] for entry in kubeconfig["clusters"]}
    return str(clusters[contexts[kubeconfig["current-context"]]["cluster"]]["server"])
