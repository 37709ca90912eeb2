"""What collectives do with the tensors: moves and reductions, without any waiting.

One thread does the work of all ranks, in the order of ranks. Inputs are read before any output is written, because
threads, unlike processes, can pass one and the same tensor on all ranks. Outputs are written as real groups write them:
autograd does not see it.

What ranks bring has been checked already as far as one rank's call shows it, and `Call.signature` has been compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "Reduced",
    "UnequalError",
    "accelerators",
    "all_gather",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "copy",
    "gather",
    "meet_only",
    "parts",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "run_move",
    "scatter",
    "settle",
    "tensor_text",
]

# What a rank brings to a reduction: its tensors, and what they are multiplied with first (None: nothing).
Reduced: TypeAlias = "tuple[Sequence[Tensor], float | Tensor | None]"

# By the names of reduce operations.
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


_NO_STREAMS = ("cpu", "meta")


class UnequalError(Exception):
    """What two ranks brought does not fit together; the text says in which way."""


def tensor_text(tensor: Tensor) -> str:
    """As in "float32[2, 3]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def run_move(move: Callable[..., None], *args: Any, devices: Iterable[torch.device]) -> None:
    """Call one of the functions below, unseen by autograd and by what watches the operations of the calling thread.

    The thread that happens to come last works for all; which one that is must not show in its user's traces.

    Args:
        move: The function.
        args: For it.
        devices: The accelerators that hold the tensors.
    """
    has_grad = torch.is_grad_enabled()
    # Not torch.no_grad() and the like, which take longer than a small collective.
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
    """The devices of tensors that have streams."""
    return [tensor.device for tensor in tensors if tensor.device.type not in _NO_STREAMS]


def settle(devices: Iterable[torch.device]) -> None:
    """Wait for what the calling thread's streams still do; other threads, with streams of theirs, are to go on."""
    for device in devices:
        torch.get_device_module(device.type).current_stream(device).synchronize()


def parts(tensor: Tensor, count: int) -> list[Tensor]:
    """A tensor cut into equal parts, as views: of its memory if that is in one piece, else along its first dimension.

    Raises:
        ValueError: If it cannot be.
    """
    if tensor.is_contiguous() and tensor.numel() % count == 0:
        flat = tensor.detach().view(-1)
        size = tensor.numel() // count
        return [flat[index * size : (index + 1) * size] for index in range(count)]
    if tensor.dim() and tensor.shape[0] % count == 0:
        return list(tensor.detach().tensor_split(count))
    raise ValueError(f"{tensor_text(tensor)} cannot be cut into {count} equal parts, one for each rank")


def copy(output: Tensor, value: Tensor) -> None:
    """Write `value` to an output of as many elements, whatever the shapes.

    Raises:
        UnequalError: If the two differ in dtype or number of elements.
    """
    _check_fits(value, output)
    _write([output], [value])


def meet_only(brought: list[Any]) -> None:
    """A barrier: nothing to do."""


def all_reduce(op: str, brought: list[Reduced]) -> None:
    """Every rank gets the reductions of its tensors with those of the others."""
    results = [_reduced(op, brought, index) for index in range(len(brought[0][0]))]
    _write([tensor for tensors, _ in brought for tensor in tensors], results * len(brought))


def reduce(op: str, root: int, brought: list[Reduced]) -> None:
    """The root gets them."""
    _write(brought[root][0][:1], [_reduced(op, brought, 0)])


def reduce_scatter(op: str, brought: list[tuple[Tensor, Reduced]]) -> None:
    """Each rank gets the reduction of the tensors that the ranks brought for it."""
    inputs = [reduced for _, reduced in brought]
    results = [_reduced(op, inputs, rank) for rank in range(len(brought))]
    _write([output for output, _ in brought], results)


def reduce_scatter_single(op: str, brought: list[tuple[Sequence[Tensor], Reduced]]) -> None:
    """The same for tensors that are cut into one part per rank; there may be several such pairs."""
    inputs = [reduced for _, reduced in brought]
    for index in range(len(brought[0][0])):
        results = parts(_reduced(op, inputs, index).contiguous(), len(brought))
        _write([outputs[index] for outputs, _ in brought], results)


def broadcast(root: int, brought: list[Sequence[Tensor]]) -> None:
    """Every rank gets the root's tensors."""
    others = [tensors for rank, tensors in enumerate(brought) if rank != root]
    _write([tensor for tensors in others for tensor in tensors], [*brought[root]] * len(others))


def all_gather(brought: list[tuple[Sequence[Sequence[Tensor]], Sequence[Tensor]]]) -> None:
    """Every rank gets every rank's tensor; there may be several such lists."""
    for index in range(len(brought[0][0])):
        values = [inputs[index] for _, inputs in brought]
        for outputs, _ in brought:
            _write(outputs[index], values)


def all_gather_single(brought: list[tuple[Sequence[Tensor], Sequence[Tensor]]]) -> None:
    """The same for outputs that hold one part per rank; there may be several such pairs."""
    for index in range(len(brought[0][0])):
        whole = torch.cat([inputs[index].detach().reshape(-1) for _, inputs in brought])
        _write([outputs[index] for outputs, _ in brought], [whole] * len(brought))


def gather(root: int, brought: list[tuple[Sequence[Tensor], Tensor]]) -> None:
    """The root gets every rank's tensor."""
    outputs = brought[root][0]
    values = [value for _, value in brought]
    for value, output in zip(values, outputs, strict=True):
        _check_fits(value, output)
    _write(outputs, values)


def scatter(root: int, brought: list[tuple[Tensor, Sequence[Tensor]]]) -> None:
    """Each rank gets its one of the root's tensors."""
    values = brought[root][1]
    outputs = [output for output, _ in brought]
    for value, output in zip(values, outputs, strict=True):
        _check_fits(value, output)
    _write(outputs, values)


def all_to_all(brought: list[tuple[Sequence[Tensor], Sequence[Tensor]]]) -> None:
    """Each rank gets its one of every rank's tensors."""
    for rank, (outputs, _) in enumerate(brought):
        values = [inputs[rank] for _, inputs in brought]
        for peer, (value, output) in enumerate(zip(values, outputs, strict=True)):
            _check_fits(value, output, f", from rank {peer} of the group to rank {rank}")
    # In place, an output of one rank can be its input, which others have to get first.
    kept = [
        [value.clone() if any(value is output for output in outputs) else value for value in inputs]
        for outputs, inputs in brought
    ]
    for rank, (outputs, _) in enumerate(brought):
        _write(outputs, [inputs[rank] for inputs in kept])


def _check_fits(value: Tensor, output: Tensor, where: str = "") -> None:
    if value.dtype is not output.dtype or value.numel() != output.numel():
        raise UnequalError(f"{tensor_text(value)} does not fit into {tensor_text(output)}{where}")


# Those that can work on all ranks' tensors as one.
_COMBINE_STACKED: dict[str, Callable[[Tensor], Tensor]] = {
    "SUM": lambda stack: stack.sum(0, dtype=stack.dtype),
    "PRODUCT": lambda stack: stack.prod(0, dtype=stack.dtype),
    "MIN": lambda stack: stack.amin(0),
    "MAX": lambda stack: stack.amax(0),
}
_COMBINE_STACKED |= dict.fromkeys(("AVG", "PREMUL_SUM"), _COMBINE_STACKED["SUM"])
# Up to so many elements of all ranks together, one copy costs less than many small operations.
_STACKED_ELEMENTS = 1 << 16


def _reduced(op: str, brought: Sequence[Reduced], index: int) -> Tensor:
    values = [tensors[index] if factor is None else tensors[index] * factor for tensors, factor in brought]
    first = values[0]
    values = [value if value.shape == first.shape else value.reshape(first.shape) for value in values]
    if op in _COMBINE_STACKED and len(values) * first.numel() <= _STACKED_ELEMENTS:
        total = _COMBINE_STACKED[op](torch.stack(_on_one_device(values)))
    else:
        first, *others = _on_one_device(values)
        total = first.clone()
        for value in others:
            _COMBINE[op](total, value, out=total)
    if op == "AVG":
        total.div_(len(values), rounding_mode=None if total.is_floating_point() or total.is_complex() else "trunc")
    return total


def _on_one_device(values: list[Tensor]) -> list[Tensor]:
    device = values[0].device
    return [value if value.device == device else value.to(device) for value in values]


def _write(outputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    if outputs:
        torch._foreach_copy_(
            [_hidden(output) for output in outputs],
            [
                value if value.shape == output.shape else value.reshape(output.shape)
                for output, value in zip(outputs, values, strict=True)
            ],
        )


def _hidden(output: Tensor) -> Tensor:
    # Autograd keeps track of writes to these even while it is off, and would show them in their grad_fn.
    return output.detach() if output.requires_grad or output._is_view() else output
