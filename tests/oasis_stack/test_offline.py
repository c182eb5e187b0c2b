"""The harness itself: each trap that would let a wrong program pass is shown to be shut."""

import gc
from typing import Any

import pulumi
import pulumi_gcp as gcp
import pytest

from oasis_stack.command_line.offline import deploy


def test_a_program_is_drained_and_its_dependencies_secrets_and_exports_are_kept() -> None:
    class Pair(pulumi.ComponentResource):
        def __init__(self, name: str) -> None:
            super().__init__("test:index:Pair", name, None)
            network = gcp.compute.Network("network", opts=pulumi.ResourceOptions(parent=self))
            gcp.storage.Bucket("late", location="X", labels={"vpc_name": network.name})
            self.register_outputs({"network_name": network.name})

    def program() -> None:
        Pair("pair")
        secret = pulumi.Output.secret("hidden")
        gcp.secretmanager.SecretVersion("version", secret="s", secret_data=secret)
        pulumi.export("size", pulumi.Config("oasis").require_object("gpu")["max"])
        pulumi.export("key", secret)

    seen = deploy(program, {"oasis:gpu": {"max": 3}})
    network, late = seen.only("gcp:compute/network:Network"), seen.only("gcp:storage/bucket:Bucket")
    assert seen.by_urn(network.parent).name == "pair"
    assert seen.get("test:index:Pair", "pair").outputs == {"network_name": "network-1a2b3c4"}
    assert seen.is_before(network, late) and not seen.is_before(late, network)
    assert seen.only("gcp:secretmanager/secretVersion:SecretVersion").secret_inputs == {"secretData"}
    assert seen.exports == {"size": 3, "key": "hidden"} and seen.secret_exports == {"key"}


def test_a_failing_apply_fails_the_test() -> None:
    def program() -> None:
        def check(_: str) -> None:
            raise RuntimeError("seen in apply")

        gcp.compute.Network("network").name.apply(check)

    with pytest.raises(RuntimeError, match="seen in apply"):
        deploy(program)


def test_a_resource_made_in_an_apply_of_an_id_is_missing_from_the_preview_as_in_a_real_one() -> None:
    def program() -> None:
        gcp.compute.Network("network").id.apply(lambda _: gcp.compute.Address("late"))

    assert {r.name for r in deploy(program)} == {"network", "late"}
    assert {r.name for r in deploy(program, preview=True)} == {"network"}


def test_two_resources_of_one_type_and_name_are_refused() -> None:
    def program() -> None:
        gcp.compute.Address("a")
        gcp.compute.Address("a")

    with pytest.raises(ValueError, match="registered twice"):
        deploy(program)


def test_a_mistyped_key_of_a_dictionary_is_refused_and_no_later_test_hears_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def program() -> None:
        mistyped: Any = {"enable_private_nodez": True}
        gcp.container.NodePool("pool", cluster="c", network_config=mistyped)

    with pytest.raises(ValueError, match="enable_private_nodez"):
        deploy(program)
    gc.collect()
    assert caplog.text == ""
