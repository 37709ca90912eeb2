"""Every rank has a torch.distributed of its own, and the process has its own back when they have ended."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch._C._distributed_c10d import HashStore, PrefixStore, _resolve_process_group
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from dist_testing.errors import UsageError
from dist_testing.threaded.members import current_member
from dist_testing.threaded.world import run_on_threads
from tests.threaded.worlds_of_threads import LIMIT_S, default_group, pass_on_threads


def process_state() -> list[Any]:
    """What a world of threads changes while it lives."""
    world = distributed_c10d._world
    return [
        world,
        type(world),
        world.default_pg,
        dict(world.pg_map),
        world.group_count,
        dict(dist.Backend._plugins),
        threading.Thread.start,
        sys.excepthook,
        dist.is_initialized(),
        torch.is_grad_enabled(),
        torch._C._is_multithreading_enabled(),
    ]


def test_each_rank_sees_its_own_world_and_the_process_sees_its_own() -> None:
    """A test that runs threads must not disturb the one that comes after it."""
    # Its first import registers the name, which stays.
    run_on_threads(lambda rank: None, 1, timeout_s=LIMIT_S)
    before = process_state()

    def body(rank: int) -> None:
        assert rank == dist.get_rank()
        assert 4 == dist.get_world_size()
        assert "threaded" == dist.get_backend()
        member = current_member()
        assert member is not None
        assert (rank, 4) == (member.rank, member.world.size)
        dist.new_group([0, 1])
        assert 2 == dist.get_pg_count()

    pass_on_threads(body)
    assert before == process_state()
    assert current_member() is None


def test_the_process_is_as_before_after_a_failure_too() -> None:
    """Of every kind: bodies that end without cleaning up anything."""
    run_on_threads(lambda rank: None, 1, timeout_s=LIMIT_S)
    before = process_state()

    def body(rank: int) -> None:
        dist.new_group()
        if rank == 1:
            raise SystemExit(1)
        dist.barrier()

    run_on_threads(body, 3, timeout_s=LIMIT_S)
    assert before == process_state()


def test_a_process_keeps_its_own_group_beside_a_world() -> None:
    """The thread that runs the world is no rank of it, and has the group that it had."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        own = default_group()
        seen: list[object] = []

        def on_ready() -> None:
            seen.append(dist.get_world_size())

        def body(rank: int) -> None:
            seen.append(dist.get_world_size())

        outcomes = run_on_threads(body, 3, timeout_s=LIMIT_S, on_ready=on_ready)
        assert [None] * 3 == [outcome.error for outcome in outcomes]
        assert [3] * 4 == seen
        assert own is dist.group.WORLD
        assert own is _resolve_process_group(default_group().group_name)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_a_rank_without_a_default_group_can_make_it() -> None:
    """With a store of the test's own, twice, and also groups that only some threads share."""
    store = HashStore()
    pairs = [HashStore(), HashStore()]

    def body(rank: int) -> None:
        assert not dist.is_initialized()
        for _ in range(2):
            dist.init_process_group("threaded", store=store, rank=rank, world_size=4)
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert 4 == tensor.item()
            dist.destroy_process_group()
        dist.init_process_group("threaded", store=pairs[rank // 2], rank=rank % 2, world_size=2)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
        assert [1, 1, 5, 5][rank] == tensor.item()

    pass_on_threads(body, init=False)


def test_two_threads_cannot_be_the_same_rank() -> None:
    """Their collectives would meet themselves."""
    store = HashStore()
    both_are_in = threading.Barrier(2)

    def body(rank: int) -> None:
        other_store = PrefixStore("x", store)
        dist.init_process_group("threaded", store=other_store, rank=0, world_size=1)
        both_are_in.wait(LIMIT_S)

    outcomes = run_on_threads(body, 2, timeout_s=LIMIT_S, init=False)
    # Each round of a store makes a new group: two lonely ranks, which do not meet.
    assert [None, None] == [outcome.error for outcome in outcomes]


@pytest.mark.parametrize(("rank", "world_size"), [(4, 2), (-1, 2)])
def test_a_rank_outside_of_its_world_is_refused(rank: int, world_size: int) -> None:
    """c10d passes any number on."""

    def body(_: int) -> None:
        with pytest.raises((UsageError, AssertionError)):
            dist.init_process_group("threaded", store=HashStore(), rank=rank, world_size=world_size)

    pass_on_threads(body, 1, init=False)


def test_a_group_with_other_sizes_on_its_ranks_is_refused() -> None:
    """One rank believes in a larger world."""
    store = HashStore()
    turn = threading.Event()

    def body(rank: int) -> None:
        if rank == 0:
            dist.init_process_group("threaded", store=store, rank=0, world_size=2)
            turn.set()
        else:
            assert turn.wait(LIMIT_S)
            with pytest.raises(UsageError, match="ranks 0, 1 and 2 on one rank and ranks 0 and 1 on another"):
                dist.init_process_group("threaded", store=store, rank=1, world_size=3)

    pass_on_threads(body, 2, init=False)


def test_outside_of_a_world_the_name_is_refused_with_a_way_out() -> None:
    """Whoever asks for the backend with processes as ranks reads what to do."""
    ended = _child(
        """
        import torch.distributed as dist
        import dist_testing.threaded.register as register

        try:
            register.create_group(dist.distributed_c10d._DistributedBackendOptions())
        except register.UsageError as error:
            print(error)
        """
    )
    assert 'Backend "threaded" was asked for outside of a world of threads' in ended
    assert 'isolation="thread"' in ended


@pytest.mark.parametrize("order", ["torch first", "ours first", "torch inside"])
def test_torchs_own_threaded_group_works_as_before_and_after(order: str) -> None:
    """Both have the same name for it; inside a world of ours it is ours, outside of one torch's."""
    torchs = "import torch.testing._internal.distributed.multi_threaded_pg as torchs"
    ours = "from dist_testing.threaded.world import run_on_threads; run_on_threads(lambda rank: None, 2, timeout_s=60)"
    first = {"torch first": torchs, "ours first": ours, "torch inside": ""}[order]
    ended = _child(
        f"""
        import threading
        import torch
        import torch.distributed as dist
        {first}
        from dist_testing.threaded.world import run_on_threads

        def body(rank):
            {torchs}
            assert type(dist.group.WORLD).__module__.startswith("dist_testing"), type(dist.group.WORLD)
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert tensor.item() == 2

        for outcome in run_on_threads(body, 2, timeout_s=60):
            assert outcome.error is None, outcome
        {torchs}

        torch._C._distributed_c10d._set_thread_isolation_mode(True)
        torchs._install_threaded_pg()
        store = dist.HashStore()

        def run(rank):
            dist.init_process_group("threaded", rank=rank, world_size=2, store=store)
            assert type(dist.group.WORLD) is torchs.ProcessLocalGroup
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            results.append(tensor.item())
            dist.destroy_process_group()

        results = []
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torchs._uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        assert results == [2, 2], results

        for outcome in run_on_threads(body, 2, timeout_s=60):
            assert outcome.error is None, outcome
        print("all passed")
        """
    )
    assert "all passed" in ended


def _child(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=4 * LIMIT_S,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_threads_that_a_rank_starts_are_the_ranks() -> None:
    """As they would be in a process: they see its group, and can use it."""

    def body(rank: int) -> None:
        group = dist.group.WORLD
        found: list[float] = []

        def use(given: dist.ProcessGroup | None) -> None:
            assert rank == dist.get_rank()
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=given)
            found.append(tensor.item())

        for given in (None, group):
            thread = threading.Thread(target=use, args=(given,))
            thread.start()
            thread.join()
        with pytest.raises(RuntimeError, match="started once"):
            thread.start()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(use, None).result()
        assert [4.0] * 3 == found

    pass_on_threads(body)


def test_a_world_can_run_inside_of_a_rank() -> None:
    """A test of this library's users may itself test with threads."""

    def body(rank: int) -> None:
        def inner(inner_rank: int) -> None:
            assert (inner_rank, 2) == (dist.get_rank(), dist.get_world_size())
            dist.barrier()

        pass_on_threads_inside = run_on_threads(inner, 2, timeout_s=LIMIT_S)
        assert [None, None] == [outcome.error for outcome in pass_on_threads_inside]
        assert (rank, 3) == (dist.get_rank(), dist.get_world_size())
        dist.barrier()

    pass_on_threads(body, 3)


def test_worlds_can_run_side_by_side() -> None:
    """Nothing of one is another's."""

    def run(size: int) -> list[object]:
        def body(rank: int) -> None:
            for _ in range(20):
                tensor = torch.ones(1)
                dist.all_reduce(tensor)
                assert size == tensor.item()

        return [outcome.error for outcome in run_on_threads(body, size, timeout_s=LIMIT_S)]

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert [[None] * size for size in (2, 3, 4)] == list(pool.map(run, (2, 3, 4)))
    assert not dist.is_initialized()


def test_sub_groups_meet_on_their_own() -> None:
    """Made by all ranks, or by their members alone; with their own numbers."""

    def body(rank: int) -> None:
        evens, odds = dist.new_group([0, 2]), dist.new_group([1, 3])
        own = odds if rank % 2 else evens
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=own)
        assert 2 + 2 * (rank % 2) == tensor.item()
        assert rank // 2 == dist.get_rank(own)
        assert [rank % 2, rank % 2 + 2] == dist.get_process_group_ranks(own)
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, src=rank % 2 + 2, group=own)
        assert rank % 2 + 2 == tensor.item()

        local = dist.new_group([0, 1] if rank < 2 else [2, 3], use_local_synchronization=True)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=local)
        assert [1, 1, 5, 5][rank] == tensor.item()

        halves, _ = dist.new_subgroups(2)  # type: ignore[no-untyped-call]  # torch's
        dist.barrier(halves)
        split = default_group().split_group([1, 3])
        assert (split is None) == (rank % 2 == 0)
        if split is not None:
            tensor = torch.tensor([float(rank)])
            split.allreduce(tensor).wait()
            assert 4 == tensor.item()
            assert (rank // 2, 2) == (split.rank(), split.size())
        for _ in range(50):
            group = dist.new_group([0, 1])
            if rank < 2:
                dist.barrier(group)
                dist.destroy_process_group(group)
        member = current_member()
        assert member is not None
        dist.barrier()
        # Groups that all have destroyed are gone.
        assert 10 > len(member.world.groups)

    pass_on_threads(body)


def test_device_meshes_and_dtensors_work() -> None:
    """What most tests on threads are about."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def body(rank: int) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert (rank // 2, rank % 2) == (mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank())
        whole = torch.arange(16.0).reshape(4, 4)
        sharded = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
        assert (2, 2) == tuple(sharded.to_local().shape)
        torch.testing.assert_close(sharded.full_tensor(), whole)
        product = sharded @ sharded.redistribute(mesh, [Replicate(), Replicate()])
        assert isinstance(product, DTensor)
        torch.testing.assert_close(product.full_tensor(), whole @ whole)

    pass_on_threads(body)


def test_gradients_flow_in_a_process_whose_ranks_have_made_dtensors() -> None:
    """With CUDA built in and no GPU, torch 2.11 keeps a part of the process with the first thread that makes one."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    def body(_: int) -> None:
        mesh = init_device_mesh("cpu", (4,))
        whole = distribute_tensor(torch.ones(2, 2), mesh, [Replicate()])
        product = whole @ whole
        assert isinstance(product, DTensor)
        assert [[2.0, 2.0]] * 2 == product.to_local().tolist()

    pass_on_threads(body)
    leaf = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(leaf.sum(), leaf)
    assert [1.0, 1.0] == gradient.tolist()


# Newer torch has other names for them.
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_functional_collectives_work_also_backwards() -> None:
    """They come in from C++, and find their group by its name."""
    from torch.distributed._functional_collectives import all_gather_tensor_autograd, reduce_scatter_tensor_autograd

    def body(rank: int) -> None:
        group = default_group()
        tensor = torch.tensor([float(rank), 1.0])
        assert [6.0, 4.0] == funcol.all_reduce(tensor, "sum", group).tolist()
        gathered = funcol.all_gather_tensor(tensor, 0, group)
        assert [0.0, 1.0, 1.0, 1.0, 2.0, 1.0, 3.0, 1.0] == gathered.tolist()
        assert [4.0 * rank] == funcol.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, group).tolist()
        exchanged = funcol.all_to_all_single(torch.full((4,), float(rank)), None, None, group)
        assert [0.0, 1.0, 2.0, 3.0] == exchanged.tolist()
        assert [2.0] == funcol.broadcast(torch.tensor([float(rank)]), 2, group).tolist()

        leaf = torch.tensor([float(rank + 1)], requires_grad=True)
        gathered = all_gather_tensor_autograd(leaf, 0, group)
        (gathered * torch.arange(4.0)).sum().backward()
        assert leaf.grad is not None
        assert [4.0 * rank] == leaf.grad.tolist()
        leaf = torch.ones(4, requires_grad=True)
        (reduce_scatter_tensor_autograd(leaf, "sum", 0, group) * float(rank)).sum().backward()
        assert leaf.grad is not None
        assert [0.0, 1.0, 2.0, 3.0] == leaf.grad.tolist()

    pass_on_threads(body)


def test_backward_runs_on_the_ranks_own_thread() -> None:
    """A hook that calls a collective finds its rank there."""

    def body(rank: int) -> None:
        thread = threading.current_thread()

        def hook(gradient: torch.Tensor) -> torch.Tensor:
            assert thread is threading.current_thread()
            gradient = gradient.clone()
            dist.all_reduce(gradient)
            return gradient

        leaf = torch.ones(2, requires_grad=True)
        leaf.register_hook(hook)  # type: ignore[no-untyped-call]  # torch's
        (leaf * float(rank)).sum().backward()  # type: ignore[no-untyped-call]  # torch's
        assert leaf.grad is not None
        assert [6.0, 6.0] == leaf.grad.tolist()

    pass_on_threads(body)


def test_data_parallel_training_averages_gradients() -> None:
    """The reducer calls the group from C++, in the backward pass."""

    def body(rank: int) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(3, 2))
        model(torch.full((1, 3), float(rank))).sum().backward()
        weight = model.module.weight.grad
        assert weight is not None
        torch.testing.assert_close(weight, torch.full((2, 3), 1.5))

    pass_on_threads(body)


def test_what_watches_a_rank_does_not_see_the_work_for_the_others() -> None:
    """Which thread does it is chance; a count of operations must not be."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]  # torch's
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    def body(rank: int) -> None:
        tensor = torch.ones(3)
        with Count() as count:
            dist.all_reduce(tensor)
        assert [] == count.names
        assert 4 == tensor[0].item()

    pass_on_threads(body)
