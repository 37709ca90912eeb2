"""Worlds over simulated nodes: groups within nodes and across them, a mesh, and a store that lives on another node."""

from __future__ import annotations

import socket

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
