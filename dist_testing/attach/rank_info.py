"""Rank info: a process's rank in an attached world, and the store by which its ranks find each other."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from dist_testing.core.ground.errors import LaunchError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# Limit for every rank to collect the tests and connect: from a cold disk the import of torch takes a minute. Seconds.
ATTACH_LIMIT_S = 300.0
# Names the address of this machine that the other nodes reach, if it is not that of MASTER_ADDR.
ADDRESS_VARIABLE = "DIST_TESTING_ADDRESS"


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A process's rank in an attached world.

    Attributes:
        rank: From 0. Rank 0 is also the runner.
        size: Ranks in the world.
        address: Host of the store that all ranks use.
        port: Port of the store.
        is_served: Whether torchrun's agent serves the store already; else rank 0 serves it.
        attempt: Distinguishes this start of the world from torchrun's earlier ones.
        launcher: Name of the launcher that has started the ranks.
        has_other_nodes: Whether some ranks are on other nodes, as far as the launcher tells.
        node: The launcher's name of this node; "" if it does not tell.
        local_rank: Rank among those of the node; None if the launcher does not tell.
        local_size: Number of ranks of the node, as far as the launcher tells.
        variable: The launcher's variable that tells the rank.
    """

    rank: int
    size: int
    address: str
    port: int
    is_served: bool
    attempt: str
    launcher: str = "torchrun"
    has_other_nodes: bool = False
    node: str = ""
    local_rank: int | None = None
    local_size: int = 0
    variable: str = "RANK"

    @property
    def is_runner(self) -> bool:
        """Whether this process is rank 0, which judges and reports."""
        return self.rank == 0

    def store(self) -> Store:
        """Connect to the store, under a prefix of keys of our own.

        It is independent of the groups of the tests, so it works also if those fail.

        Raises:
            LaunchError: If this is rank 0, serves the store, and cannot listen at its address.
            RuntimeError: If the store cannot be reached.
        """
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        serves = self.is_runner and not self.is_served
        listener = self._listener() if serves else None
        store = TCPStore(
            self.address,
            self.port,
            self.size,
            is_master=serves,
            timeout=timedelta(seconds=ATTACH_LIMIT_S),
            wait_for_workers=False,
            # Later stores of rank 0 at this port, such as that of env://, then share the server.
            multi_tenant=True,
            master_listen_fd=listener,
        )
        return PrefixStore(f"dist_testing/{self.attempt}", store)

    @property
    def node_key(self) -> str:
        """What tells this node from every other one.

        Processes with the same key can reach each other by Unix sockets, and know each other's numbers. Two agents of
        torchrun on one machine are two nodes, as for torchrun itself.
        """
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid")]
        return " ".join([self.node or "-", boot, socket.gethostname(), *spaces])

    def _listener(self) -> int:
        """Bind the port of the store at its address alone, and return the descriptor, which the store takes over."""
        try:
            return own_listener(self.address, self.port).detach()
        except OSError as error:
            raise LaunchError(
                f"Rank 0 cannot listen at {self.address}:{self.port}, where the other ranks look for it: "
                f"{error.strerror or error}.\n"
                "MASTER_ADDR is not the machine of rank 0, or another process has the port of MASTER_PORT.\n"
                "Set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a port that is free there."
            ) from error


def own_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens at one address of this machine, and at no other.

    Raises:
        OSError: If the host has no address, or none of this machine, or the port is taken.
    """
    refused = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        listener = socket.socket(family, kind, protocol)
        try:
            # A port that a finished run has left in TIME_WAIT is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(socket.SOMAXCONN)
        except OSError as error:
            listener.close()
            refused = error
        else:
            return listener
    raise refused


def reachable_host(rank_info: RankInfo) -> str:
    """Return the address of this machine, which is that of rank 0, for the ranks of other nodes.

    Raises:
        LaunchError: If it is not known.
    """
    host = os.environ.get(ADDRESS_VARIABLE) or rank_info.address
    try:
        with own_listener(host, 0) as listener:
            found = str(listener.getsockname()[0])
        problem = "only this machine reaches it" if found.startswith("127.") or found == "::1" else ""
    except OSError as error:
        found, problem = "", f"rank 0 cannot listen there: {error.strerror or error}"
    if problem and not (rank_info.node and found):
        raise LaunchError(
            f"Ranks of other nodes cannot reach rank 0 at {host}: {problem}.\n"
            f"The address is that of MASTER_ADDR={rank_info.address}, or of {ADDRESS_VARIABLE}.\n"
            f"Set {ADDRESS_VARIABLE} to the address of rank 0's machine in the network of the nodes."
        )
    return found
