"""The wiring diagram: settings -> components -> exports. Components are strangers; only this file introduces them."""

import pulumi

from oasis_stack import components as oasis
from oasis_stack import stack_outputs
from oasis_stack.components.queue import CONTROL_PLANE_PORTS
from oasis_stack.facts import names
from oasis_stack.pod_specs import ray_cluster_spec
from oasis_stack.pod_specs.network_policy import DASHBOARD_PORT
from oasis_stack.settings import settings

READ, WRITE, SEE = (f"roles/storage.{role}" for role in ("objectViewer", "objectUser", "bucketViewer"))
# Lets a principal see a bucket and the names in it. gcsfuse, up to at least version 3.11.2, mounts a folder only if it
# may list the whole bucket (GoogleCloudPlatform/gcsfuse pull request 4980): without this role no team's pod starts.
LIST = "roles/storage.legacyBucketReader"

stack = settings.load()
site, addresses, gke, ray = stack.site, stack.address_plan(), stack.cluster, stack.ray

# The optional parts of a stack; a part that is off is None here and below, and needs none of Google's APIs.
gpu, build, wandb, login = stack.gpu, stack.build, stack.wandb, stack.registry.docker_hub
fabric = gpu if gpu and gpu.machine.rdma_nics else None
ladder = gpu if gpu and gpu.class_entries else None
queued = gpu.queue if gpu else None
peered = build if build and build.peered else None
balanced = ray if ray.balanced else None
account, monthly_usd = stack.cost.billing_account, stack.cost.monthly_usd
encryption_key = oasis.EncryptionKey(name=gke.secrets_encryption_key) if gke.secrets_encryption_key else None

always = (oasis.Network, oasis.ArtifactRegistry, oasis.Bucket, oasis.Cluster, oasis.WorkloadIdentity)
optional = {
    oasis.RdmaNetwork: fabric,
    oasis.GpuNodePool: gpu,
    oasis.ApiKeySecret: wandb or login,
    oasis.ImageBuild: build,
    oasis.Peering: peered,
    oasis.InternalAddress: balanced,
    oasis.EncryptionKey: encryption_key,
    oasis.Budget: account,
}
apis = [api for part in (*always, *filter(optional.get, optional)) for api in part.APIS]
services = oasis.ProjectServices("services", oasis.ProjectServicesArgs(site=site, apis=apis))
cloud = pulumi.ResourceOptions(depends_on=[services])
budget = (
    account
    and monthly_usd
    and oasis.Budget(
        "budget",
        oasis.BudgetArgs(site=site, project_number=services.number, billing_account=account, monthly_usd=monthly_usd),
        cloud,
    )
)

proxied_port = DASHBOARD_PORT if stack.network.proxy_only else None
network = oasis.Network(
    "network",
    oasis.NetworkArgs(
        site=site,
        addresses=addresses,
        proxied_port=proxied_port,
        control_plane_ports=CONTROL_PLANE_PORTS if queued else [],
    ),
    cloud,
)
rdma = fabric and oasis.RdmaNetwork("rdma", oasis.RdmaNetworkArgs(site=site, addresses=addresses), cloud)

registry = oasis.ArtifactRegistry(
    "registry",
    oasis.ArtifactRegistryArgs(
        site=site,
        project_number=services.number,
        retention=stack.registry,
        docker_hub=login and oasis.DockerHub(username=login.username, password_secret=login.password_secret),
        in_use=ray.image,
    ),
    cloud,
)
people = {member for team in stack.teams for member in team.members}
data = oasis.Bucket("data", oasis.BucketArgs(site=site, retention=stack.data, hierarchical=False, seen_by=()), cloud)
runs = oasis.Bucket("runs", oasis.BucketArgs(site=site, retention=stack.runs, hierarchical=True, seen_by=people), cloud)
secret = wandb and oasis.ApiKeySecret(
    "wandb", oasis.ApiKeySecretArgs(site=site, retention=wandb, value=stack.wandb_api_key), cloud
)
peering = peered and oasis.Peering(
    network_id=network.network_id, project_number=services.number, address_range=addresses.peering
)
builds = build and oasis.ImageBuild(
    "build",
    oasis.ImageBuildArgs(
        site=site,
        machine_type=build.machine_type,
        disk_gb=build.disk_gb,
        peering=peering,
        image_repository_id=registry.repository_id,
        readable_repositories={"docker": registry.docker_index_id, "python": registry.python_index_id},
    ),
    cloud,
)

control_plane = oasis.ControlPlane(
    address_range=addresses.control_plane,
    endpoint=gke.endpoint,
    authorized_networks={known.cidr: known.name for known in gke.authorized_networks},
    release_channel=gke.release_channel,
    minimum_version=gke.minimum_version,
    maintenance_exclusion=gke.maintenance_exclusion and gke.maintenance_exclusion.period,
    secrets_encryption_key=encryption_key,
    security_group=gke.security_group,
)
cluster = oasis.Cluster(
    "cluster",
    oasis.ClusterArgs(
        site=site,
        project_number=services.number,
        network=network.for_cluster,
        control_plane=control_plane,
        system_pool=gke.system_pool,
        cpu_pool=gke.cpu_pool,
        readable_repositories={"docker": registry.docker_mirror_id, "images": registry.repository_id},
        deletion_protection=gke.deletion_protection,
    ),
    cloud,
)
# GKE refuses flex-start while no pool is always on: GPU pools are made after the other pools and deleted before them.
after_cluster = pulumi.ResourceOptions(depends_on=[services, cluster])
gpu_pools = (
    {
        entry: oasis.GpuNodePool(
            entry.pool_name,
            oasis.GpuNodePoolArgs(
                site=site,
                cluster_name=cluster.cluster_name,
                node_service_account=cluster.node_service_account,
                machine=gpu.machine,
                entry=entry,
                compute_class=gpu.compute_class,
                driver_version=gpu.driver_version,
                nics=rdma.nics if rdma else [],
            ),
            after_cluster,
        )
        for entry in gpu.capacity
    }
    if gpu
    else {}
)

inside = pulumi.ResourceOptions(providers=[cluster.provider])
# Device networks: on destroy each is deleted before the nodes whose NICs it names.
after_pools = pulumi.ResourceOptions(providers=[cluster.provider], depends_on=[*gpu_pools.values()])
operator = oasis.KubeRay(
    "kuberay", oasis.KubeRayArgs(repository=ray.operator_repository, kubeconfig=cluster.kubeconfig), inside
)
gpu_class = ladder and oasis.ComputeClass(
    "gpu-class",
    oasis.ComputeClassArgs(
        class_name=ladder.compute_class,
        pool_names=[gpu_pools[entry].pool_name for entry in ladder.class_entries],
        consolidation_delay_minutes=ladder.consolidation_delay_minutes,
        kubeconfig=cluster.kubeconfig,
    ),
    inside,
)
devices = rdma and oasis.DeviceNetworks(
    "devices", oasis.DeviceNetworksArgs(nics=rdma.nics, kubeconfig=cluster.kubeconfig), after_pools
)
kueue = (
    gpu
    and queued
    and oasis.Kueue(
        "kueue",
        oasis.KueueArgs(
            chart=gpu.queue_chart,
            namespaces=[share.namespace for share in stack.queue_shares.values()],
            kubeconfig=cluster.kubeconfig,
        ),
        inside,
    )
)
queue = (
    gpu
    and queued
    and kueue
    and oasis.Queue(
        "queue",
        oasis.QueueArgs(
            shares=stack.queue_shares,
            pool_name=gpu_pools[queued].pool_name,
            machine=gpu.machine,
            entry=queued,
            head=ray.head.size,
        ),
        pulumi.ResourceOptions(providers=[cluster.provider], depends_on=[kueue]),
    )
)

buckets = {
    "data": oasis.BucketGrant(bucket=data.bucket_name, roles=(READ, SEE)),
    "runs": oasis.BucketGrant(bucket=runs.bucket_name, roles=(WRITE, SEE)),
}
readable = {
    "secrets": {"wandb": secret.secret_id} if secret else {},
    "repositories": {"python": registry.python_index_id},
}
identity = oasis.WorkloadIdentity(
    "identity",
    oasis.WorkloadIdentityArgs(
        site=site,
        project_number=services.number,
        cluster_name=cluster.cluster_name,
        namespace=ray.namespace,
        service_account=names.RAY_ACCOUNT,
        buckets=buckets,
        folders={},
        **readable,
    ),
    cloud,
)
dashboard = balanced and oasis.InternalAddress(
    "dashboard", oasis.InternalAddressArgs(site=site, subnet_id=network.subnet_id), cloud
)
environment = stack_outputs.cluster_environment(
    stack, cluster=cluster, registry=registry, data=data, runs=runs, secret=secret, dashboard=dashboard
)
gpu_workers = gpu and oasis.GpuGroup(
    compute_class=gpu_class.class_name if gpu_class else gpu.compute_class,
    machine=gpu.machine,
    max_nodes=gpu.class_nodes,
    spot=gpu.has_spot,
    max_run_seconds=gpu.max_run_seconds,
    device_networks=devices.network_names if devices else [],
)
pods = oasis.RayPods(
    ray_version=ray.version,
    image=environment["image"],
    head=ray.head.size,
    cpu_worker=oasis.PodSize(cpus=ray.cpu_worker.cpus, memory_gib=ray.cpu_worker.memory_gb),
    cpu_workers_max=ray.cpu_workers_max,
    gpu=gpu_workers,
    idle_timeout_seconds=ray.idle_timeout_seconds,
    data_bucket=data.bucket_name,
    runs_bucket=runs.bucket_name,
)
# A team's pods use the data bucket and a folder of the runs bucket; its members use that folder too.
team_identities = [
    oasis.WorkloadIdentity(
        f"identity-{team.name}",
        oasis.WorkloadIdentityArgs(
            site=site,
            project_number=services.number,
            cluster_name=cluster.cluster_name,
            namespace=team.name,
            service_account=names.RAY_ACCOUNT,
            buckets={"data": buckets["data"], "runs": oasis.BucketGrant(bucket=runs.bucket_name, roles=(LIST,))},
            folders={
                "runs": oasis.FolderGrant(
                    bucket=runs.bucket_name,
                    folder=names.team_folder(team.name),
                    roles=(WRITE,),
                    also=team.members,
                )
            },
            **readable,
        ),
        cloud,
    )
    for team in stack.teams
]
teams = [
    oasis.Team(
        team.name,
        oasis.TeamArgs(
            namespace=team.name,
            environment=stack_outputs.team_environment(environment, team, share.most_nodes),
            ray_cluster=ray_cluster_spec.cluster_of(pods, names.team_folder(team.name)),
            cluster_queue=queue.cluster_queues[names.team_queue(team.name)],
            members=team.members,
            kubeconfig=cluster.kubeconfig,
        ),
        pulumi.ResourceOptions(providers=[cluster.provider], depends_on=[queue, runs, *team_identities]),
    )
    for team in stack.teams
    for share in [stack.queue_shares[names.team_queue(team.name)]]
    if queue
]
load_balancer = dashboard and oasis.InternalLoadBalancer(
    address=dashboard.address, port=ray.dashboard_port, client_ranges=ray.dashboard_client_ranges
)
oasis.RayCluster(
    "ray",
    oasis.RayClusterArgs(
        namespace=ray.namespace,
        cluster_name=ray.cluster_name,
        environment=environment,
        pods=pods,
        cluster_queue=queue.cluster_queues[names.CLUSTER_QUEUE] if queue else None,
        control_plane_ranges=[addresses.control_plane, addresses.services],
        load_balancer=load_balancer,
        kubeconfig=cluster.kubeconfig,
    ),
    # Pods need their grants, and GPU pods need nodes; on destroy both outlive users' Ray objects and jobs, as do the
    # operators.
    pulumi.ResourceOptions(
        providers=[cluster.provider],
        depends_on=[operator, identity, *teams, *gpu_pools.values(), *filter(None, (gpu_class, devices, queue))],
    ),
)

exports = stack_outputs.for_people(stack, cluster=cluster, registry=registry, builds=builds)
for output, value in {**environment, **exports}.items():
    pulumi.export(output, value)
