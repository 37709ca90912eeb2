"""Parts of a test: sub-tests, captured output, results of other processes, checks on DDP, compiled code, inputs."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import operator
import os
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.nn.parallel import DistributedDataParallel

__all__ = ["DistTestCases", "captured_output", "run_subtests", "simple_sparse_reduce_tests", "verify_ddp_error_logged"]

# The C++ stack in a text of torch begins here.
_CPP_STACK = "\nException raised from "
# A second group of the same world must not find the first group's entries in its file.
_rendezvous_numbers = itertools.count()
# Length of each dense dimension.
_DENSE = 2
# (sparse dimensions, dense dimensions) of the tensors.
_SHAPES = ((1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3))


def run_subtests(
    cls_inst: unittest.TestCase,
    subtest_config: Mapping[str, Sequence[Any]],
    test_fn: Callable[..., Any],
    *test_args: Any,
    **test_kwargs: Any,
) -> None:
    """Call `test_fn` once for each combination of `subtest_config`, each as a sub-test, on the existing ranks.

    Between two calls the ranks meet at a barrier, if there is a default group, and the state of `torch.compile` is
    cleared, if it is in use.

    Args:
        cls_inst: The running test.
        subtest_config: Keyword of `test_fn` to its values.
        test_fn: The body.
        *test_args: Arguments of every call.
        **test_kwargs: Keyword arguments of every call.
    """
    for values in itertools.product(*subtest_config.values()):
        chosen = dict(zip(subtest_config, values, strict=True))
        with cls_inst.subTest(**chosen):
            _reset_dynamo()
            test_fn(*test_args, **test_kwargs, **chosen)
            _reset_dynamo()
        if dist.is_initialized():
            dist.barrier()


def _reset_dynamo() -> None:
    # Its import takes a second, and a module that was never imported has no state.
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()


@contextlib.contextmanager
def captured_output() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Replace `sys.stdout` and `sys.stderr` for a block.

    C++ code writes to the descriptors 1 and 2; its output is not captured.

    Yields:
        The two replacements: standard output, standard error.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def retrieve_result_from_completion_queue(
    process: BaseProcess, completion_queue: Queue[Any], timeout: float | None = None
) -> Any:
    """Return the next result that a process puts into its queue.

    If the process ends without one, or `timeout` seconds are over, it is a RuntimeError, returned and not raised.
    """
    started_s = time.monotonic()
    reader = completion_queue._reader  # type: ignore[attr-defined]  # the queue has no public one
    # The pipe is asked first: it may still hold a result of a process that has ended.
    ready = wait([reader, process.sentinel], timeout)
    if reader in ready or not completion_queue.empty():
        return completion_queue.get()
    if ready:
        process.join()
        return RuntimeError(f"Exited with {process.exitcode}")
    return RuntimeError(f"Process timed out after {time.monotonic() - started_s}s")


def verify_ddp_error_logged(model_DDP: DistributedDataParallel, err_substr: str) -> None:
    """Check that DistributedDataParallel has logged an error.

    Args:
        model_DDP: The wrapped model.
        err_substr: Part of the error's text. Of a C++ error, only the part before the stack counts.

    Raises:
        AssertionError: If it has logged no error, or another one.
    """
    data = model_DDP._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    missing = [name for name in ("iteration", "has_error", "error") if name not in data]
    if missing:
        raise AssertionError(f"DDP has logged no error: its logging data have no {', '.join(missing)}")
    expected = err_substr.partition(_CPP_STACK)[0]
    if expected not in data["error"]:
        raise AssertionError(f"DDP has logged another error than {expected!r}: {data['error']}")


@contextlib.contextmanager
def dynamo_dist_per_rank_init(
    rank: int, world_size: int, backend: str | None = None, init_pg: bool = True, fake_pg: bool = False
) -> Iterator[None]:
    """Select the accelerator with the index `rank`, make a default group and reset `torch.compile`, for a block.

    `backend`: None for the accelerator's own. `init_pg`: whether to make the group, and destroy it at the end.
    `fake_pg`: whether to make a fake group and select no accelerator.
    """
    import torch._dynamo
    from torch._dynamo.utils import counters

    def reset() -> None:
        torch._dynamo.reset()
        counters.clear()

    if not fake_pg:
        torch.accelerator.set_device_index(rank)
    if init_pg and fake_pg:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    elif init_pg:
        device = torch.accelerator.current_accelerator()
        backend = backend or dist.get_default_backend_for_device(device.type if device is not None else "cpu")
        if "MASTER_PORT" in os.environ:
            dist.init_process_group(backend, rank=rank, world_size=world_size)
        else:
            # The ranks of a world share their folder for temporary files. Unlike a fixed port, a file in it never
            # belongs to another test.
            path = os.path.join(tempfile.gettempdir(), f"dynamo-rendezvous-{next(_rendezvous_numbers)}")
            store = FileStore(path, world_size)
            dist.init_process_group(backend, rank=rank, world_size=world_size, store=store)
    reset()
    try:
        yield
    finally:
        reset()
        if init_pg:
            dist.destroy_process_group()


class DistTestCases:
    """Tables for tests that run on several backends.

    Attributes:
        skip_collective: Collective to the backends that lack it.
        backend_feature: Feature to the backends that have it.
    """

    skip_collective: ClassVar[dict[str, set[str]]] = {
        "allgather_coalesced": {"nccl", "mpi", "ucc", "xccl"},
        "reduce": set(),
        "sendrecv anysource": {"nccl", "ucc", "xccl"},
        "cpu barrier": {"nccl", "ucc", "xccl"},
    }
    backend_feature: ClassVar[dict[str, set[str]]] = {
        "gpu": {"nccl", "gloo", "ucc"},
        "cuda": {"nccl", "gloo", "ucc"},
        "ddp": {"nccl", "gloo", "ucc"},
        "subgroup": {"nccl", "gloo", "ucc"},
        "plugin": set(),
        "hpu": {"hccl"},
        "xpu": {"xccl"},
    }


def _contribution(index: int, count: int, sparse_dims: int, dense_dims: int) -> Tensor:
    """Return a sparse tensor of shape `[count] * sparse_dims + [2] * dense_dims`, the contribution `index` of `count`.

    Its values are ones, at the indices 0 to `index` of the first sparse dimension and at 0 of the others. So any two
    contributions overlap.
    """
    indices = torch.zeros(sparse_dims, index + 1, dtype=torch.int64)
    indices[0] = torch.arange(index + 1)
    dense = [_DENSE] * dense_dims
    size = [count] * sparse_dims + dense
    # In torch 2.11 the argument `check_invariants` of `sparse_coo_tensor` does the same, but warns.
    with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]  # torch's
        return torch.sparse_coo_tensor(indices, torch.ones(index + 1, *dense), size)


def simple_sparse_reduce_tests(
    rank: int, world_size: int, num_inputs: int = 1
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return cases for a sum of sparse tensors over all ranks.

    The tensors have one to three sparse dimensions of length `world_size * num_inputs`, and none to three dense
    dimensions of length 2.

    Args:
        rank: The rank whose inputs are returned.
        world_size: Ranks in the world.
        num_inputs: Tensors of each rank.

    Returns:
        For each case, this rank's inputs and the expected value of each after the sum.
    """
    count = world_size * num_inputs
    cases = []
    for sparse_dims, dense_dims in _SHAPES:
        every = [_contribution(index, count, sparse_dims, dense_dims) for index in range(count)]
        total = functools.reduce(operator.add, every)
        cases.append((every[rank * num_inputs : (rank + 1) * num_inputs], [total] * num_inputs))
    return cases
