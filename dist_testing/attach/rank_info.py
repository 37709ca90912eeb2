"""Rank info: a process's rank in an attached world, the store by which its ranks find each other, and the wait."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dist_testing.core.ground.error_text import ranks_text
from dist_testing.core.ground.errors import LaunchError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# Limit for every rank to collect the tests and connect: from a cold disk the import of torch takes a minute. Seconds.
ATTACH_LIMIT_S = 300.0
# When the first line about missing ranks comes, and after how long each further one. Seconds.
_FIRST_LINE_S, NEXT_LINE_S = 5.0, 30.0
# $DIST_TESTING_ADDRESS (user): on the node of rank 0 of an attached world: the address at which the other nodes reach
# it (default: MASTER_ADDR).
ADDRESS_VARIABLE = "DIST_TESTING_ADDRESS"


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A process's rank in an attached world. Rank 0 is also the runner."""

    rank: int
    size: int
    address: str  # host of the store that all ranks use
    port: int
    is_served: bool  # whether torchrun's agent serves the store already; else rank 0 serves it
    attempt: str  # distinguishes this start of the world from torchrun's earlier ones
    launcher: str = "torchrun"
    has_other_nodes: bool = False  # as far as the launcher tells
    node: str = ""  # the launcher's name of this node; "" if it does not tell
    variable: str = "RANK"  # the launcher's variable that tells the rank

    def store(self) -> Store:
        """Connect to the store, under a prefix of keys of our own; a RuntimeError of torch if it cannot be reached.

        It is independent of the groups of the tests, so it works also if those fail.
        """
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        serves = self.rank == 0 and not self.is_served
        try:
            listener = own_listener(self.address, self.port).detach() if serves else None
        except OSError as error:
            raise LaunchError(
                f"Rank 0 cannot listen at {self.address}:{self.port}, where the other ranks look for it: "
                f"{error.strerror or error}.\n"
                "MASTER_ADDR is not the machine of rank 0, or another process has the port of MASTER_PORT.\n"
                "Set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a port that is free there."
            ) from error
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
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid", "uts")]
        return " ".join([self.node, Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip(), *spaces])

    @contextlib.contextmanager
    def saying_who_is_missing(
        self, missing: Callable[[], Sequence[int]], log_line: Callable[[str], None], first_s: float = _FIRST_LINE_S
    ) -> Iterator[None]:
        """Tell, while the block runs, which ranks it waits for: after `first_s` seconds, and then every 30 s.

        A thread tells it, because the wait for a store takes place in native code.
        """
        is_over = threading.Event()

        def say() -> None:
            pause_s = first_s
            while not is_over.wait(pause_s):
                pause_s = NEXT_LINE_S
                if not (ranks := missing()):
                    continue
                log_line(
                    f"waiting for {ranks_text(ranks)} of {self.size} at {self.address}:{self.port} ({self.variable}="
                    f"{os.environ.get(self.variable, self.rank)} is set; not under {self.launcher}? "
                    f"unset {self.variable})"
                )

        thread = threading.Thread(target=say, name="dist_testing-waiting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def own_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens at one address of this machine, and at no other."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server((str(address[0]), port), family=family, backlog=socket.SOMAXCONN)


def reachable_host(rank_info: RankInfo) -> str:
    """Return the address of this machine, which is that of rank 0, for other nodes; a LaunchError if it has none."""
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
