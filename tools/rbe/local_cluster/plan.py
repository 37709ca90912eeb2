"""What a cluster is made of, and the port that it listens on."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from local_cluster.errors import ClusterError
from local_cluster.pools import Worker


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be started.

    Attributes:
        name: Name of the cluster.
        port: Where the server listens.
        workers: All of them.
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
        """What Bazel's --remote_executor takes."""
        return f"grpc://127.0.0.1:{self.port}"


def reserve_port(port: int) -> socket.socket:
    """Bind a port for as long as the cluster lives, so that nobody else gets it while the server is being restarted.

    The socket does not listen. The server may bind the same port, because it and this socket both say so and belong
    to one user.

    Args:
        port: Which; 0 for one that the kernel chooses.

    Raises:
        ClusterError: If it is taken.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Without the option, so that another server that shares ports is seen, too.
        reservation.bind(("127.0.0.1", port))
    except OSError as error:
        reservation.close()
        raise ClusterError(
            f"port {port} cannot be used: {error.strerror}.",
            "Another program has it: perhaps a second cluster, of another user or under another --name.",
            "End that one, or choose another port: --port=0 takes any free one, and the endpoint is printed.",
        ) from error
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return reservation
