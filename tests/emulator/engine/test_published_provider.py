"""Google's published provider in place of the emulator's own: what leads it to the emulated Google."""

from __future__ import annotations

import inspect
from pathlib import Path

import pulumi_gcp
import pytest

from emulator.engine import published_provider
from emulator.machine.state import EmulatorError, State


def test_it_is_taken_from_the_users_own_plugins_and_led_here_by_settings_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    state = State(tmp_path / "state")
    with pytest.raises(EmulatorError, match="pulumi plugin install resource gcp"):
        published_provider.chosen(state, "google", fresh=True)
    plugin = tmp_path / "home" / "plugins" / published_provider.NAME
    plugin.mkdir(parents=True)
    (plugin / "pulumi-resource-gcp").touch()
    assert published_provider.chosen(state, "google", fresh=True) == plugin
    assert published_provider.used(state, "http://here") == ({}, {})

    published_provider.use(state, plugin)

    settings, plugins = published_provider.used(state, "http://here")
    assert plugins == {published_provider.NAME: plugin}
    taken = set(inspect.signature(pulumi_gcp.ProviderArgs).parameters)
    words = {name.removeprefix("gcp:") for name in settings}
    assert {"".join(f"_{c.lower()}" if c.isupper() else c for c in word) for word in words} <= taken
    assert settings["gcp:computeCustomEndpoint"] == "http://here/compute/beta/"
    assert published_provider.used(state, "http://here") == (settings, plugins)  # the token stays, too
    with pytest.raises(EmulatorError, match="runs with PROVIDER=google"):
        published_provider.chosen(state, "emulator", fresh=False)
    with pytest.raises(EmulatorError, match="PROVIDER=gogle is none: it is one of emulator, google"):
        published_provider.chosen(state, "gogle", fresh=True)
