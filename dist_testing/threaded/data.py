"""Moves and reduces the tensors of a collective; waits for no rank.

One thread does the work of all ranks, in the order of ranks. Every input is read before any output is written, because
threads, unlike processes, can pass the same tensor on all ranks. Autograd does not see the writes to outputs, as with
c10d's own groups.

The functions for collectives take `contributions`: one entry per rank of the group, in the order of ranks. n is the
number of ranks, `op` the name of a reduce operation, `root` a rank of the group. The caller has already checked each
rank's arguments alone, and has compared `Call.signature` between the ranks, so tensors at the same index have the same
dtype and number of elements on all ranks. Where the signature does not say it, the function checks it, and raises
`UnequalError`. An output gets the elements of its value in row-major order; their shapes may differ. Outputs and inputs
may lie on different devices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

# A rank's contribution to a reduction: its tensors, and the factor of PREMUL_SUM (None for all other operations).
Reduced: TypeAlias = "tuple[Sequence[Tensor], float | Tensor | None]"

# The function for each reduce operation, by its name in `torch.distributed.ReduceOp`. AVG divides the sum afterwards;
# PREMUL_SUM multiplies before.
_COMBINE: dict[str, Callable[..., Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}

# Device types whose operations are over when the call returns.
_NO_STREAMS = ("cpu", "meta")


class UnequalError(Exception):
    """Raised if the contributions of two ranks do not fit together; the text gives both sizes and dtypes."""


def tensor_text(tensor: Tensor) -> str:
    """Return dtype and shape as text, such as "float32[2, 3]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def run_move(move: Callable[..., None], *args: Any, devices: Iterable[torch.device]) -> None:
    """Call one of the functions below, hidden from autograd and from the calling thread's dispatch and function modes.

    The last rank to arrive does the work of all ranks. Which rank that is depends on timing, so the work must not
    appear in that rank's traces.

    It returns when the current streams of `devices`, the accelerators that hold the tensors, are idle.
    """
    has_grad = torch.is_grad_enabled()
    # torch.no_grad() takes longer than a small collective.
    torch._C._set_grad_enabled(False)
    try:
        if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                move(*args)
        else:
            move(*args)
        settle(devices)
    finally:
        torch._C._set_grad_enabled(has_grad)


def accelerators(tensors: Iterable[Tensor]) -> list[torch.device]:
    """Return the devices of those tensors that lie on an accelerator, one entry per tensor."""
    return [tensor.device for tensor in tensors if tensor.device.type not in _NO_STREAMS]


def settle(devices: Iterable[torch.device]) -> None:
    """Wait for the calling thread's current stream on each device, so that all threads see its results."""
    for device in devices:
        torch.get_device_module(device.type).current_stream(device).synchronize()


def parts(tensor: Tensor, count: int) -> list[Tensor]:
    """Cut a tensor into `count` equal parts, as views without autograd.

    The parts of a contiguous tensor are one-dimensional slices of its elements in row-major order; those of others are
    slices along the first dimension.

    Raises:
        ValueError: If the tensor cannot be cut evenly.
    """
    if tensor.is_contiguous() and tensor.numel() % count == 0:
        flat = tensor.detach().view(-1)
        size = tensor.numel() // count
        return [flat[index * size : (index + 1) * size] for index in range(count)]
    if tensor.dim() and tensor.shape[0] % count == 0:
        return list(tensor.detach().tensor_split(count))
    raise ValueError(f"{tensor_text(tensor)} cannot be cut into {count} equal parts, one for each rank")


def copy(output: Tensor, value: Tensor) -> None:
    """Write `value` to `output`, which may have another shape.

    Raises:
        UnequalError: If the two differ in dtype or number of elements.
    """
    _write_checked([output], [value])


def meet_only(contributions: list[Any]) -> None:
    """Do nothing: a barrier only waits."""


def all_reduce(op: str, contributions: list[Reduced]) -> None:
    """Reduce each tensor with the tensors at the same index on the other ranks, in place, on every rank."""
    results = [_reduced(op, contributions, index) for index in range(len(contributions[0][0]))]
    _write([tensor for tensors, _ in contributions for tensor in tensors], results * len(contributions))


def reduce(op: str, root: int, contributions: list[Reduced]) -> None:
    """Reduce the only tensor of each rank into that of the root; the tensors of the other ranks stay as they are."""
    _write(contributions[root][0][:1], [_reduced(op, contributions, 0)])


def reduce_scatter(op: str, contributions: list[tuple[Tensor, Reduced]]) -> None:
    """Reduce the inputs at index r of all ranks into the output of rank r.

    A rank contributes its output and n inputs; the output has the dtype and number of elements of its own input.
    """
    inputs = [reduced for _, reduced in contributions]
    results = [_reduced(op, inputs, rank) for rank in range(len(contributions))]
    _write([output for output, _ in contributions], results)


def reduce_scatter_single(op: str, contributions: list[tuple[Sequence[Tensor], Reduced]]) -> None:
    """Reduce the inputs of all ranks, cut the result into n equal parts, and write part r to the output of rank r.

    A rank contributes k outputs and k inputs. An input has n times the elements of its output.
    """
    inputs = [reduced for _, reduced in contributions]
    for index in range(len(contributions[0][0])):
        results = parts(_reduced(op, inputs, index).contiguous(), len(contributions))
        _write([outputs[index] for outputs, _ in contributions], results)


def broadcast(root: int, contributions: list[Sequence[Tensor]]) -> None:
    """Copy the root's tensors to the tensors of all other ranks."""
    others = [tensors for rank, tensors in enumerate(contributions) if rank != root]
    _write([tensor for tensors in others for tensor in tensors], [*contributions[root]] * len(others))


def all_gather(contributions: list[tuple[Sequence[Sequence[Tensor]], Sequence[Tensor]]]) -> None:
    """Copy the inputs of all ranks to every rank.

    A rank contributes k lists of n outputs, and k inputs. In list i, output r has the dtype and number of elements of
    input i of rank r.
    """
    for index in range(len(contributions[0][0])):
        values = [inputs[index] for _, inputs in contributions]
        for outputs, _ in contributions:
            _write(outputs[index], values)


def all_gather_single(contributions: list[tuple[Sequence[Tensor], Sequence[Tensor]]]) -> None:
    """Copy the inputs of all ranks to every rank, one after the other into one output.

    A rank contributes k outputs and k inputs. An output has n times the elements of its input.
    """
    for index in range(len(contributions[0][0])):
        whole = torch.cat([inputs[index].detach().reshape(-1) for _, inputs in contributions])
        _write([outputs[index] for outputs, _ in contributions], [whole] * len(contributions))


def gather(root: int, contributions: list[tuple[Sequence[Tensor], Tensor]]) -> None:
    """Copy the values of all ranks to the root.

    A rank contributes its outputs (n on the root, none on the others) and its value.
    """
    _write_checked(contributions[root][0], [value for _, value in contributions])


def scatter(root: int, contributions: list[tuple[Tensor, Sequence[Tensor]]]) -> None:
    """Copy the value at index r of the root to the output of rank r.

    A rank contributes its output and its values (n on the root, none on the others).
    """
    _write_checked([output for output, _ in contributions], contributions[root][1])


def all_to_all(contributions: list[tuple[Sequence[Tensor], Sequence[Tensor]]]) -> None:
    """Copy the input at index r of rank p to the output at index p of rank r, for all ranks.

    A rank contributes n outputs and n inputs.
    """
    for rank, (outputs, _) in enumerate(contributions):
        values = [inputs[rank] for _, inputs in contributions]
        for peer, (value, output) in enumerate(zip(values, outputs, strict=True)):
            _check_fits(value, output, f", from rank {peer} of the group to rank {rank}")
    # An output can be an input of the same rank; keep its old value for the ranks that have not read it yet.
    kept = [
        [value.clone() if any(value is output for output in outputs) else value for value in inputs]
        for outputs, inputs in contributions
    ]
    for rank, (outputs, _) in enumerate(contributions):
        _write(outputs, [inputs[rank] for inputs in kept])


def _check_fits(value: Tensor, output: Tensor, where: str = "") -> None:
    if value.dtype is not output.dtype or value.numel() != output.numel():
        raise UnequalError(f"{tensor_text(value)} does not fit into {tensor_text(output)}{where}")


def _reduced(op: str, contributions: Sequence[Reduced], index: int) -> Tensor:
    values = [tensors[index] if factor is None else tensors[index] * factor for tensors, factor in contributions]
    total = values[0].clone()
    for value in values[1:]:
        is_alike = value.shape == total.shape and value.device == total.device
        _COMBINE[op](total, value if is_alike else value.reshape(total.shape).to(total.device), out=total)
    if op == "AVG":
        total.div_(len(values), rounding_mode=None if total.is_floating_point() or total.is_complex() else "trunc")
    return total


def _write_checked(outputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for value, output in zip(values, outputs, strict=True):
        _check_fits(value, output)
    _write(outputs, values)


def _write(outputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    if not outputs:
        return
    # torch refuses to write to a tensor of inference mode outside that mode. Other backends write to its memory.
    with torch.inference_mode() if any(map(Tensor.is_inference, outputs)) else contextlib.nullcontext():
        torch._foreach_copy_(
            [_hidden(output) for output in outputs],
            [
                value if value.shape == output.shape else value.reshape(output.shape)
                for output, value in zip(outputs, values, strict=True)
            ],
        )


def _hidden(output: Tensor) -> Tensor:
    # Even while it is off, autograd records writes to these tensors and shows them in their grad_fn.
    return output.detach() if output.requires_grad or output._is_view() else output
