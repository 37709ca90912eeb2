"""Where the ranks of a world are: how many on each node, and the names and addresses of the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dist_testing.core.ground.errors import UsageError

# Ranks of one machine reach each other here, and no other machine can.
LOOPBACK = "127.0.0.1"
# A message to the kernel carries at most 253 descriptors, and each node has two.
MAX_NODES = 64
# The interface of each node to the others.
INTERFACE = "eth0"
# Bits of the network part of each node's address.
NETWORK_BITS = 16

# By these variables the libraries below torch choose their interface.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of a world's ranks. Each simulated node has equally many, in the order of the ranks.

    Attributes:
        size: Number of ranks.
        nodes: Number of simulated nodes, which divides it. 1 for the machine itself, without namespaces.
        places: The node of each rank of an attached world, by rank; empty for other worlds.
        host: Address at which the ranks of an attached world find the store; "" for this machine alone.
    """

    size: int
    nodes: int = 1
    places: tuple[int, ...] = ()
    host: str = ""

    def local_size(self, rank: int) -> int:
        """Return the number of ranks of the node of a rank."""
        return self.places.count(self.places[rank]) if self.places else self.size // self.nodes

    @property
    def has_namespaces(self) -> bool:
        """Whether the nodes are simulated by namespaces."""
        return self.nodes > 1

    @property
    def address(self) -> str:
        """The address at which the ranks find the store, which is on node 0."""
        return node_address(0) if self.has_namespaces else self.host or LOOPBACK

    def node_of(self, rank: int) -> int:
        """Return the node of a rank."""
        return self.places[rank] if self.places else rank // self.local_size(rank)

    def local_rank(self, rank: int) -> int:
        """Return the number of a rank among those of its node."""
        if self.places:
            return self.places[:rank].count(self.places[rank])
        return rank % self.local_size(rank)

    def world_env(self) -> dict[str, str]:
        """Return the variables that torchrun sets equally for all ranks, and those that name the interface."""
        env = {
            "WORLD_SIZE": str(self.size),
            # With places it may differ between nodes; then it is a variable of the rank.
            "LOCAL_WORLD_SIZE": str(self.size // self.nodes),
            "GROUP_WORLD_SIZE": str(max(self.places) + 1 if self.places else self.nodes),
        }
        return env | dict.fromkeys(INTERFACE_VARIABLES, INTERFACE) if self.has_namespaces else env

    def rank_env(self, rank: int) -> Mapping[str, str]:
        """Return the variables that torchrun sets for one rank."""
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(self.local_rank(rank)),
            "GROUP_RANK": str(self.node_of(rank)),
        }
        return env | {"LOCAL_WORLD_SIZE": str(self.local_size(rank))} if self.places else env


def is_node_count(value: object) -> bool:
    """Return whether `value` is a possible number of nodes: an int from 1 to MAX_NODES, and not a bool."""
    return type(value) is int and 1 <= value <= MAX_NODES


def check_node_count(subject: str, value: object) -> int:
    """Return `value`, if it is a possible number of nodes.

    Raises:
        UsageError: If it is not. Its text begins with `subject`.
    """
    if not is_node_count(value):
        raise UsageError(
            f"{subject}: nodes = {value!r}; expected a number from 1 to {MAX_NODES}.\n"
            "The ranks of a world are spread over that many simulated nodes of this machine.\n"
            "Use 2, for example, or leave it out."
        )
    assert isinstance(value, int)
    return value


def node_address(node: int) -> str:
    """Return the IPv4 address of a node. Only the world's own namespaces have it."""
    return f"10.0.0.{node + 1}"


def node_name(node: int) -> str:
    """Return the host name of a node."""
    return f"node{node}"
