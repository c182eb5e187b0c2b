"""The resource types of a Helm chart, kept at the chart's own version: Helm installs a `crds` folder once and never
upgrades it (Helm documentation, "Custom Resource Definitions"), so that new fields would be dropped silently.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin

import pulumi
from pulumi.dynamic import Resource

from oasis_stack.live_state import KubernetesClient, RequestRefused, fetch, say, until_none
from oasis_stack.wait import Waiter, is_established, secret_kubeconfig

TIMEOUT_MINUTES = 5
"""Time limit for downloads from the internet, and for an API server that is still settling."""


class _ChartDefinitions(Waiter):
    def await_arrival(self, props: Mapping[str, Any]) -> None:
        cluster = KubernetesClient(props["kubeconfig"])
        repository, chart, version = props["repository"], props["chart"], props["version"]
        made: list[str] = []

        def not_served() -> list[str]:
            if not made:
                found = list(definitions(repository, chart, version))
                for definition in found:
                    cluster.define(definition)
                made.extend(str(definition["metadata"]["name"]) for definition in found)
            return [name for name in made if not is_established(cluster.definition(name))]

        subject = f"bringing the resource types of {chart} {version} to the cluster"
        say(subject)
        until_none(
            subject,
            not_served,
            TIMEOUT_MINUTES,
            f"Check that this machine reaches {repository}, or name a mirror of it in the stack file. Then run "
            "`pulumi up` again: it goes on from here.",
        )


def definitions(repository: str, chart: str, version: str) -> Iterator[dict[str, Any]]:
    """The CustomResourceDefinitions in a chart's `crds` folder.

    Args:
        repository: address of a Helm repository.
        chart: name of the chart there.
        version: its version.

    Raises:
        RequestRefused: the repository has no such chart, or not with the digest that its index names.
        NotAnswering: the repository may answer later.
    """
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the pure-Python loader takes minutes for a megabyte
    base = repository.rstrip("/") + "/"
    index = yaml.load(fetch(urljoin(base, "index.yaml")), loader)
    entries = [entry for entry in index["entries"].get(chart, ()) if entry["version"] == version]
    if not entries:
        raise RequestRefused(
            f"{base} has no chart {chart} of version {version}. Name a repository that has, or a version."
        )
    archive = fetch(urljoin(base, entries[0]["urls"][0]))
    digest = hashlib.sha256(archive).hexdigest()
    if digest != entries[0]["digest"]:
        raise RequestRefused(
            f"chart {chart} {version} of {base} has the SHA-256 {digest}, where its index says {entries[0]['digest']}. "
            "Do not use it; tell whoever keeps the repository."
        )
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            if member.name.startswith(f"{chart}/crds/") and (content := files.extractfile(member)):
                yield from filter(None, yaml.load_all(content, loader))


class ChartDefinitions(Resource, module="chart_definitions", name="ChartDefinitions"):
    """The CustomResourceDefinitions of a Helm chart, made or replaced. A destroy leaves them to the cluster's end."""

    def __init__(
        self,
        name: str,
        kubeconfig: pulumi.Input[str],
        repository: str,
        chart: str,
        version: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`kubeconfig` is JSON; the chart is `chart` of `version` in the Helm repository at `repository`."""
        props = {"kubeconfig": kubeconfig, "repository": repository, "chart": chart, "version": version}
        super().__init__(_ChartDefinitions(), name, props, secret_kubeconfig(opts))
