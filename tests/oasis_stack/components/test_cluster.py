"""The cluster, its CPU pools and the account of its nodes."""

import json
import re
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from oasis_stack.components.attachments import ClusterNetwork
from oasis_stack.components.cluster import Cluster, ClusterArgs
from oasis_stack.components.control_plane import ControlPlane, EncryptionKey
from oasis_stack.facts.machine import PoolSize
from tests.support.deployment import Deploy, Deployment
from tests.support.stacks import SITE

CLUSTER, POOL = "gcp:container/cluster:Cluster", "gcp:container/nodePool:NodePool"
SYSTEM = PoolSize(machine_type="e2-standard-8", min_nodes=1, max_nodes=3)
CPU = PoolSize(machine_type="e2-standard-16", min_nodes=0, max_nodes=4)
NETWORK = ClusterNetwork(
    network_id="projects/project-a/global/networks/primary",
    subnet_id="projects/project-a/regions/us-central1/subnetworks/nodes",
    pods_range_name="pods",
    services_range_name="services",
)


def _cluster(*, deletion_protection: bool = False, **changes: Any) -> Cluster:
    """The cluster; `changes` are those of its control plane."""
    control_plane: dict[str, Any] = {
        "address_range": "10.64.48.0/28",
        "endpoint": "dns",
        "authorized_networks": {},
        "release_channel": "REGULAR",
        "minimum_version": "1.35",
        "maintenance_exclusion": None,
        "secrets_encryption_key": None,
    }
    args = ClusterArgs(
        site=SITE,
        project_number="123456789012",
        network=NETWORK,
        control_plane=ControlPlane(**(control_plane | changes)),
        system_pool=SYSTEM,
        cpu_pool=CPU,
        readable_repositories={"docker": "oasis-docker", "docker-virtual": "oasis-docker-virtual"},
        deletion_protection=deletion_protection,
    )
    return Cluster("cluster", args)


def _inputs(deploy: Deploy, **changes: Any) -> dict[str, Any]:
    return deploy(lambda: _cluster(**changes)).only(CLUSTER).inputs


def _program_that_exports(**changes: Any) -> None:
    cluster = _cluster(**changes)
    pulumi.export("kubeconfig", cluster.kubeconfig)
    kubernetes.core.v1.Namespace("inside", opts=pulumi.ResourceOptions(provider=cluster.provider))


def test_the_cluster_is_private_regional_and_ready_for_further_networks(deploy: Deploy) -> None:
    cluster = _inputs(deploy)
    assert cluster["location"] == "us-central1" and cluster["nodeLocations"] == ["us-central1-b"]
    assert cluster["privateClusterConfig"]["enablePrivateNodes"] is True
    assert cluster["privateClusterConfig"]["masterIpv4CidrBlock"] == "10.64.48.0/28"
    assert (cluster["enableMultiNetworking"], cluster["datapathProvider"]) == (True, "ADVANCED_DATAPATH")
    assert cluster["networkingMode"] == "VPC_NATIVE"
    assert cluster["ipAllocationPolicy"] == {
        "clusterSecondaryRangeName": "pods",
        "servicesSecondaryRangeName": "services",
    }
    assert cluster["workloadIdentityConfig"] == {"workloadPool": "project-a.svc.id.goog"}
    assert cluster["addonsConfig"] == {"gcsFuseCsiDriverConfig": {"enabled": True}}
    assert "DCGM" in cluster["monitoringConfig"]["enableComponents"]
    assert cluster["monitoringConfig"]["managedPrometheus"] == {"enabled": True}
    assert cluster["loggingConfig"] == {"enableComponents": ["SYSTEM_COMPONENTS", "WORKLOADS"]}
    # Any time of day; without a window GKE refuses the exclusion that keeps upgrades out of a long training run.
    window = cluster["maintenancePolicy"]["dailyMaintenanceWindow"]["startTime"]
    assert re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", window)
    assert cluster["enableShieldedNodes"] is True and cluster["costManagementConfig"] == {"enabled": True}


def test_settings_reach_the_cluster(deploy: Deploy) -> None:
    key = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
    seen = deploy(
        lambda: _cluster(
            release_channel="STABLE",
            minimum_version="1.36",
            deletion_protection=True,
            secrets_encryption_key=EncryptionKey(name=key),
            maintenance_exclusion=("2027-01-01T00:00:00Z", "2027-03-01T00:00:00Z"),
        )
    )
    cluster = seen.only(CLUSTER)
    assert cluster.inputs["releaseChannel"] == {"channel": "STABLE"}
    assert cluster.inputs["minMasterVersion"] == "1.36"
    assert cluster.inputs["deletionProtection"] is True
    assert cluster.inputs["databaseEncryption"] == {"state": "ENCRYPTED", "keyName": key}
    assert cluster.inputs["maintenancePolicy"]["maintenanceExclusions"] == [
        {
            "exclusionName": "no-node-upgrades",
            "startTime": "2027-01-01T00:00:00Z",
            "endTime": "2027-03-01T00:00:00Z",
            "exclusionOptions": {"scope": "NO_MINOR_OR_NODE_UPGRADES"},
        }
    ]
    assert cluster.inputs["resourceLabels"] == {"team": "vision"}
    grant = seen.only("gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember")
    agent = "serviceAccount:service-123456789012@container-engine-robot.iam.gserviceaccount.com"
    assert (grant.inputs["cryptoKeyId"], grant.inputs["member"]) == (key, agent)
    identity = seen.only("gcp:projects/serviceIdentity:ServiceIdentity")
    assert identity.inputs == {"project": "project-a", "service": "container.googleapis.com"}
    assert seen.is_before(identity, grant)
    assert seen.is_before(grant, cluster)


def test_a_protected_cluster_ends_a_destroy_before_anything_is_deleted(deploy: Deploy) -> None:
    assert [deploy(lambda on=on: _cluster(deletion_protection=on)).only(CLUSTER).protect for on in (True, False)] == [
        True,
        False,
    ]


def test_an_exclusion_without_an_end_lasts_until_the_version_is_out_of_support(deploy: Deploy) -> None:
    cluster = deploy(lambda: _cluster(maintenance_exclusion=("2027-01-01T00:00:00Z", None))).only(CLUSTER)
    [window] = cluster.inputs["maintenancePolicy"]["maintenanceExclusions"]
    # Google takes exactly one of the two (provider reference, `end_time_behavior`).
    assert "endTime" not in window
    assert window["exclusionOptions"]["endTimeBehavior"] == "UNTIL_END_OF_SUPPORT"


def test_a_cluster_makes_room_for_its_successor_which_has_the_same_control_plane_range(deploy: Deploy) -> None:
    assert deploy(_cluster).only(CLUSTER).delete_before_replace


def test_no_node_exists_before_the_grants_of_its_account_and_that_holds_for_the_short_lived_first_pool(
    deploy: Deploy,
) -> None:
    seen = deploy(_cluster)
    account, cluster = seen.only("gcp:serviceaccount/account:Account"), seen.only(CLUSTER)
    email = "oasis-nodes@project-a.iam.gserviceaccount.com"
    project_grants = seen.of_type("gcp:projects/iAMMember:IAMMember")
    readers = seen.of_type("gcp:artifactregistry/repositoryIamMember:RepositoryIamMember")
    assert account.inputs["accountId"] == "oasis-nodes"
    assert {grant.inputs["role"] for grant in project_grants} == {
        "roles/container.defaultNodeServiceAccount",
        "roles/serviceusage.serviceUsageConsumer",
    }
    assert {reader.inputs["repository"] for reader in readers} == {"oasis-docker", "oasis-docker-virtual"}
    assert {reader.inputs["role"] for reader in readers} == {"roles/artifactregistry.reader"}
    for grant in (*project_grants, *readers):
        assert grant.inputs["member"] == f"serviceAccount:{email}"
        assert seen.is_before(grant, cluster)
    makers_of_nodes = [cluster, *seen.of_type(POOL)]
    assert {maker.inputs["nodeConfig"]["serviceAccount"] for maker in makers_of_nodes} == {email}


def test_neither_the_short_lived_first_pool_nor_a_scaled_pool_can_ever_replace_anything(deploy: Deploy) -> None:
    seen = deploy(_cluster)
    cluster = seen.only(CLUSTER)
    assert (cluster.inputs["removeDefaultNodePool"], cluster.inputs["initialNodeCount"]) == (True, 1)
    assert cluster.ignore_changes == {"initialNodeCount", "nodeConfig"}
    assert {frozenset(pool.ignore_changes) for pool in seen.of_type(POOL)} == {
        frozenset({"initialNodeCount", "nodeCount"})
    }


def test_the_system_pool_is_always_on_and_the_cpu_pool_shrinks_to_nothing_behind_its_taint(deploy: Deploy) -> None:
    seen = deploy(_cluster)
    system, cpu = seen.get(POOL, "cluster-system").inputs, seen.get(POOL, "cluster-cpu").inputs
    assert (system["initialNodeCount"], cpu["initialNodeCount"]) == (1, 0)
    assert (system["autoscaling"]["totalMinNodeCount"], system["autoscaling"]["totalMaxNodeCount"]) == (1, 3)
    assert (cpu["autoscaling"]["totalMinNodeCount"], cpu["autoscaling"]["totalMaxNodeCount"]) == (0, 4)
    assert system["nodeConfig"]["labels"] == {"oasis/pool": "system"} and "taints" not in system["nodeConfig"]
    assert cpu["nodeConfig"]["taints"] == [{"key": "oasis/pool", "value": "cpu", "effect": "NO_SCHEDULE"}]
    for pool in (system, cpu):
        assert pool["management"] == {"autoRepair": True, "autoUpgrade": True}
        assert pool["upgradeSettings"] == {"maxSurge": 1, "maxUnavailable": 0}
        assert pool["networkConfig"] == {"enablePrivateNodes": True}
        assert pool["nodeConfig"]["kubeletConfig"] == {"insecureKubeletReadonlyPortEnabled": "FALSE"}


def test_the_dns_endpoint_is_the_only_way_in_by_default(deploy: Deploy) -> None:
    cluster = _inputs(deploy)
    assert cluster["controlPlaneEndpointsConfig"] == {
        "dnsEndpointConfig": {"allowExternalTraffic": True},
        "ipEndpointsConfig": {"enabled": False},
    }
    assert "masterAuthorizedNetworksConfig" not in cluster
    # GKE turns that one on by itself when there is no IP endpoint; `False` here would differ for ever.
    assert "enablePrivateEndpoint" not in cluster["privateClusterConfig"]
    seen = deploy(_program_that_exports)
    kubeconfig = json.loads(seen.exports["kubeconfig"])
    assert kubeconfig["clusters"][0]["cluster"] == {"server": "https://gke-0a1b-123456789012.us-central1.gke.goog"}


def test_the_ip_endpoint_answers_to_authorised_networks_alone(deploy: Deploy) -> None:
    cluster = _inputs(deploy, endpoint="ip", authorized_networks={"203.0.113.0/24": "office"})
    assert cluster["controlPlaneEndpointsConfig"] == {
        "dnsEndpointConfig": {"allowExternalTraffic": False},
        "ipEndpointsConfig": {"enabled": True},
    }
    assert cluster["privateClusterConfig"]["enablePrivateEndpoint"] is False
    assert cluster["masterAuthorizedNetworksConfig"] == {
        "cidrBlocks": [{"cidrBlock": "203.0.113.0/24", "displayName": "office"}],
        "gcpPublicCidrsAccessEnabled": False,
    }
    seen = deploy(lambda: _program_that_exports(endpoint="ip"))
    kubeconfig = json.loads(seen.exports["kubeconfig"])
    assert kubeconfig["clusters"][0]["cluster"] == {
        "server": "https://203.0.113.10",
        "certificate-authority-data": "Q0E=",
    }


def test_the_kubeconfig_is_secret_and_holds_a_plugin_instead_of_a_credential(deploy: Deploy) -> None:
    seen = deploy(_program_that_exports)
    user = json.loads(seen.exports["kubeconfig"])["users"][0]["user"]
    assert seen.secret_exports == {"kubeconfig"}
    assert list(user) == ["exec"] and user["exec"]["command"] == "gke-gcloud-auth-plugin"
    assert "kubeconfig" in seen.get("pulumi:providers:kubernetes", "cluster").secret_inputs


def test_what_runs_in_the_cluster_comes_after_its_nodes_and_goes_before_them(deploy: Deploy) -> None:
    seen = deploy(_program_that_exports)
    inside = seen.get("kubernetes:core/v1:Namespace", "inside")
    assert all(seen.is_before(pool, inside) for pool in seen.of_type(POOL))
    provider = seen.get("pulumi:providers:kubernetes", "cluster").inputs
    # Another way to reach the same cluster must not replace what is in it.
    assert "clusterIdentifier" in provider
    # What an interrupted `up` made is taken over by the next one, and a ConfigMap is changed without a gap.
    assert provider["upsertExistingObjects"] == provider["enableConfigMapMutable"] == "true"


def test_a_preview_shows_the_same_resources_as_the_update(deploy: Deploy) -> None:
    def registered(preview: bool) -> set[tuple[str, str]]:
        seen: Deployment = deploy(_program_that_exports, preview=preview)
        return {(resource.type, resource.name) for resource in seen}

    assert registered(preview=True) == registered(preview=False)
