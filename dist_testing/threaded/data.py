"""Moves and reduces the tensors of a collective; waits for no rank.

One thread does the work of all ranks, in the order of ranks. Every input is read before any output is written, because
threads, unlike processes, can pass the same tensor on all ranks. Autograd does not see the writes to outputs, as with
c10d's own groups.

The functions for collectives take `shares`: one per rank of the group, in the order of ranks. n is the number of ranks,
k of pairs in one call, `op` the name of a reduce operation, `root` a rank of the group. The caller has already checked
each rank's arguments alone, and has compared `Call.signature` between the ranks, so tensors at the same index have the
same dtype and number of elements on all ranks. Where the signature does not say it, the function checks it, and raises
`UnequalError`. An output gets the elements of its value in row-major order; their shapes may differ. Outputs and inputs
may lie on different devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

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


class Share(NamedTuple):
    """One rank's part in a collective: the tensors that it writes, those that it reads, the factor of PREMUL_SUM."""

    outputs: Sequence[Tensor] = ()
    inputs: Sequence[Tensor] = ()
    factor: float | Tensor | None = None


class UnequalError(Exception):
    """Raised if the shares of two ranks do not fit together; the text gives both sizes and dtypes."""


def tensor_text(tensor: Tensor) -> str:
    """Return dtype and shape as text, such as "float32[2, 3]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def run_move(move: Callable[..., None], *args: Any, tensors: Iterable[Tensor]) -> None:
    """Call one of the functions below, hidden from autograd and from the calling thread's dispatch and function modes.

    The last rank to arrive does the work of all ranks. Which rank that is depends on timing, so the work must not
    appear in that rank's traces. `tensors` are all that it reads or writes.
    """
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        move(*args)
        settle(tensors)


def accelerators(tensors: Iterable[Tensor]) -> set[torch.device]:
    """Return the devices of those tensors that lie on an accelerator."""
    return {tensor.device for tensor in tensors if tensor.device.type not in _NO_STREAMS}


def settle(tensors: Iterable[Tensor]) -> None:
    """Wait for the calling thread's current stream on each tensor's device, so that all threads see its results."""
    for device in accelerators(tensors):
        torch.get_device_module(device.type).current_stream(device).synchronize()


def copy(output: Tensor, value: Tensor) -> None:
    """Write `value` to `output`, which may have another shape."""
    _write_checked([output], [value])


def meet_only(shares: Sequence[Share]) -> None:
    """Do nothing: a barrier only waits."""


def all_reduce(op: str, shares: Sequence[Share]) -> None:
    """Reduce the inputs at one index of all ranks into the output at that index on every rank."""
    results = [_reduced(op, shares, index) for index in range(len(shares[0].inputs))]
    _write([output for share in shares for output in share.outputs], results * len(shares))


def reduce(op: str, root: int, shares: Sequence[Share]) -> None:
    """Reduce the only input of each rank into the output of the root; the outputs of the others stay as they are."""
    _write(shares[root].outputs, [_reduced(op, shares, 0)])


def reduce_scatter(op: str, shares: Sequence[Share]) -> None:
    """Reduce the inputs at index r of all ranks, n on each, into the only output of rank r."""
    _write([share.outputs[0] for share in shares], [_reduced(op, shares, rank) for rank in range(len(shares))])


def reduce_scatter_single(op: str, shares: Sequence[Share]) -> None:
    """Reduce each of the k inputs of all ranks, cut it into n equal parts, and write part r to its output on rank r."""
    for index in range(len(shares[0].outputs)):
        results = _reduced(op, shares, index).flatten().tensor_split(len(shares))
        _write([share.outputs[index] for share in shares], results)


def broadcast(root: int, shares: Sequence[Share]) -> None:
    """Copy the root's inputs to the outputs of all other ranks."""
    others = [share.outputs for rank, share in enumerate(shares) if rank != root]
    _write([output for outputs in others for output in outputs], [*shares[root].inputs] * len(others))


def all_gather(shares: Sequence[Share]) -> None:
    """Copy the k inputs of all ranks to every rank: the first one of each rank, then the second one of each."""
    values = [value for of_index in zip(*(share.inputs for share in shares), strict=True) for value in of_index]
    for share in shares:
        _write(share.outputs, values)


def all_gather_single(shares: Sequence[Share]) -> None:
    """Copy each of the k inputs of all ranks to every rank, one after the other into one output."""
    for index in range(len(shares[0].outputs)):
        whole = torch.cat([share.inputs[index].detach().reshape(-1) for share in shares])
        _write([share.outputs[index] for share in shares], [whole] * len(shares))


def gather(root: int, shares: Sequence[Share]) -> None:
    """Copy the only input of each rank to the root, which alone has outputs."""
    _write_checked(shares[root].outputs, [share.inputs[0] for share in shares])


def scatter(root: int, shares: Sequence[Share]) -> None:
    """Copy the input at index r of the root, which alone has inputs, to the only output of rank r."""
    _write_checked([share.outputs[0] for share in shares], shares[root].inputs)


def all_to_all(shares: Sequence[Share]) -> None:
    """Copy the input at index r of rank p to the output at index p of rank r, for all ranks."""
    for rank, share in enumerate(shares):
        for peer, (sender, output) in enumerate(zip(shares, share.outputs, strict=True)):
            _check_fits(sender.inputs[rank], output, f", from rank {peer} of the group to rank {rank}")
    # An output can be an input of the same rank; keep its old value for the ranks that have not read it yet.
    kept = [
        [value.clone() if any(value is output for output in share.outputs) else value for value in share.inputs]
        for share in shares
    ]
    for rank, share in enumerate(shares):
        _write(share.outputs, [inputs[rank] for inputs in kept])


def _check_fits(value: Tensor, output: Tensor, where: str = "") -> None:
    if value.dtype is not output.dtype or value.numel() != output.numel():
        raise UnequalError(f"{tensor_text(value)} does not fit into {tensor_text(output)}{where}")


def _reduced(op: str, shares: Sequence[Share], index: int) -> Tensor:
    values = [inputs[index] if factor is None else inputs[index] * factor for _, inputs, factor in shares]
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
    # The tensors without autograd's view of them, as other backends write to their memory: no grad_fn, no new version,
    # and no refusal for one of inference mode.
    torch._foreach_copy_(
        [output.data for output in outputs],
        [
            value if value.shape == output.shape else value.reshape(output.shape)
            for output, value in zip(outputs, values, strict=True)
        ],
    )
