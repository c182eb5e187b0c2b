"""The cluster, its CPU pools and the account of its nodes."""

import json
import re

from oasis_stack.command_line.offline import Deployment
from oasis_stack.components.node_config import POOL_IGNORES
from tests.support.program import deploy_stack
from tests.support.setting_examples import KMS_KEY
from tests.support.stacks import changed

CLUSTER, POOL = "gcp:container/cluster:Cluster", "gcp:container/nodePool:NodePool"


def test_the_cluster_has_what_its_pods_and_those_who_watch_them_need(full: Deployment) -> None:
    cluster = full.only(CLUSTER).inputs
    expected = {
        "networkingMode": "VPC_NATIVE",
        "dnsConfig": {"clusterDns": "KUBE_DNS"},
        "addonsConfig": {"gcsFuseCsiDriverConfig": {"enabled": True}},
        "loggingConfig": {"enableComponents": ["SYSTEM_COMPONENTS", "WORKLOADS"]},
        "enableShieldedNodes": True,
        "nodeLocations": ["us-central1-b"],
        "costManagementConfig": {"enabled": True},
        "rbacBindingConfig": {
            "enableInsecureBindingSystemAuthenticated": False,
            "enableInsecureBindingSystemUnauthenticated": False,
        },
    }
    assert {key: cluster[key] for key in expected} == expected
    assert "DCGM" in cluster["monitoringConfig"]["enableComponents"]
    assert cluster["monitoringConfig"]["managedPrometheus"] == {"enabled": True}
    # Any time of day; without a window GKE refuses the exclusion that keeps upgrades out of a long training run.
    window = cluster["maintenancePolicy"]["dailyMaintenanceWindow"]["startTime"]
    assert re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", window)


def test_a_key_encrypts_secrets_once_gkes_agent_may_use_it(other: Deployment) -> None:
    cluster = other.only(CLUSTER)
    assert cluster.inputs["databaseEncryption"] == {"state": "ENCRYPTED", "keyName": KMS_KEY}
    grant = other.only("gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember")
    assert grant.inputs["cryptoKeyId"] == KMS_KEY
    identity = other.get("gcp:projects/serviceIdentity:ServiceIdentity", "cluster-agent")
    assert identity.inputs == {"project": "my-project", "service": "container.googleapis.com"}
    assert other.is_before(identity, grant)
    assert other.is_before(grant, cluster)


def test_a_protected_cluster_ends_a_destroy_before_anything_is_deleted(full: Deployment, other: Deployment) -> None:
    assert [deployed.only(CLUSTER).protect for deployed in (full, other)] == [False, True]


def test_an_exclusion_keeps_node_upgrades_out_until_its_end_or_until_the_version_is_out_of_support(
    other: Deployment,
) -> None:
    endless = deploy_stack(changed("oasis:cluster.maintenance_exclusion.start", "2027-01-01T00:00:00Z"))
    ended, unended = (
        deployed.only(CLUSTER).inputs["maintenancePolicy"]["maintenanceExclusions"][0] for deployed in (other, endless)
    )
    assert ended["exclusionOptions"] == {"scope": "NO_MINOR_OR_NODE_UPGRADES"}
    # Google takes exactly one of the two (provider reference, `end_time_behavior`).
    assert "endTime" not in unended
    assert unended["exclusionOptions"] == {
        "scope": "NO_MINOR_OR_NODE_UPGRADES",
        "endTimeBehavior": "UNTIL_END_OF_SUPPORT",
    }


def test_every_node_runs_as_the_account_that_has_the_grants_also_in_the_short_lived_first_pool(
    full: Deployment,
) -> None:
    for maker in (full.only(CLUSTER), *full.of_type(POOL)):
        email = maker.inputs["nodeConfig"]["serviceAccount"]
        assert email == "oasis-nodes@some-project.iam.gserviceaccount.com", maker.name


def test_neither_the_short_lived_first_pool_nor_a_scaled_pool_can_ever_replace_anything(full: Deployment) -> None:
    cluster = full.only(CLUSTER)
    assert (cluster.inputs["removeDefaultNodePool"], cluster.inputs["initialNodeCount"]) == (True, 1)
    assert cluster.ignore_changes == {"initialNodeCount", "nodeConfig", "privateClusterConfig.masterIpv4CidrBlock"}
    # One that ranges replace goes first: it holds them, and the control plane's /28, that its successor takes.
    assert cluster.delete_before_replace
    for name in ("cluster-system", "cluster-cpu"):
        assert full.get(POOL, name).ignore_changes == set(POOL_IGNORES)


def test_the_system_pool_is_always_on_and_the_cpu_pool_begins_with_nothing(full: Deployment) -> None:
    system, cpu = full.get(POOL, "cluster-system").inputs, full.get(POOL, "cluster-cpu").inputs
    assert (system["initialNodeCount"], cpu["initialNodeCount"]) == (1, 0)
    for pool in (system, cpu):
        assert pool["management"] == {"autoRepair": True, "autoUpgrade": True}
        assert pool["upgradeSettings"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_dns_endpoint_is_the_only_way_in_by_default(full: Deployment) -> None:
    cluster = full.only(CLUSTER).inputs
    assert cluster["controlPlaneEndpointsConfig"] == {
        "dnsEndpointConfig": {"allowExternalTraffic": True},
        "ipEndpointsConfig": {"enabled": False},
    }
    assert "masterAuthorizedNetworksConfig" not in cluster
    # GKE turns that one on by itself when there is no IP endpoint; `False` here would differ for ever.
    assert "enablePrivateEndpoint" not in cluster["privateClusterConfig"]
    kubeconfig = json.loads(full.exports["kubeconfig"])
    assert kubeconfig["clusters"][0]["cluster"] == {"server": "https://gke-0a1b-123456789012.us-central1.gke.goog"}
    user = kubeconfig["users"][0]["user"]  # a plugin instead of a credential
    assert list(user) == ["exec"] and user["exec"]["command"] == "gke-gcloud-auth-plugin"


def test_the_ip_endpoint_answers_to_authorised_networks_alone(other: Deployment) -> None:
    cluster = other.only(CLUSTER).inputs
    assert cluster["controlPlaneEndpointsConfig"] == {
        "dnsEndpointConfig": {"allowExternalTraffic": False},
        "ipEndpointsConfig": {"enabled": True},
    }
    assert cluster["privateClusterConfig"]["enablePrivateEndpoint"] is False
    assert cluster["masterAuthorizedNetworksConfig"] == {
        "cidrBlocks": [{"cidrBlock": "203.0.113.0/24", "displayName": "office"}],
        "gcpPublicCidrsAccessEnabled": False,
    }
    kubeconfig = json.loads(other.exports["kubeconfig"])
    assert kubeconfig["clusters"][0]["cluster"] == {
        "server": "https://203.0.113.10",
        "certificate-authority-data": "Q0E=",
    }


def test_what_runs_in_the_cluster_comes_after_its_nodes_and_goes_before_them(full: Deployment) -> None:
    nodes = [full.get(POOL, name) for name in ("cluster-system", "cluster-cpu")]
    inside = [found for found in full if found.type.startswith("kubernetes:")]
    assert all(full.is_before(pool, found) for pool in nodes for found in inside)
    provider = full.get("pulumi:providers:kubernetes", "cluster").inputs
    # Another way to reach the same cluster must not replace what is in it.
    assert "clusterIdentifier" in provider
    # What an interrupted `up` made is taken over by the next one, which may change it later; a ConfigMap is changed
    # without a gap.
    for option in ("upsertExistingObjects", "enablePatchForce", "enableConfigMapMutable"):
        assert provider[option] == "true"
