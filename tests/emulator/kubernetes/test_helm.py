"""What the emulated Helm installs, and what it refuses before anything is there."""

from __future__ import annotations

import pytest

from emulator.kubernetes import helm
from emulator.kubernetes.api import Body
from emulator.kubernetes.kuberay import CHART

RELEASE: Body = {"chart": CHART.name, "version": CHART.version, "namespace": "kuberay-system"}


@pytest.mark.parametrize(
    ("given", "path", "words"),
    [
        ({"chartt": "x"}, "chartt", "does not know it; it knows atomic, chart, "),
        (
            {"chart": "cert-manager"},
            "chart",
            "'cert-manager' cannot be installed: the emulator has programs for kuberay-operator, kueue only",
        ),
        ({"version": "9.9.9"}, "version", "'9.9.9' is not what the emulator builds, "),
        ({"version": ""}, "version", "go.mod"),
        ({"values": {"resources": {}, "webhook": {}}}, "values.webhook", "the emulated chart knows affinity, image, "),
    ],
)
def test_a_release_that_it_has_no_program_for_is_refused_by_name(given: Body, path: str, words: str) -> None:
    _, refusal = helm.check({**RELEASE, **given}, {}, "kuberay")

    assert refusal is not None
    assert refusal[0] == path
    assert words in refusal[1]


def test_a_release_without_a_name_gets_one_and_keeps_it() -> None:
    first, refusal = helm.check(RELEASE, {}, "kuberay")
    again, _ = helm.check({**RELEASE, "version": f"v{CHART.version}"}, first, "kuberay")

    assert refusal is None
    assert first["name"].startswith("kuberay-")
    assert again["name"] == first["name"]
    assert helm.check({"chart": CHART.name, "version": CHART.version}, {}, "k")[0]["namespace"] == "default"
