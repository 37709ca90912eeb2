"""Worlds over simulated nodes: groups within and across them, a mesh, stores, and nodes that die or lose each other."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh

from dist_testing import World

pytestmark = pytest.mark.distributed


def _reduced(world: World, group: dist.ProcessGroup | None) -> int:
    total = torch.tensor([1 << world.rank])
    dist.all_reduce(total, group=group)
    return int(total.item())


def test_groups_within_and_across_nodes(world: World) -> None:
    """If this fails, a hierarchical collective mixes the ranks of its nodes."""
    per_node = world.size // 2
    within, _ = dist.new_subgroups(per_node)  # type: ignore[no-untyped-call]
    pairs = [[local, local + per_node] for local in range(per_node)]
    across, _ = dist.new_subgroups_by_enumeration(pairs)  # type: ignore[no-untyped-call]
    first = world.node * per_node
    assert _reduced(world, within) == sum(1 << rank for rank in range(first, first + per_node))
    assert _reduced(world, across) == sum(1 << rank for rank in (world.local_rank, world.local_rank + per_node))


def test_a_mesh_has_a_row_for_each_node(world: World) -> None:
    """If this fails, HSDP shards over the network and replicates within a node."""
    mesh = init_device_mesh("cpu", (2, world.size // 2), mesh_dim_names=("replicate", "shard"))
    assert (mesh.get_local_rank("replicate"), mesh.get_local_rank("shard")) == (world.node, world.local_rank)
    names: list[str] = [""] * (world.size // 2)
    dist.all_gather_object(names, socket.gethostname(), group=mesh.get_group("shard"))
    assert set(names) == {f"node{world.node}"}


def test_env_rendezvous_crosses_nodes(world: World) -> None:
    """If this fails, the test's own `env://` finds no store, as every script that torchrun starts needs it."""
    # A rank that leaves the group while another one still connects to it makes that one fail.
    world.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    assert _reduced(world, None) == (1 << world.size) - 1


def test_a_store_on_the_other_node(world: World) -> None:
    """If this fails, a store that a test serves is found only from its own node."""
    last = world.size - 1
    if world.rank == last:
        server = TCPStore("10.0.0.2", 0, is_master=True, wait_for_workers=False)
        world.store.set("port", str(server.port))
        server.set("from", socket.gethostname())
    else:
        port = int(world.store.get("port"))
        client = TCPStore("10.0.0.2", port, is_master=False, wait_for_workers=False)
        assert client.get("from") == b"node1"
    world.barrier()


# A node that is off answers nothing, so only a limit of the own ends a wait for it. Seconds.
_PATIENCE_S = 2.0


def _local(world: World) -> dist.ProcessGroup:
    """A group of the ranks of this node, whose own limit is short."""
    first = world.node * (world.size // 2)
    ranks = list(range(first, first + world.size // 2))
    group = dist.new_group(ranks, timeout=timedelta(seconds=_PATIENCE_S), use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)
    return group


@pytest.mark.distributed(expected_exits={2: -9, 3: -9})
def test_a_half_open_peer(world: World) -> None:
    """If this fails, a node that loses its power looks like one whose processes end, and closes its connections."""
    everyone = dist.new_group(timeout=timedelta(seconds=_PATIENCE_S))
    local = _local(world)
    _reduced(world, everyone)
    world.barrier()
    if world.node == 1:
        world.store.get("never")
    if world.rank == 0:
        world.faults.node_down(1)
    _reduced(world, local)
    # Not "Connection closed by peer": no packet says so.
    with pytest.raises(RuntimeError, match=r"[Tt]imed out|Connection closed by peer \[10\.0\.0\.1\]"):
        _reduced(world, everyone)
    assert _reduced(world, local) == 3


def test_a_partition_that_heals(world: World) -> None:
    """If this fails, a cable that is out for a moment costs a job, or one that is out for good costs no limit."""
    local = _local(world)
    _reduced(world, None)
    world.barrier()
    if world.rank == 0:
        world.faults.partition(0, 1)
    first = 2 * world.node
    assert _reduced(world, local) == sum(1 << rank for rank in (first, first + 1))
    if world.rank == 0:
        world.faults.heal()
    # Its limit has not come, so it goes on: TCP repeats what was lost.
    assert _reduced(world, None) == (1 << world.size) - 1


@pytest.mark.distributed(expected_exits={0: -9, 1: -9})
def test_the_node_of_the_store_dies(world: World) -> None:
    """If this fails, the ranks of the other nodes cannot go on without the store of a node that is gone."""
    local = _local(world)
    _reduced(world, local)
    world.barrier()
    if world.node == 0:
        world.store.get("never")
    if world.rank == 2:
        world.faults.node_down(0)
    assert _reduced(world, local) == 12
    # A new group needs a store: one of the nodes that live.
    server = TCPStore("10.0.0.2", 4567, 2, is_master=world.rank == 2, wait_for_workers=False)
    server.set(f"rank {world.rank}", "1")
    server.wait([f"rank {rank}" for rank in (2, 3)], timedelta(seconds=60))
    # Rank 2 serves until rank 3 has its answer.
    _reduced(world, local)
