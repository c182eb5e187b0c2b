"""GKE clusters and node pools: the rows of `tables` for them. The cluster's endpoint is the local API server."""

from __future__ import annotations

from typing import Any

from emulator.gcp.row import Edge, Made, ResourceType, attributed_labels, paths

GKE_VERSION = "1.36.3-gke.1208000"
"""What every release channel of the emulated GKE runs: the Kubernetes version of the local API server."""


def _endpoint(made: Made) -> str:
    return str(made.control_plane.get("endpoint", ""))


def _certificate(made: Made) -> str:
    return str(made.control_plane.get("ca", ""))


def _instance_groups(made: Made) -> list[str]:
    body = made.body
    zones: Any = body.get("nodeLocations") or [body["location"]]
    cluster, pool = str(body["cluster"]).rsplit("/", 1)[-1], body["name"]
    manager = "https://www.googleapis.com/compute/v1/projects/{}/zones/{}/instanceGroupManagers/gke-{}-{}-{}-grp"
    return [manager.format(made.project, zone, cluster, pool, made.digits(8, zone)) for zone in zones]


_NODE_CONFIG = paths(
    """
    nodeConfig.advancedMachineFeatures.enableNestedVirtualization nodeConfig.advancedMachineFeatures.threadsPerCore
    nodeConfig.bootDiskKmsKey nodeConfig.confidentialNodes.confidentialInstanceType
    nodeConfig.enableConfidentialStorage nodeConfig.ephemeralStorageLocalSsdConfig nodeConfig.flexStart
    nodeConfig.guestAccelerators nodeConfig.hostMaintenancePolicy nodeConfig.localNvmeSsdBlockConfig
    nodeConfig.localSsdCount nodeConfig.localSsdEncryptionMode nodeConfig.maxRunDuration nodeConfig.metadata
    nodeConfig.minCpuPlatform nodeConfig.nodeGroup nodeConfig.oauthScopes nodeConfig.preemptible
    nodeConfig.reservationAffinity nodeConfig.sandboxConfig nodeConfig.secondaryBootDisks nodeConfig.serviceAccount
    nodeConfig.shieldedInstanceConfig nodeConfig.soleTenantConfig nodeConfig.spot
    """
)

_CLUSTER = ResourceType(
    source="Terraform Google provider: google_container_cluster",
    kind="container/cluster",
    api="container.googleapis.com",
    identity="projects/{project}/locations/{location}/clusters/{name}",
    auto_name=("name", 40),
    replaces=paths(
        """
        name location project description network subnetwork networkingMode datapathProvider nodePools initialNodeCount
        clusterIpv4Cidr confidentialNodes defaultMaxPodsPerNode enableAutopilot enableKubernetesAlpha enableTpu
        ipAllocationPolicy.clusterIpv4CidrBlock ipAllocationPolicy.clusterSecondaryRangeName
        ipAllocationPolicy.podCidrOverprovisionConfig ipAllocationPolicy.servicesIpv4CidrBlock
        ipAllocationPolicy.servicesSecondaryRangeName masterAuth.clientCertificateConfig
        privateClusterConfig.masterIpv4CidrBlock privateClusterConfig.privateEndpointSubnetwork
        clusterAutoscaling.autoProvisioningDefaults.bootDiskKmsKey userManagedKeysConfig.aggregationCa
        userManagedKeysConfig.clusterCa userManagedKeysConfig.etcdApiCa userManagedKeysConfig.etcdPeerCa
        """
    )
    | _NODE_CONFIG,
    edges=(Edge(path="network", kind="compute/network"), Edge(path="subnetwork", kind="compute/subnetwork")),
    defaults={
        "controlPlaneEndpointsConfig.dnsEndpointConfig.endpoint": _endpoint,
        "deletionProtection": True,
        "masterAuth.clusterCaCertificate": _certificate,
        "nodeVersion": GKE_VERSION,
        "privateClusterConfig.privateEndpoint": _endpoint,
        "privateClusterConfig.publicEndpoint": _endpoint,
    },
    computed={
        "effectiveLabels": lambda made: attributed_labels(made, "resourceLabels"),
        "emulatedVersion": "",
        "endpoint": _endpoint,
        "labelFingerprint": lambda made: made.digits(8),
        "masterVersion": GKE_VERSION,
        "operation": "",
        "pulumiLabels": lambda made: attributed_labels(made, "resourceLabels"),
        "selfLink": "https://container.googleapis.com/v1/{id}",
        "servicesIpv4Cidr": lambda made: made.body.get("ipAllocationPolicy", {}).get("servicesIpv4CidrBlock", ""),
        "tpuIpv4CidrBlock": "",
    },
)

_NODE_POOL = ResourceType(
    source="Terraform Google provider: google_container_node_pool",
    kind="container/nodePool",
    api="container.googleapis.com",
    identity="projects/{project}/locations/{location}/clusters/{cluster:last}/nodePools/{name}",
    auto_name=("name", 40),
    replaces=paths(
        """
        name namePrefix project cluster location initialNodeCount maxPodsPerNode placementPolicy.policyName
        queuedProvisioning networkConfig.acceleratorNetworkProfile networkConfig.additionalNodeNetworkConfigs
        networkConfig.additionalPodNetworkConfigs networkConfig.createPodRange networkConfig.podCidrOverprovisionConfig
        networkConfig.podIpv4CidrBlock networkConfig.podRange networkConfig.subnetwork
        """
    )
    | _NODE_CONFIG,
    edges=(
        Edge(path="cluster", kind="container/cluster", relation="part-of"),
        Edge(path="networkConfig.additionalNodeNetworkConfigs.network", kind="compute/network"),
        Edge(path="networkConfig.additionalNodeNetworkConfigs.subnetwork", kind="compute/subnetwork"),
        # An account may go while nodes run as it; they lose their access ("Delete and undelete service accounts").
        Edge(path="nodeConfig.serviceAccount", kind="iam/serviceAccount", relation=None),
    ),
    defaults={
        "initialNodeCount": lambda made: made.body.get("nodeCount", 0),
        "maxPodsPerNode": 110,
        "nodeCount": lambda made: made.body.get("initialNodeCount", 0),
        "nodeLocations": lambda made: _zones(made),
        "version": GKE_VERSION,
    },
    computed={
        "instanceGroupUrls": _instance_groups,
        "managedInstanceGroupUrls": _instance_groups,
        "operation": "",
    },
)


def _zones(made: Made) -> list[str]:
    location = str(made.body["location"])
    # A regional pool that names no zones gets the cluster's; three zones a, b, c is what most regions have.
    return [location] if location.count("-") == 2 else [f"{location}-{letter}" for letter in "abc"]


CONTAINER_ROWS: dict[str, ResourceType] = {
    "gcp:container/cluster:Cluster": _CLUSTER,
    "gcp:container/nodePool:NodePool": _NODE_POOL,
}
