"""Reads the arguments of a group's methods: those of torch.distributed's functions, and of its object-style API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch.distributed as dist
from torch import Tensor

from dist_testing.threaded import data

__all__ = [
    "Tensors",
    "check_same_size",
    "innermost",
    "limit_of",
    "listed",
    "op_of",
    "single",
    "sizes_of",
    "text_of",
]

Tensors: TypeAlias = Sequence[Tensor]


def listed(tensors: Any) -> list[Tensor]:
    """One tensor, or a list of them, as a list."""
    return [tensors] if isinstance(tensors, Tensor) else tensors


def single(tensors: Any) -> Tensor:
    """The only tensor of a list, or the tensor itself."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} tensors; expected one: each rank has one device here")
    tensor: Tensor = tensors[0]
    return tensor


def innermost(tensors: Any) -> list[Tensor]:
    """c10d has lists of lists, for ranks with several devices; its object-style API has plain lists."""
    if tensors and not isinstance(tensors[0], Tensor):
        if len(tensors) != 1:
            raise ValueError(f"{len(tensors)} lists of tensors; expected one: each rank has one device here")
        tensors = tensors[0]
    return list(tensors)


def check_same_size(value: Tensor, output: Tensor) -> None:
    """Check that a rank's own part fits where it goes."""
    if value.dtype != output.dtype or value.numel() != output.numel():
        raise ValueError(f"{data.tensor_text(value)} does not fit into {data.tensor_text(output)}, on the rank itself")


def sizes_of(tensors: Tensors) -> tuple[object, ...]:
    """What of tensors has to be the same on all ranks of most collectives."""
    return tuple((tensor.dtype, tensor.numel()) for tensor in tensors)


def text_of(tensors: Tensors) -> str:
    """What a reader is told of tensors."""
    texts = list(map(data.tensor_text, tensors))
    # Groups of many ranks have many tensors.
    return ", ".join(texts) if len(texts) <= 4 else f"{texts[0]} and {len(texts) - 1} more"


def op_of(opts: Any, op: Any) -> Any:
    """The reduce operation; the sum if none is given."""
    if op is not None:
        return op
    return dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def limit_of(opts: Any, timeout: timedelta | None) -> float | None:
    """The time limit of a call in seconds; None for the group's."""
    timeout = timeout if timeout is not None else getattr(opts, "timeout", None)
    # c10d's options have a negative one where the user gave none.
    return timeout.total_seconds() if timeout is not None and timeout > timedelta() else None
