"""torch's object-style API for groups: a group is a value, with methods for its calls.

torch up to 2.13 also makes such groups without a default group (`torch.distributed._dist2`). A newer torch has the
groups alone, so there the same calls run on the default group and on groups beside it.

World size and device come from the target: two ranks on gloo or on NCCL. Every rank sends and receives other numbers
than its peers, so that a collective that mixes up ranks cannot pass.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore
from torch.distributed.distributed_c10d import GroupName

from dist_testing import create_tcp_store

if TYPE_CHECKING:
    from dist_testing import World

dist2: Any = None
with contextlib.suppress(ImportError):
    from torch.distributed import _dist2 as dist2

pytestmark = pytest.mark.distributed(init=False)

needs_api = pytest.mark.skipif(dist2 is None, reason=f"torch {torch.__version__} has no object-style API")

TIMEOUT = timedelta(seconds=60)
# A different limit, to see that a group has its own.
SHORT_TIMEOUT = timedelta(seconds=7)
PART_TIMEOUT = timedelta(seconds=11)
LENGTH = 6


class Filled(Protocol):
    """Makes tensors on the rank's device."""

    def __call__(self, value: float, *shape: int) -> torch.Tensor:
        """Return a tensor of that shape, by default of `LENGTH` numbers, all of them `value`."""


def new_group(world: World, timeout: timedelta, device: torch.device | str) -> dist.ProcessGroup:
    """Return a group of all ranks, found by the variables that torchrun sets."""
    if dist2 is not None:
        return dist2.new_group(world.backend, timeout, device)  # type: ignore[no-any-return]
    if dist.is_initialized():
        group = dist.new_group(timeout=timeout)
    else:
        dist.init_process_group(world.backend, timeout=timeout, device_id=_gpu(device))
        group = dist.group.WORLD
    assert isinstance(group, dist.ProcessGroup)
    return group


def _gpu(device: torch.device | str) -> torch.device | None:
    device = torch.device(device)
    return None if device.type == "cpu" else device


@pytest.fixture
def group(world: World) -> Iterator[dist.ProcessGroup]:
    """A group of all ranks."""
    group = new_group(world, TIMEOUT, world.device)
    # A rank that shuts its group down while another one still connects to it makes that one fail.
    world.barrier()
    yield group
    group.shutdown()


@pytest.fixture
def filled(world: World) -> Filled:
    """Tensors to communicate."""

    def make(value: float, *shape: int) -> torch.Tensor:
        return torch.full(shape or (LENGTH,), float(value), device=world.device)

    return make


def all_ranks(world: World) -> range:
    """Return every rank."""
    return range(world.size)


# --- Which group is current ------------------------------------------------------------------------------------------


@needs_api
def test_the_context_nests_and_restores(world: World) -> None:
    """If this fails, code after a block continues with the block's group."""
    store = FileStore(str(world.rank_tmp_path / "store"), 1)
    outer, inner = (dist.ProcessGroup(PrefixStore(name, store), 0, 1) for name in ("outer", "inner"))
    assert dist2.current_process_group() is None
    with dist2.process_group(outer):
        assert dist2.current_process_group() is outer
        with dist2.process_group(inner):
            assert dist2.current_process_group() is inner
        assert dist2.current_process_group() is outer
        with pytest.raises(LookupError), dist2.process_group(inner):
            raise LookupError
        assert dist2.current_process_group() is outer
    assert dist2.current_process_group() is None


def test_two_groups_of_all_ranks_are_independent(
    world: World, group: dist.ProcessGroup, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the second group of a program shares the first one's connections, its limit or its life."""
    # A store of its own: gloo's entries have the same names in every group, and torch adds no prefix.
    if world.rank == 0:
        server = TCPStore(os.environ["MASTER_ADDR"], 0, is_master=True, wait_for_workers=False, multi_tenant=True)
        world.store.set("port of the second store", str(server.port))
    monkeypatch.setenv("MASTER_PORT", world.store.get("port of the second store").decode())
    other = new_group(world, SHORT_TIMEOUT, str(world.device))
    assert other is not group
    assert [options_of(each, world)._timeout for each in (group, other)] == [TIMEOUT, SHORT_TIMEOUT]
    # The ranks use the groups in opposite orders, which one group would report or mix up.
    works, values = [], [filled(world.rank + 1), filled(10 * (world.rank + 1))]
    pairs = list(zip((group, other), values, strict=True))
    for each, value in pairs if world.rank % 2 else reversed(pairs):
        works.append(each.allreduce([value]))
    for work in works:
        work.wait()
    total = sum(rank + 1 for rank in all_ranks(world))
    torch.testing.assert_close(values, [filled(total), filled(10 * total)])
    world.barrier()
    other.shutdown()
    # The first group outlives the second.
    value = filled(1)
    group.allreduce([value]).wait()
    torch.testing.assert_close(value, filled(world.size))


@needs_api
def test_a_new_group_knows_its_rank_and_is_not_the_default_one(world: World, group: dist.ProcessGroup) -> None:
    """If this fails, a group needs more than RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or replaces the default."""
    assert (group.rank(), group.size()) == (world.rank, world.size)
    assert not dist.is_initialized()


@needs_api
def test_an_unknown_backend_is_refused(world: World) -> None:
    """If this fails, a mistyped backend waits for the other ranks before it is refused."""
    with pytest.raises(ValueError, match="no_such_backend"):
        dist2.new_group("no_such_backend", TIMEOUT, world.device)


# --- Collectives -----------------------------------------------------------------------------------------------------


def test_allreduce(world: World, group: dist.ProcessGroup, filled: Filled) -> None:
    """If this fails, an all-reduce with sum or maximum gives a wrong value."""
    total = sum(rank + 1 for rank in all_ranks(world))
    for op, expected in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.MAX, world.size)):
        value = filled(world.rank + 1)
        group.allreduce(value, op, TIMEOUT).wait()
        torch.testing.assert_close(value, filled(expected))

    value = filled(world.rank + 1)
    group.allreduce([value]).wait()
    torch.testing.assert_close(value, filled(total))


def test_integers_stay_integers(world: World) -> None:
    """If this fails, large whole numbers come back rounded, or a device that is given as a text is refused."""
    group = new_group(world, TIMEOUT, str(world.device))
    # Not a float, whose 24 or 53 bits do not hold the sum.
    large = 2**60 + 1
    value = torch.tensor([large + world.rank, world.rank], device=world.device)
    group.allreduce(value, dist.ReduceOp.SUM, TIMEOUT).wait()
    ranks_sum = sum(all_ranks(world))
    assert value.tolist() == [large * world.size + ranks_sum, ranks_sum]

    gathered = [torch.zeros(1, dtype=torch.int64, device=world.device) for _ in all_ranks(world)]
    group.allgather(gathered, torch.tensor([large + world.rank], device=world.device), timeout=TIMEOUT).wait()
    assert [each.tolist() for each in gathered] == [[large + rank] for rank in all_ranks(world)]
    group.shutdown()


def test_barrier(world: World, group: dist.ProcessGroup) -> None:
    """If this fails, a rank leaves a barrier before all ranks have arrived."""
    world.store.add("came", 1)
    group.barrier(timeout=TIMEOUT).wait()
    assert world.store.add("came", 0) == world.size


@pytest.mark.parametrize("root", [0, 1])
def test_broadcast(world: World, group: dist.ProcessGroup, filled: Filled, root: int) -> None:
    """If this fails, a broadcast from one of the ranks gives a wrong value."""
    value = filled(world.rank)
    group.broadcast(value, root=root, timeout=TIMEOUT).wait()
    torch.testing.assert_close(value, filled(root))


def test_allgather(world: World, group: dist.ProcessGroup, filled: Filled) -> None:
    """If this fails, gathered tensors are not in the order of ranks."""
    gathered = [filled(-1) for _ in all_ranks(world)]
    group.allgather(gathered, filled(world.rank), timeout=TIMEOUT).wait()
    torch.testing.assert_close(gathered, [filled(rank) for rank in all_ranks(world)])


@pytest.mark.parametrize("root", [0, 1])
def test_gather(world: World, group: dist.ProcessGroup, filled: Filled, root: int) -> None:
    """If this fails, the root does not get every rank's tensor."""
    gathered = [filled(-1) for _ in all_ranks(world)] if world.rank == root else []
    group.gather(gathered, filled(world.rank), root=root, timeout=TIMEOUT).wait()
    if world.rank == root:
        torch.testing.assert_close(gathered, [filled(rank) for rank in all_ranks(world)])


@pytest.mark.parametrize("root", [0, 1])
def test_scatter(world: World, group: dist.ProcessGroup, filled: Filled, root: int) -> None:
    """If this fails, a rank, or the root itself, does not get its part."""
    value = filled(-1)
    parts = [filled(10 * root + rank) for rank in all_ranks(world)] if world.rank == root else []
    group.scatter(value, parts, root=root, timeout=TIMEOUT).wait()
    torch.testing.assert_close(value, filled(10 * root + world.rank))


@pytest.mark.parametrize("root", [0, 1])
def test_reduce(world: World, group: dist.ProcessGroup, filled: Filled, root: int) -> None:
    """If this fails, the root does not have the sum. The values on the other ranks are undefined."""
    value = filled(world.rank + 1)
    group.reduce(value, root=root, op=dist.ReduceOp.SUM, timeout=TIMEOUT).wait()
    if world.rank == root:
        torch.testing.assert_close(value, filled(sum(rank + 1 for rank in all_ranks(world))))


def test_reduce_scatter(world: World, group: dist.ProcessGroup, filled: Filled) -> None:
    """If this fails, a rank does not get the sum of its own parts."""
    value = filled(-1)
    parts = [filled(10 * world.rank + rank) for rank in all_ranks(world)]
    group.reduce_scatter(value, parts, op=dist.ReduceOp.SUM, timeout=TIMEOUT).wait()
    torch.testing.assert_close(value, filled(sum(10 * rank + world.rank for rank in all_ranks(world))))


def test_alltoall_base_with_splits(world: World, group: dist.ProcessGroup) -> None:
    """If this fails, sender and receiver count uneven parts differently.

    Rank r sends r + 1 numbers to rank 0, r + 2 to rank 1, and so on.
    """
    sizes_in = [world.rank + rank + 1 for rank in all_ranks(world)]
    numbers = [100.0 * world.rank + rank for rank in all_ranks(world) for _ in range(sizes_in[rank])]
    expected = [100.0 * rank + world.rank for rank in all_ranks(world) for _ in range(rank + world.rank + 1)]
    value = torch.tensor(numbers, device=world.device)
    received = torch.full((len(expected),), -1.0, device=world.device)
    sizes_out = [rank + world.rank + 1 for rank in all_ranks(world)]
    group.alltoall_base(received, value, sizes_out, sizes_in, timeout=TIMEOUT).wait()
    torch.testing.assert_close(received, torch.tensor(expected, device=world.device))


def test_alltoall_base_with_equal_parts(world: World, group: dist.ProcessGroup) -> None:
    """If this fails, ranks do not get equal shares where no splits are given."""
    value = torch.arange(2.0 * world.size, device=world.device) + 100 * world.rank
    received = torch.full_like(value, -1)
    group.alltoall_base(received, value, [], [], timeout=TIMEOUT).wait()
    expected = [100.0 * rank + 2 * world.rank + part for rank in all_ranks(world) for part in range(2)]
    torch.testing.assert_close(received, torch.tensor(expected, device=world.device))


# --- The life of groups ----------------------------------------------------------------------------------------------


def test_shutting_down_is_for_every_rank_and_may_be_repeated(world: World, filled: Filled) -> None:
    """If this fails, clean-up code that runs twice raises an error."""
    group = new_group(world, TIMEOUT, world.device)
    group.allreduce([filled(1)]).wait()
    world.barrier()
    group.shutdown()
    group.shutdown()


def test_splitting_gives_a_group_only_to_its_members(world: World, group: dist.ProcessGroup, filled: Filled) -> None:
    """If this fails, a rank outside the split gets the group, or the group has no own name and time limit."""
    part = group.split_group([0], timeout=SHORT_TIMEOUT, group_name=GroupName("of_rank_0"))
    if world.rank != 0:
        assert part is None
    else:
        assert part is not None
        assert (part.rank(), part.size()) == (0, 1)
        assert part.group_name == "of_rank_0"
        assert options_of(part, world)._timeout == SHORT_TIMEOUT
        value = filled(3)
        part.allreduce([value]).wait()
        torch.testing.assert_close(value, filled(3))
    group.barrier().wait()


def test_groups_of_one_merge_through_a_store(world: World, group: dist.ProcessGroup, filled: Filled) -> None:
    """If this fails, jobs that started separately cannot become one group, or it has another job's time limit."""
    # Every rank takes part in every split, also in those that give it nothing.
    parts = [
        group.split_group([rank], timeout=PART_TIMEOUT, group_name=GroupName(f"alone_{rank}"))
        for rank in all_ranks(world)
    ]
    assert [part is not None for part in parts] == [rank == world.rank for rank in all_ranks(world)]
    mine = parts[world.rank]
    assert mine is not None
    assert options_of(mine, world)._timeout == PART_TIMEOUT
    # The jobs have nothing in common but the address of a store, which one of them serves.
    if world.rank == 0:
        store = create_tcp_store(os.environ["MASTER_ADDR"], world.size, wait_for_workers=False)
        world.store.set("port", str(store.port))
    else:
        address, port = os.environ["MASTER_ADDR"], int(world.store.get("port"))
        store = TCPStore(address, port, world.size, is_master=False, timeout=TIMEOUT)
    merged = mine.merge_remote_group(store, world.size, SHORT_TIMEOUT, group_name=GroupName("merged"))
    assert merged.size() == world.size
    assert merged.group_name == "merged"
    assert options_of(merged, world)._timeout == SHORT_TIMEOUT
    value = filled(merged.rank() + 1)
    merged.allreduce([value]).wait()
    torch.testing.assert_close(value, filled(sum(rank + 1 for rank in all_ranks(world))))
    # The process of rank 0 has the server.
    world.barrier()


def options_of(group: dist.ProcessGroup, world: World) -> Any:
    """Return the options of the group's backend. torch types them by the base of all backends' options."""
    return group._get_backend(world.device).options
