"""Reduce operations: what c10d defines, and for which dtypes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Reduction", "reduction_of"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduce operation of one rank's call.

    Attributes:
        name: Such as "SUM"; the same on all ranks.
        factor: Of PREMUL_SUM: what this rank's tensors are multiplied with first. None for all others.
    """

    name: str
    factor: float | Tensor | None = None


def reduction_of(op: Any, tensors: Sequence[Tensor]) -> Reduction:
    """Read a reduce operation, and check that it is defined for the tensors.

    Args:
        op: A `ReduceOp`, or one of its kinds.
        tensors: What is to be reduced.

    Raises:
        ValueError: If it is not.
    """
    kind = int(getattr(op, "op", op))
    for tensor in tensors:
        reduction = _defined(kind, tensor.dtype, tensor.layout)
    if not tensors:
        raise ValueError("a reduction of no tensors; expected at least one")
    # Its pickled form is where c10d lets Python see the factor.
    return Reduction(reduction.name, op.__getstate__()[1]) if reduction.name == "PREMUL_SUM" else reduction


# Asked for every call; comparing c10d's enum is slow.
@functools.cache
def _defined(kind: int, dtype: torch.dtype, layout: torch.layout) -> Reduction:
    name = dist.ReduceOp.RedOpType(kind).name
    if layout is not torch.strided:
        raise ValueError(
            f'A tensor of layout {layout} cannot be reduced by backend "threaded".\n'
            "Its ranks combine dense tensors only.\n"
            'Convert it with to_dense(), or use backend "gloo", which knows sparse all_reduce.'
        )
    if name in ("BAND", "BOR", "BXOR"):
        is_defined = not (dtype.is_floating_point or dtype.is_complex)
    elif name in ("MIN", "MAX"):
        is_defined = not dtype.is_complex
    elif name in ("AVG", "PREMUL_SUM"):
        is_defined = dtype is not torch.bool
    else:
        is_defined = name in ("SUM", "PRODUCT")
    if not is_defined:
        raise ValueError(
            f"ReduceOp.{name} is not defined for {str(dtype).removeprefix('torch.')} tensors.\n"
            "c10d defines bitwise operations for whole numbers and bool, MIN and MAX for what has an order, AVG and "
            "PREMUL_SUM for everything but bool.\n"
            "Convert the tensor, or use another operation."
        )
    return Reduction(name)
