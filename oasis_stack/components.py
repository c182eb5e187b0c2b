"""Every component with its arguments: what the wiring diagram, or a program of your own, builds a stack from."""

from oasis_stack.artifact_registry import ArtifactRegistry, ArtifactRegistryArgs, DockerHub
from oasis_stack.bucket import Bucket, BucketArgs
from oasis_stack.cluster import Cluster, ClusterArgs
from oasis_stack.compute_class import ComputeClass, ComputeClassArgs
from oasis_stack.control_plane import EncryptionKey
from oasis_stack.cpu_pool import PoolArgs
from oasis_stack.device_network import DeviceNetworks, DeviceNetworksArgs
from oasis_stack.iam import BucketGrant, RepositoryGrant, WorkloadIdentity, WorkloadIdentityArgs
from oasis_stack.image_build import ImageBuild, ImageBuildArgs, Peering
from oasis_stack.internal_address import InternalAddress, InternalAddressArgs
from oasis_stack.kuberay import KubeRay, KubeRayArgs
from oasis_stack.network import Network, NetworkArgs
from oasis_stack.node_pool import AdditionalNetwork, GpuNodePool, GpuNodePoolArgs
from oasis_stack.pod_size import PodSize
from oasis_stack.project_services import ProjectServices, ProjectServicesArgs
from oasis_stack.ray_cluster import RayCluster, RayClusterArgs
from oasis_stack.ray_pods import GpuGroup
from oasis_stack.rdma_network import RdmaNetwork, RdmaNetworkArgs
from oasis_stack.secret import ApiKeySecret, ApiKeySecretArgs

__all__ = [
    "AdditionalNetwork",
    "ApiKeySecret",
    "ApiKeySecretArgs",
    "ArtifactRegistry",
    "ArtifactRegistryArgs",
    "Bucket",
    "BucketArgs",
    "BucketGrant",
    "Cluster",
    "ClusterArgs",
    "ComputeClass",
    "ComputeClassArgs",
    "DeviceNetworks",
    "DeviceNetworksArgs",
    "DockerHub",
    "EncryptionKey",
    "GpuGroup",
    "GpuNodePool",
    "GpuNodePoolArgs",
    "ImageBuild",
    "ImageBuildArgs",
    "InternalAddress",
    "InternalAddressArgs",
    "KubeRay",
    "KubeRayArgs",
    "Network",
    "NetworkArgs",
    "Peering",
    "PodSize",
    "PoolArgs",
    "ProjectServices",
    "ProjectServicesArgs",
    "RayCluster",
    "RayClusterArgs",
    "RdmaNetwork",
    "RdmaNetworkArgs",
    "RepositoryGrant",
    "WorkloadIdentity",
    "WorkloadIdentityArgs",
]
