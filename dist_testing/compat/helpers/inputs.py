"""Tables and inputs of tests: features of the backends, sparse tensors with their sums."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

# Length of each dense dimension.
_DENSE = 2
# (sparse dimensions, dense dimensions) of the tensors.
_SHAPES = ((1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3))


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
    import torch

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
