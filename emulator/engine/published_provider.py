"""Google's published provider in place of the emulator's own: the user's plugin, directed at the emulated Google.

The plugin is not part of the Python packages, and the emulator does not download it: `pulumi plugin install` does.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path

from emulator.google.callers import Tokens
from emulator.google.cloud import Cloud
from emulator.machine.state import EmulatorError, State, write_atomically

VERSION = version("pulumi-gcp")
"""The SDK's version, which the engine asks the provider for."""

NAME = f"resource-gcp-v{VERSION}"
"""Name of the provider's folder among the plugins."""

_ENDPOINTS = {
    "artifactRegistry": "v1",
    "billingBudgets": "v1",
    "cloudBilling": "v1",
    "cloudBuild": "v1",
    "compute": "compute/beta",
    "container": "v1beta1",
    "iam": "v1",
    "iamBeta": "v1",
    "kms": "v1",
    "resourceManager": "v1",
    "secretManager": "v1",
    "serviceNetworking": "v1",
    "serviceUsage": "v1beta1",
    "storage": "storage/v1",
}
"""Its settings `<name>CustomEndpoint`, and the path that each address ends in (hashicorp/terraform-provider-google-beta
v7.45.0, provider.go, and what it then sends)."""


_CHOICES = ("emulator", "google")
_FILE = "provider"
"""File in the emulator's folder while the published provider is in use: the plugin's folder, and its token."""

_TOKEN_SECONDS = 30 * 86400
"""A token that changed between runs would change the provider, and so everything."""


def chosen(state: State, name: str, *, fresh: bool) -> Path | None:
    """The folder of the published provider if that is requested, or None for the emulator's own.

    Args:
        state: the emulator's folder.
        name: `google` or `emulator`; empty for the one in use, or the emulator's own.
        fresh: whether the emulated cloud is about to start.

    Raises:
        EmulatorError: no such name, the plugin is not there, or the emulated cloud runs with the other one.
    """
    if name not in ("", *_CHOICES):
        raise EmulatorError(f"PROVIDER={name} is none: it is one of {', '.join(_CHOICES)}")
    if fresh:
        return _folder() if name == "google" else None
    running = "google" if state.path(_FILE).exists() else "emulator"
    if name not in ("", running):
        raise EmulatorError(
            f"the emulated cloud runs with PROVIDER={running}, and what one provider has made the other cannot take "
            f"over: `make down` ends it, and then PROVIDER={name} starts it anew"
        )
    return None


def use(state: State, plugin: Path) -> None:
    """Make every engine of this emulator use the published provider."""
    token = Tokens(Cloud(state.directory)).issue(_TOKEN_SECONDS)
    write_atomically(state.path(_FILE), json.dumps({"folder": str(plugin), "token": token}), mode=0o600)


def used(state: State, address: str) -> tuple[dict[str, str], dict[str, Path]]:
    """The settings that direct the published provider to a server, and its folder by name; both empty without it."""
    file = state.path(_FILE)
    if not file.exists():
        return {}, {}
    content = json.loads(file.read_text())
    endpoints = {f"gcp:{name}CustomEndpoint": f"{address}/{path}/" for name, path in _ENDPOINTS.items()}
    return {**endpoints, "gcp:accessToken": content["token"]}, {NAME: Path(content["folder"])}


def _folder() -> Path:
    home = Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")
    found = home / "plugins" / NAME
    if not (found / "pulumi-resource-gcp").exists():
        raise EmulatorError(
            f"Google's published provider is not in {found}. Install it with "
            f"`pulumi plugin install resource gcp {VERSION}`, or leave PROVIDER out: the emulator has one of its own."
        )
    return found
