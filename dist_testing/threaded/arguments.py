"""Reads the arguments of a group's methods: tensors, time limits and reduce operations. Raises `ArgumentError`.

A group is called in two styles. `torch.distributed`'s functions pass lists and an options object (`AllreduceOptions`
and others); the object-style API of `torch.distributed.ProcessGroup` passes plain tensors, an operation and a timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from dist_testing.threaded.data import tensor_text

Tensors: TypeAlias = Sequence[Tensor]


class ArgumentError(ValueError, RuntimeError):
    """A rank's own arguments do not fit. For these, gloo raises a RuntimeError, and NCCL a ValueError."""


def listed(tensors: Any) -> list[Tensor]:
    """Return a list of tensors: the given list, or a list of the one given tensor."""
    return [tensors] if isinstance(tensors, Tensor) else tensors


def single(tensors: Any) -> Tensor:
    """Return the only tensor: the given one, or the entry of a list of one."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise ArgumentError(f"{len(tensors)} tensors; expected one, because each rank has one device here")
    tensor: Tensor = tensors[0]
    return tensor


def check_pairs(outputs: Sequence[object], inputs: Sequence[object]) -> None:
    """Check that there are as many outputs as inputs."""
    if len(outputs) != len(inputs):
        raise ArgumentError(f"{len(outputs)} outputs and {len(inputs)} inputs; expected one output for each input")


def check_same_size(value: Tensor, output: Tensor) -> None:
    """Check that a rank's own part has the dtype and the number of elements of its output."""
    if value.dtype != output.dtype or value.numel() != output.numel():
        raise ArgumentError(
            f"{tensor_text(value)} does not fit into {tensor_text(output)}, where this rank's own part goes; "
            "both need the same dtype and number of elements"
        )


def sizes_of(tensors: Tensors) -> tuple[object, ...]:
    """Return the dtype and number of elements of each tensor: what most collectives need to be equal on all ranks."""
    return tuple((tensor.dtype, tensor.numel()) for tensor in tensors)


def text_of(tensors: Tensors) -> str:
    """Return a short text about tensors for error texts, such as "float32[2], int64[3]"."""
    texts = list(map(tensor_text, tensors))
    # Groups of many ranks have many tensors.
    return ", ".join(texts) if len(texts) <= 4 else f"{texts[0]} and {len(texts) - 1} more"


def limit_of(opts: Any, timeout: timedelta | None = None) -> float | None:
    """Return the time limit of a call in seconds, or None where the group's own limit applies.

    `timeout` of the object-style API goes before that of `opts`, which c10d sets to a negative one by default.
    """
    timeout = timeout if timeout is not None else getattr(opts, "timeout", None)
    return timeout.total_seconds() if timeout is not None and timeout > timedelta() else None


def reduction_of(opts: Any, op: Any, tensors: Tensors) -> tuple[str, float | Tensor | None]:
    """Read a call's reduce operation and check that it is defined for its tensors.

    The rules come from `torch.distributed.ReduceOp`, which excludes MIN and MAX for complex tensors, and from c10d's
    backends: gloo refuses BAND, BOR and BXOR for floating-point tensors; NCCL refuses AVG and PREMUL_SUM for bool. This
    backend accepts more than they do where the result is clear: AVG and PREMUL_SUM of integers, PRODUCT of complex
    tensors (which `torch.distributed.all_reduce` refuses before it calls the group).

    `opts` is c10d's options object, a reduce operation, or None. `op`, a `ReduceOp` or one of its kinds
    (`ReduceOp.SUM`), goes before it; SUM if both are None. Returns the name of the operation, and for PREMUL_SUM the
    factor of this rank's tensors: a number, or a tensor that broadcasts to each of them; else None.
    """
    if op is None:
        op = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    if not tensors:
        raise ArgumentError("no tensors to reduce; expected at least one")
    name = dist.ReduceOp.RedOpType(int(getattr(op, "op", op))).name
    for tensor in tensors:
        _check_defined(name, tensor.dtype, tensor.layout)
    if name != "PREMUL_SUM":
        return name, None
    if isinstance(op, dist.ReduceOp.RedOpType):
        raise ArgumentError(
            "ReduceOp.PREMUL_SUM without a factor.\n"
            "The name alone does not say by what this rank's tensors are multiplied.\n"
            "Create the operation with torch.distributed._make_nccl_premul_sum(factor)."
        )
    # c10d shows Python the factor only in the pickled form.
    return name, op.__getstate__()[1]


def _check_defined(name: str, dtype: torch.dtype, layout: torch.layout) -> None:
    if layout is not torch.strided:
        raise ArgumentError(
            f'A tensor of layout {layout} cannot be reduced by backend "threaded".\n'
            "This backend reduces dense tensors only.\n"
            'Convert it with to_dense(), or use backend "gloo", which supports sparse all_reduce.'
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
        raise ArgumentError(
            f"ReduceOp.{name} is not defined for {str(dtype).removeprefix('torch.')} tensors.\n"
            "BAND, BOR and BXOR need integers or bool, MIN and MAX any dtype but complex ones, AVG and PREMUL_SUM any "
            "dtype but bool.\n"
            "Convert the tensor, or use another operation."
        )
