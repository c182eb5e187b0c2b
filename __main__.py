"""The wiring diagram: settings -> components -> exports. Components are strangers; only this file introduces them."""

import pulumi

from oasis_stack import components as oasis
from oasis_stack import stack_outputs
from oasis_stack.facts import names
from oasis_stack.facts.machine import RDMA_MTU
from oasis_stack.pod_specs.network_policy import DASHBOARD_PORT
from oasis_stack.settings import settings

READ, WRITE, SEE = (f"roles/storage.{role}" for role in ("objectViewer", "objectUser", "bucketViewer"))
# One paragraph per component, its wires side by side: the whole on one page. A formatter would give each a line.
# fmt: off
stack = settings.load()
project, region, zone, name, labels = stack.project, stack.region, stack.zone, stack.name, stack.labels
gke, gpu, ray, build, wandb, repos = stack.cluster, stack.gpu, stack.ray, stack.build, stack.wandb, stack.registry
ranges, kms_key = stack.address_plan(), gke.secrets_encryption_key
system_nodes, cpu_nodes = ({names.NODE_POOL_LABEL: role} for role in ("system", "cpu"))

parts = [oasis.Network, oasis.ArtifactRegistry, oasis.Bucket, oasis.Cluster, oasis.WorkloadIdentity, *(
    part for part, wanted in ((oasis.GpuNodePool, gpu), (oasis.RdmaNetwork, gpu), (oasis.ImageBuild, build),
    (oasis.ApiKeySecret, wandb or repos.docker_hub), (oasis.EncryptionKey, kms_key),
    (oasis.Peering, build and build.peered)) if wanted)]
services = oasis.ProjectServices("services", oasis.ProjectServicesArgs(
    project=project, apis=[api for part in parts for api in part.APIS]))
cloud = pulumi.ResourceOptions(depends_on=[services])
network = oasis.Network("network", oasis.NetworkArgs(
    project=project, region=region, node_range=ranges.nodes, pods_range=ranges.pods, services_range=ranges.services,
    proxy_only_range=ranges.proxy_only if stack.network.proxy_only else None, proxied_port=DASHBOARD_PORT,
    mtu=RDMA_MTU), cloud)
rdma = oasis.RdmaNetwork("rdma", oasis.RdmaNetworkArgs(
    project=project, region=region, zone=zone, gvnic_range=ranges.gvnic, rdma_ranges=ranges.rdma,
    mtu=RDMA_MTU), cloud) if gpu and gpu.machine.rdma_nics else None

registry = oasis.ArtifactRegistry("registry", oasis.ArtifactRegistryArgs(
    project=project, project_number=services.number, region=region, prefix=name, labels=labels, keep=repos.keep,
    adopt=repos.adopt, in_use=ray.image, keep_untagged_days=repos.keep_untagged_days, keep_versions=repos.keep_versions,
    docker_hub=oasis.DockerHub(username=repos.docker_hub.username, password_secret=repos.docker_hub.password_secret)
    if repos.docker_hub else None), cloud)
data, runs = (oasis.Bucket(purpose, oasis.BucketArgs(
    project=project, region=region, bucket_name=names.bucket(project, name, purpose), labels=labels,
    hierarchical=purpose == "runs", soft_delete_days=bucket.soft_delete_days, keep=bucket.keep, adopt=bucket.adopt,
), cloud) for purpose, bucket in (("data", stack.data), ("runs", stack.runs)))
secret = oasis.ApiKeySecret("wandb", oasis.ApiKeySecretArgs(
    project=project, secret_name=names.secret(name, "wandb"), labels=labels, keep=wandb.keep, adopt=wandb.adopt,
    value=stack.wandb_api_key), cloud) if wandb else None
peering = oasis.Peering(network_id=network.network_id, project_number=services.number, address_range=ranges.peering)
builds = oasis.ImageBuild("build", oasis.ImageBuildArgs(
    project=project, region=region, machine_type=build.machine_type, disk_gb=build.disk_gb, labels=labels,
    peering=peering if build.peered else None, builder_account_id=names.service_account(name, "image-builder"),
    source_bucket_name=names.bucket(project, name, "build"), image_repository_id=registry.repository_id,
    readable_repositories={"docker": registry.docker_index_id, "python": registry.python_index_id},
), cloud) if build else None

cluster = oasis.Cluster("cluster", oasis.ClusterArgs(
    project=project, project_number=services.number, region=region, node_locations=[zone], labels=labels,
    network_id=network.network_id, subnet_id=network.subnet_id, pods_range_name=network.pods_range_name,
    services_range_name=network.services_range_name, control_plane_range=ranges.control_plane, endpoint=gke.endpoint,
    authorized_networks={known.cidr: known.name for known in gke.authorized_networks},
    release_channel=gke.release_channel, minimum_version=gke.minimum_version,
    maintenance_exclusion=gke.maintenance_exclusion and gke.maintenance_exclusion.period, pools={
        role: oasis.PoolArgs(machine_type=pool.machine_type, min_nodes=pool.min_nodes, max_nodes=pool.max_nodes,
                             labels=nodes, dedicated=role == "cpu") for role, pool, nodes in (
            ("system", gke.system_pool, system_nodes), ("cpu", gke.cpu_pool, cpu_nodes)) if pool.max_nodes},
    readable_repositories={"docker": registry.docker_mirror_id, "images": registry.repository_id},
    node_account_id=names.service_account(name, "nodes"), deletion_protection=gke.deletion_protection,
    secrets_encryption_key=oasis.EncryptionKey(name=kms_key) if kms_key else None), cloud)
nics = [oasis.AdditionalNetwork(network=vpc, subnetwork=subnet) for vpc, subnet in (
    (rdma.gvnic_network_name, rdma.gvnic_subnet_name),
    *((rdma.rdma_network_name, nic) for nic in rdma.rdma_subnet_names))] if rdma else []
# Flex-start is refused where no pool is always on yet: GPU pools come after the others, and go before them.
gpu_pools = [oasis.GpuNodePool(entry.pool_name, oasis.GpuNodePoolArgs(
    project=project, cluster_name=cluster.cluster_name, region=region, zone=zone, machine=gpu.machine, entry=entry,
    compute_class=gpu.compute_class, driver_version=gpu.driver_version, additional_networks=nics,
    node_service_account=cluster.node_service_account, labels=labels,
), pulumi.ResourceOptions(depends_on=[services, cluster])) for entry in gpu.capacity] if gpu else []

# After the pools, so that on destroy a device network goes before the nodes whose NICs it names.
inside, after_pools = (pulumi.ResourceOptions(providers=[cluster.provider], depends_on=p) for p in ([], gpu_pools))
operator = oasis.KubeRay("kuberay", oasis.KubeRayArgs(
    namespace=names.KUBERAY_NAMESPACE, repository=ray.operator_repository, version=names.KUBERAY_VERSION,
    system_pool_labels=system_nodes, kubeconfig=cluster.kubeconfig), inside)
gpu_class = oasis.ComputeClass("gpu-class", oasis.ComputeClassArgs(
    class_name=gpu.compute_class, pool_names=[pool.pool_name for pool in gpu_pools], kubeconfig=cluster.kubeconfig,
    consolidation_delay_minutes=gpu.consolidation_delay_minutes), inside) if gpu else None
devices = oasis.DeviceNetworks("devices", oasis.DeviceNetworksArgs(
    gvnic_network_name=rdma.gvnic_network_name, gvnic_subnet_name=rdma.gvnic_subnet_name,
    rdma_network_name=rdma.rdma_network_name, rdma_subnet_names=rdma.rdma_subnet_names,
    kubeconfig=cluster.kubeconfig), after_pools) if rdma else None
identity = oasis.WorkloadIdentity("identity", oasis.WorkloadIdentityArgs(
    project=project, project_number=services.number, cluster_name=cluster.cluster_name, namespace=ray.namespace,
    service_account=names.RAY_ACCOUNT, secrets={"wandb": secret.secret_id} if secret else {}, buckets={
        "data": oasis.BucketGrant(bucket=data.bucket_name, roles=(READ, SEE)),
        "runs": oasis.BucketGrant(bucket=runs.bucket_name, roles=(WRITE, SEE))},
    repositories={"python": oasis.RepositoryGrant(location=region, repository=registry.python_index_id)}), cloud)
dashboard = oasis.InternalAddress("dashboard", oasis.InternalAddressArgs(
    project=project, region=region, subnet_id=network.subnet_id, labels=labels), cloud) if ray.balanced else None
address = dashboard.address if dashboard else None
environment = stack_outputs.cluster_environment(
    stack, cluster_name=cluster.cluster_name, data_uri=data.uri, runs_uri=runs.uri, dashboard_address=address,
    image_repository=registry.image_repository, docker_mirror=registry.docker_mirror,
    python_index_url=registry.python_index_url, wandb_secret=secret.secret_id if secret else "")
oasis.RayCluster("ray", oasis.RayClusterArgs(
    namespace=ray.namespace, cluster_name=ray.cluster_name, ray_version=ray.version, image=environment["image"],
    environment=environment, service_account=names.RAY_ACCOUNT, idle_timeout_seconds=ray.idle_timeout_seconds,
    head=oasis.PodSize(cpus=ray.head.cpus, memory_gib=ray.head.memory_gb), system_pool_labels=system_nodes,
    cpu_worker=oasis.PodSize(cpus=ray.cpu_worker.cpus, memory_gib=ray.cpu_worker.memory_gb),
    cpu_workers_max=ray.cpu_workers_max, cpu_pool_labels=cpu_nodes, gpu=oasis.GpuGroup(
        compute_class=gpu_class.class_name, machine=gpu.machine, max_nodes=gpu.max_nodes, spot=gpu.has_spot,
        max_run_seconds=gpu.max_run_seconds, device_networks=devices.network_names if devices else []
    ) if gpu and gpu_class else None, data_bucket=data.bucket_name, runs_bucket=runs.bucket_name,
    operator_namespace=names.KUBERAY_NAMESPACE, control_plane_ranges=[ranges.control_plane, ranges.services],
    kubeconfig=cluster.kubeconfig, dashboard_address=address, dashboard_port=ray.dashboard_port,
    dashboard_client_ranges=ray.dashboard_client_ranges,
    # Pods need their grants, GPU pods nodes; on destroy these and the operator outlive users' Ray objects.
), pulumi.ResourceOptions(providers=[cluster.provider], depends_on=[
    operator, identity, *gpu_pools, *filter(None, (gpu_class, devices))]))

for output, value in {
    **environment, "kubeconfig": cluster.kubeconfig, "gpu_compute_class": gpu.compute_class if gpu else "",
    "get_credentials_command": stack_outputs.get_credentials_command(stack, cluster.cluster_name),
    "docker_index": registry.docker_index, "image_build_worker_pool": builds.worker_pool if builds else "",
    "image_builder": builds.builder_service_account if builds else "",
    "image_build_bucket": builds.source_bucket if builds else ""}.items():
    pulumi.export(output, value)
