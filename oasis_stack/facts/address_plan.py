"""Cuts every range of the stack out of three blocks. Pure, and disjoint by construction.

The cuts depend on the blocks alone, never on pool sizes: a larger pool must not move a range, since a moved range
replaces the cluster. Pool sizes are only checked against what the cuts hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network

from oasis_stack.facts.problem import Problem, SettingsError

RESERVED_ADDRESSES = 4
"""Addresses of a subnet that Google keeps (Virtual Private Cloud documentation, "Subnets")."""

PODS_PER_NODE_PREFIX = 24
"""GKE gives a node with its default of 110 pods a /24 of the pods range ("Configure maximum Pods per node")."""

PRIVATE_BLOCKS = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
"""Where the blocks may lie: RFC 1918 and the shared space of RFC 6598, which a VPC accepts as well."""

# Widest and narrowest block that may be given. The narrow ends keep each cut above its service's minimum: /26 for a
# proxy-only subnet, /29 for a subnet and a Cloud Build worker pool, /21 for GKE's pods (rancher/rancher issue 36254).
# Services, a 16th of the primary block, are at most a /16 (rancher/rancher issue 32413).
_PREFIXES = {"primary_block": (12, 19), "pods_block": (9, 21), "device_block": (9, 25)}


@dataclass(frozen=True, kw_only=True)
class AddressPlan:
    """Every range of a stack, as CIDR text."""

    nodes: str
    """First interface of every node."""
    services: str
    """Kubernetes Services (secondary range)."""
    proxy_only: str
    """Proxies of an internal load balancer, if there is one."""
    peering: str
    """Cloud Build workers, if their pool is peered with the primary VPC."""
    control_plane: str
    """GKE control plane: always a /28."""
    pods: str
    """Kubernetes pods (secondary range): a /24 per node."""
    gvnic: str
    """Second gVNIC of the GPU nodes."""
    rdma: tuple[str, ...]
    """One range per RDMA NIC, in NIC order."""

    def ranges(self) -> dict[str, str]:
        """Every range by name."""
        single = {name: value for name, value in vars(self).items() if isinstance(value, str)}
        return single | {f"rdma-{index}": value for index, value in enumerate(self.rdma)}


def plan(
    primary_block: str,
    pods_block: str,
    device_block: str,
    max_gpu_nodes: int,
    max_other_nodes: int,
    rdma_nics: int,
) -> AddressPlan:
    """Cut the blocks, and check that they hold the nodes that the pools may ever have.

    Raises:
        SettingsError: a block is no private IPv4 network of a usable size, overlaps another, or holds too few.
    """
    given = {"primary_block": primary_block, "pods_block": pods_block, "device_block": device_block}
    blocks: dict[str, IPv4Network] = {}
    problems: list[Problem] = []
    for key, text in given.items():
        block = _block(key, text)
        if isinstance(block, Problem):
            problems.append(block)
        else:
            blocks[key] = block
    problems += _overlaps(blocks)
    if not problems:
        problems += _sizes(blocks, max_gpu_nodes, max_other_nodes)
    if problems:
        raise SettingsError(problems)

    primary, device = blocks["primary_block"], list(blocks["device_block"].subnets(prefixlen_diff=4))
    nodes, services, proxy_only, peering = _cut(primary, (2, 4, 7, 8))
    return AddressPlan(
        nodes=str(nodes),
        services=str(services),
        proxy_only=str(proxy_only),
        peering=str(peering),
        control_plane=f"{peering.broadcast_address + 1}/28",
        pods=str(blocks["pods_block"]),
        gvnic=str(device[0]),
        rdma=tuple(str(subnet) for subnet in device[1 : 1 + rdma_nics]),
    )


def _cut(block: IPv4Network, longer_by: tuple[int, ...]) -> Iterator[IPv4Network]:
    # Largest first and one behind the other, so each starts on a multiple of its own size.
    start = int(block.network_address)
    for bits in longer_by:
        part = IPv4Network((start, block.prefixlen + bits))
        start += part.num_addresses
        yield part


def _block(key: str, text: str) -> IPv4Network | Problem:
    widest, narrowest = _PREFIXES[key]
    allowed = f"a private IPv4 network from /{widest} to /{narrowest}, such as 10.64.0.0/{max(widest, narrowest - 3)}"
    try:
        block = IPv4Network(text)
    except ValueError as error:
        return Problem(key=f"network.{key}", value=text, allowed=allowed, remedy=f"correct it: {error}")
    if not widest <= block.prefixlen <= narrowest:
        return Problem(key=f"network.{key}", value=text, allowed=allowed, remedy="choose another size")
    if not any(block.subnet_of(private) for private in PRIVATE_BLOCKS):
        return Problem(
            key=f"network.{key}",
            value=text,
            allowed=f"a network inside {', '.join(map(str, PRIVATE_BLOCKS))}",
            remedy="choose a private network that nothing connected to this VPC uses",
        )
    return block


def _overlaps(blocks: dict[str, IPv4Network]) -> Iterator[Problem]:
    for (first, one), (second, other) in itertools.combinations(blocks.items(), 2):
        if one.overlaps(other):
            yield Problem(
                key=f"network.{second}",
                value=str(other),
                allowed=f"a network that does not overlap oasis:network.{first} ({one})",
                remedy="move one of the two blocks; moving one of an existing stack replaces its cluster",
            )


def _sizes(blocks: dict[str, IPv4Network], max_gpu_nodes: int, max_other_nodes: int) -> Iterator[Problem]:
    every = max_gpu_nodes + max_other_nodes
    # Key, bits by which the subnet of the nodes is longer than the block, nodes asked for.
    for key, bits, nodes in (("primary_block", 2, every), ("device_block", 4, max_gpu_nodes)):
        held = blocks[key].num_addresses // 2**bits - RESERVED_ADDRESSES
        if held < nodes:
            yield _too_small(key, blocks[key], held, nodes)
    held = 2 ** (PODS_PER_NODE_PREFIX - blocks["pods_block"].prefixlen)
    if held < every:
        yield _too_small("pods_block", blocks["pods_block"], held, every)


def _too_small(key: str, block: IPv4Network, held: int, nodes: int) -> Problem:
    return Problem(
        key=f"network.{key}",
        value=str(block),
        allowed=f"a block for {nodes} nodes, the sum of the pools' maxima and upgrade surges; this one holds {held}",
        remedy="give a wider block (a smaller number after the slash), or lower a pool's max_nodes",
    )
