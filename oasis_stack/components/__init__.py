"""All components and their arguments: the parts from which the wiring diagram, or your own program, builds a stack."""

from oasis_stack.components.artifact_registry import ArtifactRegistry, ArtifactRegistryArgs, DockerHub
from oasis_stack.components.bucket import Bucket, BucketArgs
from oasis_stack.components.cluster import Cluster, ClusterArgs
from oasis_stack.components.compute_class import ComputeClass, ComputeClassArgs
from oasis_stack.components.control_plane import ControlPlane, EncryptionKey
from oasis_stack.components.device_network import DeviceNetworks, DeviceNetworksArgs
from oasis_stack.components.iam import BucketGrant, FolderGrant, WorkloadIdentity, WorkloadIdentityArgs
from oasis_stack.components.image_build import ImageBuild, ImageBuildArgs, Peering
from oasis_stack.components.kuberay import KubeRay, KubeRayArgs
from oasis_stack.components.network import InternalAddress, InternalAddressArgs, Network, NetworkArgs
from oasis_stack.components.node_config import AdditionalNetwork, ClusterNetwork
from oasis_stack.components.node_pool import GpuNodePool, GpuNodePoolArgs
from oasis_stack.components.project_services import Budget, BudgetArgs, ProjectServices, ProjectServicesArgs
from oasis_stack.components.queue import Kueue, KueueArgs, Queue, QueueArgs
from oasis_stack.components.ray_cluster import InternalLoadBalancer, RayCluster, RayClusterArgs
from oasis_stack.components.rdma_network import RdmaNetwork, RdmaNetworkArgs
from oasis_stack.components.secret import ApiKeySecret, ApiKeySecretArgs
from oasis_stack.components.team import Team, TeamArgs
from oasis_stack.facts.pod_size import PodSize
from oasis_stack.pod_specs.pods import GpuGroup
from oasis_stack.pod_specs.ray_cluster_spec import RayPods

__all__ = [
    "AdditionalNetwork",
    "ApiKeySecret",
    "ApiKeySecretArgs",
    "ArtifactRegistry",
    "ArtifactRegistryArgs",
    "Bucket",
    "BucketArgs",
    "BucketGrant",
    "Budget",
    "BudgetArgs",
    "Cluster",
    "ClusterArgs",
    "ClusterNetwork",
    "ComputeClass",
    "ComputeClassArgs",
    "ControlPlane",
    "DeviceNetworks",
    "DeviceNetworksArgs",
    "DockerHub",
    "EncryptionKey",
    "FolderGrant",
    "GpuGroup",
    "GpuNodePool",
    "GpuNodePoolArgs",
    "ImageBuild",
    "ImageBuildArgs",
    "InternalAddress",
    "InternalAddressArgs",
    "InternalLoadBalancer",
    "KubeRay",
    "KubeRayArgs",
    "Kueue",
    "KueueArgs",
    "Network",
    "NetworkArgs",
    "Peering",
    "PodSize",
    "ProjectServices",
    "ProjectServicesArgs",
    "Queue",
    "QueueArgs",
    "RayCluster",
    "RayClusterArgs",
    "RayPods",
    "RdmaNetwork",
    "RdmaNetworkArgs",
    "Team",
    "TeamArgs",
    "WorkloadIdentity",
    "WorkloadIdentityArgs",
]
