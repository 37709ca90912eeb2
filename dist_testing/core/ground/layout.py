"""Where the ranks of a world are, in the words of torchrun: a group is the ranks of one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Ranks of one machine reach each other here, and no other machine can.
LOOPBACK = "127.0.0.1"

# $GLOO_SOCKET_IFNAME, $NCCL_SOCKET_IFNAME, $TP_SOCKET_IFNAME (library): network interface of gloo, NCCL and TensorPipe
# (default: lo, which only this machine reaches).
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of a world's ranks.

    Attributes:
        size: Number of ranks.
        places: The group of each rank, by rank; empty if all are in one.
        host: Address at which the ranks find the store; "" for this machine alone.
    """

    size: int
    places: tuple[int, ...] = ()
    host: str = ""

    @property
    def groups(self) -> int:
        """Number of groups."""
        return max(self.places) + 1 if self.places else 1

    @property
    def address(self) -> str:
        """The address at which the ranks find the store."""
        return self.host or LOOPBACK

    def group_of(self, rank: int) -> int:
        """Return the group of a rank."""
        return self.places[rank] if self.places else 0

    def local_size(self, rank: int) -> int:
        """Return the number of ranks of the group of a rank."""
        return self.places.count(self.places[rank]) if self.places else self.size

    def local_rank(self, rank: int) -> int:
        """Return the number of a rank among those of its group."""
        return self.places[:rank].count(self.places[rank]) if self.places else rank

    def world_env(self) -> dict[str, str]:
        """Return the variables that torchrun sets equally for all ranks. Groups may differ in `LOCAL_WORLD_SIZE`."""
        # $WORLD_SIZE, $GROUP_WORLD_SIZE, $LOCAL_WORLD_SIZE (library): number of ranks, of nodes, and of ranks of the
        # node.
        return {
            "WORLD_SIZE": str(self.size),
            "GROUP_WORLD_SIZE": str(self.groups),
            "LOCAL_WORLD_SIZE": str(self.local_size(0)),
        }

    def rank_env(self, rank: int) -> Mapping[str, str]:
        """Return the variables that torchrun sets for one rank."""
        # $RANK, $LOCAL_RANK, $GROUP_RANK (library): number of the rank in the world, and on its node; number of the
        # node.
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(self.local_rank(rank)),
            "GROUP_RANK": str(self.group_of(rank)),
            "LOCAL_WORLD_SIZE": str(self.local_size(rank)),
        }
