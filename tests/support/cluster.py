"""A cluster of simulated nodes for launchers: each runs its programs in real network and UTS namespaces."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from dist_testing.nodes.namespaces import Nodes, enter, make_nodes, missing_permission, node_address
from dist_testing.nodes.netlink import Netlink
from tests.support.children import start_pytest
from tests.support.starter import Child, Starter

needs_nodes = pytest.mark.skipif(
    bool(missing_permission()),
    reason=f"Need network namespaces, as root or by user namespaces: {missing_permission()}",
)
# No other process has a port on a node.
PORT = 29500
HAND = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


@contextlib.contextmanager
def nodes_for_test(count: int) -> Iterator[Nodes]:
    """Make nodes. After the block, they are gone with their last process."""
    nodes = make_nodes(count, 0, 0)
    try:
        yield nodes
    finally:
        for fd in nodes.fds:
            os.close(fd)


def cut(nodes: Nodes, node: int) -> None:
    """Pull the cable of a node: nothing arrives there or leaves it, and neither side is told."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            enter([os.dup(fd) for fd in (nodes.user, nodes.bridge) if fd is not None])
            with Netlink() as netlink:
                netlink.remove_port(f"port{node}")
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, "the port could not be taken out of the bridge"


class Cluster:
    """Nodes, and ways to start ranks on them. Use as a context manager."""

    def __init__(self, starter: Starter, folder: Path, nodes: int = 2) -> None:
        self._starter = starter
        self.folder = folder
        self.count = nodes
        self._closing = contextlib.ExitStack()
        self._nodes = self._closing.enter_context(nodes_for_test(nodes))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def cut(self, node: int) -> None:
        """Pull the cable of a node: nothing arrives there or leaves it, and neither side is told."""
        cut(self._nodes, node)

    def by_hand(
        self,
        *options: str,
        places: Sequence[int],
        env: Mapping[str, str] | None = None,
        env_of: Mapping[int, Mapping[str, str]] | None = None,
        names: Sequence[str] = HAND,
    ) -> list[Child]:
        """Start each rank as a shell script on its node would.

        `env` has more variables, `env_of` those of one rank alone. `names` are the variables of the rank, of the size
        of the world, and of the number of ranks on the node.
        """
        children = []
        for rank, node in enumerate(places):
            values = map(str, (rank, len(places), places.count(node)))
            master = {"MASTER_ADDR": node_address(0), "MASTER_PORT": str(PORT)}
            more = {**dict(zip(names, values, strict=True)), **master, **(env or {}), **((env_of or {}).get(rank, {}))}
            words = ["-rA", *options, "test_cases.py"]
            children.append(start_pytest(self._starter, self.folder, *words, env=more, node=self._nodes.of(node)))
        return children

    def torchrun(self, *program: str) -> list[Child]:
        """Start torchrun on each node, for two ranks each, with its options in variables, as Kubeflow gives them."""
        agents = []
        for node in range(self.count):
            env = {
                "PET_NNODES": str(self.count),
                "PET_NPROC_PER_NODE": "2",
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": f"{node_address(0)}:{PORT}",
                "PET_RDZV_ID": "test",
                # Host names of the nodes have no addresses, so torchrun cannot find out.
                "PET_RDZV_CONF": f"is_host={int(node == 0)}",
                "PET_LOCAL_ADDR": node_address(node),
                "OMP_NUM_THREADS": "1",
            }
            words = ["-m", "torch.distributed.run", *program]
            agents.append(self._starter.start(words, self.folder, env=env, node=self._nodes.of(node)))
        return agents
