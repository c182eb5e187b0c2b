"""The `kubernetes` provider under the real engine: strict, never by force, dry in preview, patient in deletion."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.engine.commands import Engine
from emulator.kubernetes import crds
from emulator.kubernetes.api import Body
from emulator.machine.state import EmulatorError
from tests.emulator import programs
from tests.emulator.conftest import ControlPlane
from tests.support.waiting import eventually

pytestmark = pytest.mark.emulated

Run = Callable[[str], Engine]

NETWORKING = "networking.gke.io/v1"


@pytest.fixture
def run(bare_cluster: ControlPlane, tmp_path: Path) -> Run:
    """`run(program)`: an engine for a program's text, always on this test's own stack."""
    checkout = tmp_path / f"stack-{time.monotonic_ns()}"
    return lambda program: programs.engine(bare_cluster.state, checkout, program)


def config_map(resource: str, data: Body, **metadata: object) -> str:
    metadata = {"namespace": "default", **metadata}
    return f"kubernetes.core.v1.ConfigMap({resource!r}, metadata={metadata!r}, data={data!r}, opts=opts())\n"


def custom(resource: str, body: Body, depends_on: str = "None") -> str:
    given = {"api_version": body["apiVersion"], **{key: body[key] for key in ("kind", "metadata", "spec")}}
    options = f"opts(depends_on={depends_on})"
    return f"kubernetes.apiextensions.CustomResource({resource!r}, **{given!r}, opts={options})\n"


DEPLOYMENT = """
container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": CPU, "memory": "1024Mi"}}}
kubernetes.apps.v1.Deployment(
    "life",
    metadata={"annotations": {"pulumi.com/skipAwait": "true"}},
    spec={
        "selector": {"match_labels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}},
    },
    opts=opts(),
)
kubernetes.core.v1.Secret("life", string_data={"k": pulumi.Output.secret("v")}, opts=opts())
"""


def test_created_then_unchanged_then_updated_then_gone(bare_cluster: ControlPlane, run: Run) -> None:
    program = f"CPU = '1000m'\n{DEPLOYMENT}"

    assert run(program).preview().changes == {"create": 4}
    assert bare_cluster.api.list("apps/v1", "Deployment", "default") == []
    assert bare_cluster.api.list("v1", "Secret", "default") == []
    assert run(program).up().changes == {"create": 4}
    assert run(program).up(refresh=True).changes == {"same": 4}, "neither defaults nor spelling are a difference"
    assert run(f"CPU = '2'\n{DEPLOYMENT}").up().changes == {"update": 1, "same": 3}
    run(program).destroy()

    # The destroy does not wait for the garbage collector, which takes the Deployment after its Pods.
    eventually(lambda: not bare_cluster.api.list("apps/v1", "Deployment", "default"))


def test_a_field_left_out_is_removed_and_one_that_others_added_stays(bare_cluster: ControlPlane, run: Run) -> None:
    api = bare_cluster.api
    run(config_map("fields", {"k": "v"}, name="fields", labels={"ours": "1", "gone": "1"})).up()
    live = api.get("v1", "ConfigMap", "fields", "default") or {}
    api.merge(live, {"metadata": {"labels": {"theirs": "1"}}})

    run(config_map("fields", {"k": "v"}, name="fields", labels={"ours": "2"})).up(refresh=True)

    labels = (api.get("v1", "ConfigMap", "fields", "default") or {})["metadata"]["labels"]
    assert labels == {"ours": "2", "theirs": "1"}
    run("").destroy()


def test_what_somebody_changed_by_hand_is_seen_by_a_refresh_and_a_conflict_is_not_forced(
    bare_cluster: ControlPlane, run: Run
) -> None:
    api = bare_cluster.api
    run(config_map("drift", {"k": "v"}, name="drift", labels={"l": "1"})).up()
    live = api.get("v1", "ConfigMap", "drift", "default") or {}
    api.merge(live, {"metadata": {"labels": {"l": "by-hand"}}})

    with pytest.raises(EmulatorError, match=r"ConfigMap drift:.*conflict.*pulumi\.com/patchForce"):
        run(config_map("drift", {"k": "v"}, name="drift", labels={"l": "1"})).up(refresh=True)
    force = {"pulumi.com/patchForce": "true"}
    run(config_map("drift", {"k": "v"}, name="drift", labels={"l": "1"}, annotations=force)).up(refresh=True)

    labels = (api.get("v1", "ConfigMap", "drift", "default") or {})["metadata"]["labels"]
    assert labels == {"l": "1"}
    run("").destroy()


def test_data_of_a_config_map_replaces_it_the_old_one_first_where_the_name_is_fixed(
    bare_cluster: ControlPlane, run: Run
) -> None:
    api = bare_cluster.api
    run(config_map("fixed", {"k": "1"}, name="fixed")).up()
    before = (api.get("v1", "ConfigMap", "fixed", "default") or {})["metadata"]["uid"]

    assert run(config_map("fixed", {"k": "2"}, name="fixed")).up().changes["replace"] == 1

    after = api.get("v1", "ConfigMap", "fixed", "default") or {}
    assert after["data"] == {"k": "2"}
    assert after["metadata"]["uid"] != before
    run("").destroy()


def test_a_misspelt_field_fails_in_preview_and_in_up_under_the_resources_name(
    bare_cluster: ControlPlane, run: Run
) -> None:
    crds.install_networking(bare_cluster.api)
    spec = {"vpc": "v", "vpcSubnet": "s", "deviceMode": "RDMA"}
    fine = {"apiVersion": NETWORKING, "kind": "GKENetworkParamSet", "metadata": {"name": "fine"}, "spec": spec}
    misspelt = {**fine, "metadata": {"name": "misspelt"}, "spec": {**spec, "deviceNode": "x"}}
    # The engine begins nothing more once a resource has failed, so that which of two comes first is said.
    program = "before = " + custom("fine", fine) + custom("misspelt", misspelt, depends_on="before")

    for verb in ("preview", "up"):
        with pytest.raises(EmulatorError, match=r"GKENetworkParamSet misspelt:.*deviceNode"):
            getattr(run(program), verb)()

    found = {item["metadata"]["name"] for item in bare_cluster.api.list(NETWORKING, "GKENetworkParamSet")}
    assert found == {"fine"}, "what was made before stays"
    run(program).destroy()


def test_a_kind_that_the_cluster_does_not_serve_passes_the_preview_and_fails_the_update(run: Run) -> None:
    body = {"apiVersion": "nobody.example/v1", "kind": "Nothing", "metadata": {"name": "n"}, "spec": {}}

    assert run(custom("unserved", body)).preview().changes["create"] == 3
    with pytest.raises(EmulatorError, match=r'Nothing unserved:.*no matches for kind "Nothing"'):
        run(custom("unserved", body)).up()


def test_a_delete_waits_for_finalizers_and_a_time_out_says_which(bare_cluster: ControlPlane, run: Run) -> None:
    api = bare_cluster.api
    run(config_map("held", {"k": "v"}, name="held")).up()
    live = api.get("v1", "ConfigMap", "held", "default") or {}
    api.merge(live, {"metadata": {"finalizers": ["example.com/held"]}})
    release = threading.Timer(2.0, lambda: api.merge(live, {"metadata": {"finalizers": []}}))
    release.start()

    begun = time.monotonic()
    run("").destroy()

    assert time.monotonic() - begun > 2.0
    assert api.get("v1", "ConfigMap", "held", "default") is None

    impatient = """
metadata = {"name": "stuck", "namespace": "default", "finalizers": ["example.com/held"]}
timeouts = pulumi.CustomTimeouts(delete="1s")
kubernetes.core.v1.ConfigMap("stuck", metadata=metadata, opts=opts(custom_timeouts=timeouts))
"""
    run(impatient).up()
    with pytest.raises(EmulatorError, match=r"ConfigMap stuck:.*still there \d+ s.*example\.com/held"):
        run(impatient).destroy()
    api.merge({**live, "metadata": {"name": "stuck", "namespace": "default"}}, {"metadata": {"finalizers": []}})
    run(impatient).destroy()


def test_what_is_retained_stays_and_what_is_not_ready_is_kept_in_the_state(
    bare_cluster: ControlPlane, run: Run
) -> None:
    api = bare_cluster.api

    program = """
kubernetes.core.v1.ConfigMap("kept", metadata={"name": "kept"}, opts=opts(retain_on_delete=True))
annotations = {"pulumi.com/waitFor": "jsonpath={.data.ready}=yes"}
short = opts(custom_timeouts=pulumi.CustomTimeouts(create="1s"))
kubernetes.core.v1.ConfigMap("slow", metadata={"name": "slow", "annotations": annotations}, opts=short)
"""
    with pytest.raises(EmulatorError, match=r"(?s)ConfigMap slow:.*not ready after \d+ s.*\.data\.ready"):
        run(program).up()
    assert api.get("v1", "ConfigMap", "slow", "default") is not None

    run(program).destroy()

    assert api.get("v1", "ConfigMap", "slow", "default") is None
    kept = api.get("v1", "ConfigMap", "kept", "default")
    assert kept is not None
    api.delete(kept)


def test_a_setting_of_the_provider_that_is_not_emulated_is_refused(run: Run) -> None:
    program = "kubernetes.Provider('other', kubeconfig='{}', render_yaml_to_directory='rendered')"

    with pytest.raises(EmulatorError, match=r"renderYamlToDirectory.*does not know it"):
        run(program).preview()
