"""The names and addresses of simulated nodes."""

from __future__ import annotations

# A message to the kernel carries at most 253 descriptors, and each node has two.
MAX_NODES = 64
# The interface of each node to the others.
INTERFACE = "eth0"
# Bits of the network part of each node's address.
NETWORK_BITS = 16


def node_address(node: int) -> str:
    """Return the IPv4 address of a node. Only the world's own namespaces have it."""
    return f"10.0.0.{node + 1}"


def node_name(node: int) -> str:
    """Return the host name of a node."""
    return f"node{node}"
