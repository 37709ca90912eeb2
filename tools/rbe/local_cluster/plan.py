"""The plan of a cluster, and the port that it listens on."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from local_cluster.errors import ClusterError
from local_cluster.pools import Worker

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts to start.

    Attributes:
        name: Name of the cluster.
        port: Port of the server.
        workers: All workers.
        buildbox: Directory of BuildBox's programs.
        postgres: Directory of PostgreSQL's programs.
    """

    name: str
    port: int
    workers: tuple[Worker, ...]
    buildbox: Path
    postgres: Path

    @property
    def endpoint(self) -> str:
        """The value for Bazel's --remote_executor."""
        return f"grpc://{HOST}:{self.port}"


def reserve_port(port: int) -> socket.socket:
    """Bind a port for the life of the cluster, so that no other program gets it while the server restarts.

    The socket does not listen. The server may bind the same port, because both sockets set the option for it and belong
    to one user.

    Args:
        port: The port; 0 for one that the kernel chooses.

    Raises:
        ClusterError: If it is in use.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Without the option, so that another server that shares its port is noticed, too.
        reservation.bind((HOST, port))
    except OSError as error:
        reservation.close()
        raise ClusterError(
            f"port {port} cannot be used: {error.strerror}.",
            "Another program uses it: perhaps a second cluster, of another user or under another --name.",
            "End that program, or choose another port: --port=0 takes any free one and prints the endpoint.",
        ) from error
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return reservation
