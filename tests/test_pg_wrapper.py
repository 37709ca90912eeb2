"""The debug wrapper around a process group must find misuse instead of hanging.

Every scenario runs on a group that torch wraps itself (`new_group` under `TORCH_DISTRIBUTED_DEBUG=DETAIL`) and on a
backend wrapped by hand with debugging off. World size and device come from the target: four ranks on gloo, on CPU or
CUDA tensors, two on NCCL.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tests import pg_wrapper_calls as calls
from tests import pg_wrapper_groups as groups
from tests.pg_wrapper_messages import assert_names_missing_ranks, assert_points_to_rank_0

if TYPE_CHECKING:
    from dist_testing import World

# Limit in seconds of the wrapper's checks where a rank stays away, which takes that time.
HANG_TIMEOUT_S = 2.0

# Good collectives before bad ones: a report must also be right late in a run.
GOOD_COLLECTIVES_COUNT = 500


needs_coalesced_reduce_scatter = pytest.mark.skipif(
    torch.__version__.startswith(("2.10.", "2.11.")),
    reason="torch's wrapper takes coalesced reduce_scatter_tensor calls since torch 2.12",
)
needs_answers_of_the_backend = pytest.mark.skipif(
    torch.__version__.startswith("2.10."),
    reason="torch's wrapper asks its backend about features since torch 2.11",
)


class MakeGroup(Protocol):
    """Makes a wrapped group of all ranks."""

    def __call__(self, world: World, timeout_s: float = ...) -> dist.ProcessGroup:
        """Create a group; `timeout_s` limits the wrapper's checks, in seconds."""


@pytest.fixture(params=[groups.debug_detail_group, groups.explicit_group], ids=["debug_detail", "explicit"])
def make_group(request: pytest.FixtureRequest) -> MakeGroup:
    """Both ways to create a wrapped group."""
    make: MakeGroup = request.param
    return make


def assert_absence_is_reported(world: World, make_group: MakeGroup, missing: list[int]) -> None:
    """Let all ranks but `missing` all-reduce, and check the error on each rank that called it."""
    group = make_group(world, timeout_s=HANG_TIMEOUT_S)
    if world.rank not in missing:
        with pytest.raises(RuntimeError) as caught:
            # At the call: a user who starts it and waits later needs the line of the call.
            calls.all_reduce(torch.ones(20, 10, device=world.device)).start(group)
        if world.rank == 0:
            assert_names_missing_ranks(str(caught.value), missing, timeout_s=HANG_TIMEOUT_S)
        else:
            assert_points_to_rank_0(str(caught.value), world.rank)
    # The missing ranks wait here, alive and connected: a hang, not a death.
    world.barrier()


@pytest.mark.distributed
def test_rank_that_stays_away_is_named(world: World, make_group: MakeGroup) -> None:
    """If this fails, a rank that skips a collective leaves its user with a hang and no name."""
    assert_absence_is_reported(world, make_group, [1])


@pytest.mark.distributed(features=["monitored_barrier"])
def test_every_rank_that_stays_away_is_named(world: World, make_group: MakeGroup) -> None:
    """If this fails, a user repairs one rank and learns of another only in the next run."""
    assert_absence_is_reported(world, make_group, list(range(1, world.size, 2)))


@pytest.mark.distributed
def test_other_operation_is_reported_after_many_good_ones(world: World, make_group: MakeGroup) -> None:
    """If this fails, ranks that drift apart late in a run hang, or the count in the report is wrong."""
    group = make_group(world)
    ones = [torch.ones(1, device=world.device) for _ in range(GOOD_COLLECTIVES_COUNT)]
    # All of them are in flight before the first wait.
    works = [calls.all_reduce(one).start(group) for one in ones]
    for work in works:
        work.wait()
    assert {one.item() for one in ones} == {float(world.size)}

    tensor = torch.ones(20, 10, device=world.device)
    gathered = [torch.zeros_like(tensor) for _ in range(world.size)]
    pairs = [
        (calls.all_reduce(tensor), calls.reduce(tensor)),
        (calls.reduce(tensor), calls.barrier()),
        (calls.broadcast(tensor), calls.all_gather(gathered, tensor)),
    ]
    for reported_count, (odd, others) in enumerate(pairs):
        # The all-reduce after each report counts, the reported calls do not.
        calls.assert_mismatch_is_reported(world, group, odd, others, sequence=GOOD_COLLECTIVES_COUNT + reported_count)


@pytest.mark.distributed
def test_odd_rank_is_named_wherever_it_is(world: World, make_group: MakeGroup) -> None:
    """If this fails, the report blames a rank that did nothing wrong."""
    group = make_group(world)
    tensor = torch.ones(20, 10, device=world.device)
    for odd_rank in range(world.size):
        calls.assert_mismatch_is_reported(
            world, group, calls.broadcast(tensor), calls.all_reduce(tensor), odd_rank=odd_rank, sequence=odd_rank
        )


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("odd_shape", "shape"),
    [((20, 2), (20, 10)), ((20, 10, 2), (20, 10))],
    ids=["size", "dimensions"],
)
def test_other_shape_is_reported(
    world: World, make_group: MakeGroup, odd_shape: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """If this fails, tensors of different shapes are summed into garbage or crash the backend."""
    calls.assert_mismatch_is_reported(
        world,
        make_group(world),
        calls.all_reduce(torch.ones(odd_shape, device=world.device)),
        calls.all_reduce(torch.ones(shape, device=world.device)),
    )


@pytest.mark.distributed
def test_scatter_of_other_length_is_reported(world: World, make_group: MakeGroup) -> None:
    """If this fails, ranks take a part of what the root sends, or wait for more than it sends."""
    short = torch.tensor([-1], device=world.device)
    long = torch.tensor([-1, -1], device=world.device)
    calls.assert_mismatch_is_reported(
        world,
        make_group(world),
        calls.scatter(short, [torch.zeros_like(short) for _ in range(world.size)]),
        calls.scatter(long, None),
    )


@pytest.mark.distributed
def test_other_dtype_is_reported(world: World, make_group: MakeGroup) -> None:
    """If this fails, the bytes of one type are added as if they were another."""
    calls.assert_mismatch_is_reported(
        world,
        make_group(world),
        calls.all_reduce(torch.ones(20, 2, dtype=torch.int64, device=world.device)),
        calls.all_reduce(torch.ones(20, 2, device=world.device)),
        odd_rank=world.size - 1,
    )


@pytest.mark.distributed
def test_all_gather_against_reduce_scatter_is_reported(world: World, make_group: MakeGroup) -> None:
    """If this fails, sharded training hangs when its ranks get out of step."""
    whole = torch.ones(4 * world.size, device=world.device)
    part = torch.zeros(4, device=world.device)
    calls.assert_mismatch_is_reported(
        world, make_group(world), calls.all_gather_base(whole, part), calls.reduce_scatter_base(part, whole)
    )


@pytest.mark.distributed
@pytest.mark.parametrize("uneven", ["input", "output", "both"])
def test_reduce_scatter_of_other_size_is_reported(
    world: World, make_group: MakeGroup, uneven: Literal["input", "output", "both"]
) -> None:
    """If this fails, one rank's wrong buffer size corrupts the shards of all."""
    whole = torch.ones(4 * world.size, device=world.device)
    part = torch.zeros(4, device=world.device)
    odd = {
        "input": calls.reduce_scatter_base(part, torch.ones(5 * world.size, device=world.device)),
        "output": calls.reduce_scatter_base(torch.zeros(5, device=world.device), whole),
        # Sizes that do not fit each other either.
        "both": calls.reduce_scatter_base(
            torch.zeros(5, device=world.device), torch.ones(6 * world.size, device=world.device)
        ),
    }[uneven]
    calls.assert_mismatch_is_reported(world, make_group(world), odd, calls.reduce_scatter_base(part, whole))


@pytest.mark.distributed(backends=["nccl"])
def test_reduce_scatter_size_that_is_wrong_on_all_ranks_is_left_to_nccl(world: World, make_group: MakeGroup) -> None:
    """If this fails, the wrapper hides NCCL's own check of sizes on which all ranks agree."""
    group = make_group(world)
    whole = torch.ones(4 * world.size + 1, device=world.device)
    part = torch.zeros(4, device=world.device)
    # The type of this error changed between releases of torch.
    with pytest.raises(
        (RuntimeError, ValueError),
        match="input tensor must be the same size as output size times world size",
    ):
        calls.reduce_scatter_base(part, whole).start(group).wait()
    calls.assert_all_reduce_works(world, group)


@pytest.mark.distributed
def test_correct_program_is_left_alone(world: World, make_group: MakeGroup) -> None:
    """If this fails, switching on the wrapper breaks correct programs or changes their results.

    This includes correct differences between ranks: inputs on the root alone, uneven parts.
    """
    group = make_group(world)
    ranks = range(world.size)

    def filled(value: float, length: int = 2) -> torch.Tensor:
        return torch.full((length,), float(value), device=world.device)

    calls.assert_all_reduce_works(world, group)

    sent = filled(7 if world.rank == 0 else -1)
    calls.broadcast(sent).start(group).wait()
    assert filled(7).tolist() == sent.tolist()

    total = filled(world.rank)
    calls.reduce(total).start(group).wait()
    # On the other ranks torch leaves the value undefined.
    assert world.rank != 0 or [float(sum(ranks))] * 2 == total.tolist()

    gathered = [filled(-1) for _ in ranks]
    calls.all_gather(gathered, filled(world.rank)).start(group).wait()
    assert [[float(rank)] * 2 for rank in ranks] == [tensor.tolist() for tensor in gathered]

    part = filled(-1)
    parts = [filled(rank) for rank in ranks] if world.rank == 0 else None
    calls.scatter(part, parts).start(group).wait()
    assert [float(world.rank)] * 2 == part.tolist()

    # Every rank sends n + 1 numbers to rank n.
    lengths = [rank + 1 for rank in ranks]
    own_length = lengths[world.rank]
    received = filled(-1, own_length * world.size)
    calls.all_to_all_base(received, filled(world.rank, sum(lengths)), [own_length] * world.size, lengths).start(
        group
    ).wait()
    assert [float(rank) for rank in ranks for _ in range(own_length)] == received.tolist()

    calls.barrier().start(group).wait()


@pytest.mark.distributed(features=["coalesced_all_reduce"])
def test_coalesced_all_reduces_work_under_debug_detail(world: World) -> None:
    """If this fails, a program that batches its collectives cannot be debugged."""
    group = groups.debug_detail_group(world)
    tensors = [torch.ones(length, device=world.device) for length in (1, 3)]
    with c10d._coalescing_manager(group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    assert [[float(world.size)] * length for length in (1, 3)] == [t.tolist() for t in tensors]


@pytest.mark.distributed(features=["coalescing"])
def test_coalescing_on_a_device_works_under_debug_detail(world: World) -> None:
    """If this fails, the bracket that NCCL puts around several calls crashes in the wrapper."""
    group = groups.debug_detail_group(world)
    tensors = [torch.ones(length, device=world.device) for length in (1, 3)]
    with c10d._coalescing_manager(group, device=world.device):
        for tensor in tensors:
            calls.all_reduce(tensor).start(group)
    assert [[float(world.size)] * length for length in (1, 3)] == [t.tolist() for t in tensors]


@pytest.mark.distributed
@needs_coalesced_reduce_scatter
def test_coalesced_reduce_scatter_works_under_debug_detail(world: World) -> None:
    """If this fails, sharded training that batches its gradients cannot be debugged, or gets wrong ones."""
    group = groups.debug_detail_group(world)
    ranks = range(world.size)
    shapes = [(2, 2), (3, 5)]

    def filled(value: float, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.full(shape, float(value), device=world.device)

    # Every rank contributes other rows to each rank.
    inputs = [torch.cat([filled(10 * world.rank + peer, shape) for peer in ranks]) for shape in shapes]
    outputs = [filled(-1, shape) for shape in shapes]
    calls.reduce_scatter_coalesced(outputs, inputs).start(group).wait()
    total = sum(10 * rank + world.rank for rank in ranks)
    torch.testing.assert_close(outputs, [filled(total, shape) for shape in shapes])


@pytest.mark.distributed
@needs_coalesced_reduce_scatter
def test_coalesced_reduce_scatter_against_barrier_is_reported(world: World) -> None:
    """If this fails, sharded training that batches its gradients hangs when its ranks get out of step."""
    tensors = [torch.ones(2 * world.size, 2, device=world.device)]
    outputs = [torch.zeros(2, 2, device=world.device)]
    calls.assert_mismatch_is_reported(
        world, groups.debug_detail_group(world), calls.reduce_scatter_coalesced(outputs, tensors), calls.barrier()
    )


@pytest.mark.distributed
@needs_answers_of_the_backend
def test_wrapper_answers_for_its_backend(world: World) -> None:
    """If this fails, a program that asks what its group can do behaves differently while it is debugged."""
    backend: Any = groups.backend_by_hand(world)
    wrapper: Any = groups.wrap(backend, world)
    assert wrapper.options is backend.options
    # torch 2.15 has made the last one private.
    estimates = next(name for name in ("supports_time_estimate", "_supports_time_estimate") if hasattr(backend, name))
    for name in ("supports_splitting", "supports_coalescing", estimates):
        assert getattr(wrapper, name) == getattr(backend, name), name
    # A wrapper that does not ask says no.
    assert wrapper.supports_splitting
    assert wrapper.supports_tensor_alloc(world.device) == backend.supports_tensor_alloc(world.device)
    calls.assert_all_reduce_works(world, wrapper)


@pytest.mark.distributed(backends=["nccl"])
@needs_answers_of_the_backend
def test_wrapper_of_nccl_connects_and_allocates(world: World) -> None:
    """If this fails, a program that uses what only NCCL has cannot be debugged."""
    backend: Any = groups.backend_by_hand(world)
    wrapper: Any = groups.wrap(backend, world)
    assert wrapper.get_error() == backend.get_error()
    wrapper.eager_connect_single_device(world.device)
    # Only with GPUs that can multicast.
    if backend.supports_tensor_alloc(world.device):
        assert wrapper.mem_allocator is backend.mem_allocator
        allocated = wrapper.allocate_tensor(1024, dtype=torch.float32, device=world.device)
        assert (allocated.shape, allocated.dtype, allocated.device) == ((1024,), torch.float32, world.device)
    calls.assert_all_reduce_works(world, wrapper)


@pytest.mark.distributed
def test_wrapping_without_gloo_names_the_missing_backend(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a torch without gloo answers with a NameError from its own code."""
    backend = groups.backend_by_hand(world)
    # A rank that is through with the test closes its connections, and a slow peer may still be making them.
    world.barrier()
    groups.set_debug_level("DETAIL")
    groups.take_gloo_away(monkeypatch)
    with pytest.raises(AssertionError, match="ProcessGroupWrapper unsupported without GLOO backend"):
        groups.wrap(backend, world)


@pytest.mark.distributed(features=["needs_no_gloo"])
@pytest.mark.parametrize("level", ["OFF", "DETAIL"])
def test_new_group_without_gloo_needs_no_wrapper(
    world: World, monkeypatch: pytest.MonkeyPatch, level: Literal["OFF", "DETAIL"]
) -> None:
    """If this fails, a torch without gloo cannot create groups, whatever the debug level."""
    groups.set_debug_level(level)
    groups.take_gloo_away(monkeypatch)
    group = groups.new_group(world)
    assert not groups.is_wrapped(group, world)
    calls.assert_all_reduce_works(world, group)


@pytest.mark.distributed(init=False)
def test_backend_built_by_hand_has_its_options(world: World) -> None:
    """If this fails, the scenarios on a wrapped backend say nothing of backends that users construct themselves."""
    backend: Any = groups.backend_by_hand(world, timeout_s=HANG_TIMEOUT_S)
    assert backend.options._timeout == timedelta(seconds=HANG_TIMEOUT_S)
    if world.device.type == "cpu":
        assert backend.options._threads == groups.GLOO_THREADS
    assert not dist.is_initialized()
    calls.assert_all_reduce_works(world, backend)
    # Its own limit ends a wait, not the wrapper's, which it does not have.
    if world.device.type == "cpu" and world.rank == 0:
        with pytest.raises(RuntimeError, match="imed out"):
            calls.all_reduce(torch.ones(1)).start(backend).wait()
    world.barrier()


@pytest.mark.distributed(init=False, features=["needs_no_gloo"])
@pytest.mark.parametrize("level", ["OFF", "DETAIL"])
def test_default_group_without_gloo_needs_no_wrapper(
    world: World, monkeypatch: pytest.MonkeyPatch, level: Literal["OFF", "DETAIL"]
) -> None:
    """If this fails, a torch without gloo cannot even start under debug level DETAIL."""
    groups.set_debug_level(level)
    groups.take_gloo_away(monkeypatch)
    init_default_group(world)
    assert not groups.is_wrapped(c10d._get_default_group(), world)
    calls.assert_all_reduce_works(world, c10d._get_default_group())
    group = groups.new_group(world)
    assert not groups.is_wrapped(group, world)
    calls.assert_all_reduce_works(world, group)
    dist.destroy_process_group()


def init_default_group(world: World) -> None:
    """Make the default group, wrapped or not as torch's debug level says."""
    limit = timedelta(seconds=groups.GROUP_TIMEOUT_S)
    dist.init_process_group(world.backend, store=world.store, rank=world.rank, world_size=world.size, timeout=limit)


@pytest.mark.distributed(init=False)
def test_default_group_is_wrapped_under_debug_detail(world: World) -> None:
    """If this fails, a user who only sets the variable and creates no groups has no wrapper."""
    groups.set_debug_level("DETAIL")
    init_default_group(world)
    assert groups.is_wrapped(c10d._get_default_group(), world)
    calls.assert_mismatch_is_reported(
        world,
        c10d._get_default_group(),
        calls.all_reduce(torch.ones(20, 2, device=world.device)),
        calls.all_reduce(torch.ones(20, 10, device=world.device)),
    )
    dist.destroy_process_group()
