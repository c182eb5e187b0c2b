"""Rows of `tables` for GKE clusters and node pools."""

from __future__ import annotations

from emulator.gcp.resources.container import Cluster, NodePool
from emulator.gcp.row import ResourceType, paths

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
    # Terraform Google provider: google_container_cluster
    resource=Cluster(
        parent="v1beta1/projects/{project}/locations/{location}/clusters",
        identity="projects/{project}/locations/{location}/clusters/{name}",
        labels="resourceLabels",
        renamed={
            "datapathProvider": "networkConfig.datapathProvider",
            "dnsConfig": "networkConfig.dnsConfig",
            "enableAutopilot": "autopilot.enabled",
            "enableMultiNetworking": "networkConfig.enableMultiNetworking",
            "enableShieldedNodes": "shieldedNodes.enabled",
            "loggingConfig.enableComponents": "loggingConfig.componentConfig.enableComponents",
            "masterVersion": "currentMasterVersion",
            "minMasterVersion": "initialClusterVersion",
            "monitoringConfig.enableComponents": "monitoringConfig.componentConfig.enableComponents",
            "monitoringConfig.managedPrometheus": "monitoringConfig.managedPrometheusConfig",
            "nodeLocations": "locations",
            "nodeVersion": "currentNodeVersion",
        },
        unsent=frozenset({"removeDefaultNodePool"}),
    ),
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
    defaults=paths(
        """
        controlPlaneEndpointsConfig.dnsEndpointConfig.endpoint databaseEncryption deletionProtection
        ipAllocationPolicy.clusterIpv4CidrBlock ipAllocationPolicy.servicesIpv4CidrBlock
        masterAuth.clusterCaCertificate nodeVersion privateClusterConfig.privateEndpoint
        privateClusterConfig.publicEndpoint
        """
    ),
)

_NODE_POOL = ResourceType(
    # Terraform Google provider: google_container_node_pool
    resource=NodePool(
        parent="v1beta1/projects/{project}/locations/{location}/clusters/{cluster:last}/nodePools",
        identity="projects/{project}/locations/{location}/clusters/{cluster:last}/nodePools/{name}",
        renamed={"nodeLocations": "locations"},
    ),
    auto_name=("name", 40),
    replaces=paths(
        """
        name namePrefix project cluster location initialNodeCount maxPodsPerNode placementPolicy
        queuedProvisioning networkConfig.acceleratorNetworkProfile networkConfig.additionalNodeNetworkConfigs
        networkConfig.additionalPodNetworkConfigs networkConfig.createPodRange networkConfig.podCidrOverprovisionConfig
        networkConfig.podIpv4CidrBlock networkConfig.podRange networkConfig.subnetwork
        """
    )
    | _NODE_CONFIG,
    defaults=paths("initialNodeCount maxPodsPerNode nodeCount nodeLocations version"),
    not_computed=paths(
        "nodeConfig.advancedMachineFeatures nodeConfig.ephemeralStorageLocalSsdConfig queuedProvisioning"
    ),
)


CONTAINER_ROWS: dict[str, ResourceType] = {
    "gcp:container/cluster:Cluster": _CLUSTER,
    "gcp:container/nodePool:NodePool": _NODE_POOL,
}
