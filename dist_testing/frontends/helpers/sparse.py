"""Inputs for reductions of sparse tensors, with the sums that must come out."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["simple_sparse_reduce_tests"]

# Length of each dense dimension.
_DENSE = 2
# (sparse dimensions, dense dimensions) of the tensors.
_SHAPES = ((1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3))


def _contribution(index: int, count: int, sparse_dims: int, dense_dims: int) -> Tensor:
    """Ones at the places 0 to `index` of the first sparse dimension, at 0 of the others: so any two overlap."""
    import torch

    indices = torch.zeros(sparse_dims, index + 1, dtype=torch.int64)
    indices[0] = torch.arange(index + 1)
    dense = [_DENSE] * dense_dims
    size = [count] * sparse_dims + dense
    # The argument of the same meaning warns, in torch 2.11, that nothing is checked unless one asks for it.
    with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]  # torch's
        return torch.sparse_coo_tensor(indices, torch.ones(index + 1, *dense), size)


def simple_sparse_reduce_tests(
    rank: int, world_size: int, num_inputs: int = 1
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Cases for a sum over all ranks, with one to three sparse and none to three dense dimensions.

    Args:
        rank: Whose inputs.
        world_size: Ranks.
        num_inputs: Tensors that each rank brings.

    Returns:
        For each case this rank's inputs, and what each of them becomes.
    """
    count = world_size * num_inputs
    cases = []
    for sparse_dims, dense_dims in _SHAPES:
        every = [_contribution(index, count, sparse_dims, dense_dims) for index in range(count)]
        total = functools.reduce(operator.add, every)
        cases.append((every[rank * num_inputs : (rank + 1) * num_inputs], [total] * num_inputs))
    return cases
