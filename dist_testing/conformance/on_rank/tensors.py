"""Makes tensors whose memory shows every byte that a backend writes outside of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dist_testing.conformance.kit import WrongError

# Elements before and after a tensor in its buffer.
_GUARD = 5
# Byte of memory that nothing has written. As a number it differs from what the oracle computes, apart from chance hits
# of 8-bit dtypes.
_UNWRITTEN = 0xA5


@dataclass(slots=True)
class Guarded:
    """A tensor in a larger buffer."""

    view: Tensor  # the tensor, for the backend
    buffer: Tensor  # the whole memory, one-dimensional
    outside: Tensor  # which elements of the buffer are not the tensor's
    untouched: Tensor = field(init=False)  # the buffer as it was before the call; `fill` and `unlike` set it

    def fill(self, value: Tensor) -> Guarded:
        """Write the tensor's elements, before the call."""
        self.view.copy_(value)
        return self._remember()

    def unlike(self, expected: Tensor) -> Guarded:
        """Make a tensor of bools differ everywhere from what the backend has to write."""
        if expected.dtype is torch.bool:
            self.view.copy_(expected.logical_not())
        return self._remember()

    def _remember(self) -> Guarded:
        self.untouched = self.buffer.clone()
        return self

    def check_guards(self, name: str) -> None:
        """Raise `WrongError` if the backend wrote outside of the tensor."""
        changed = (_bits(self.buffer) != _bits(self.untouched)).any(1) & self.outside
        if changed.any():
            places = changed.nonzero().flatten().tolist()
            raise WrongError(f"{name}: {len(places)} element(s) outside of the tensor were written")

    def check_unchanged(self, name: str) -> None:
        """Raise `WrongError` if the backend wrote anything at all."""
        if not torch.equal(_bits(self.buffer), _bits(self.untouched)):
            raise WrongError(f"{name}: the input was changed, {_shown(self.view)}")


def guarded(shape: Sequence[int], dtype: str, layout: str, device: torch.device) -> Guarded:
    """Make a tensor that nothing has written.

    The layout is "contiguous", "offset" (a slice of a larger tensor), "strided" (every second element), or "transposed"
    (two dimensions, the first one dense).
    """
    steps = torch.empty(tuple(shape), device="meta").stride()
    reach = max(1, math.prod(shape))
    start = 0 if layout == "contiguous" else _GUARD
    if layout == "strided":
        steps = tuple(2 * step for step in steps)
        reach *= 2
    elif layout == "transposed":
        rows, _ = shape
        steps = (1, rows)
    kind: torch.dtype = getattr(torch, dtype)
    buffer = torch.empty(start + reach + _GUARD, dtype=kind, device=device)
    if kind is torch.bool:
        buffer.fill_(True)
    else:
        buffer.view(torch.uint8).fill_(_UNWRITTEN)
    outside = torch.ones(buffer.numel(), dtype=torch.bool, device=device)
    if math.prod(shape):
        outside.as_strided(tuple(shape), steps, start).fill_(False)
    return Guarded(buffer.as_strided(tuple(shape), steps, start), buffer, outside)


def check_same(name: str, actual: Tensor, expected: Tensor) -> None:
    """Raise `WrongError` if a tensor differs from the oracle's in a bit."""
    actual = actual.detach().cpu()
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise WrongError(
            f"{name}: {actual.dtype} of shape {tuple(actual.shape)}; "
            f"expected {expected.dtype} of shape {tuple(expected.shape)}"
        )
    if actual.dtype is torch.bool:
        # A bool whose byte is neither 0 nor 1 is true, and is no right value.
        actual, expected = (bools.contiguous().view(torch.uint8) for bools in (actual, expected))
    if torch.equal(actual, expected):
        return
    differs = (actual != expected).flatten()
    first = int(differs.nonzero()[0])
    raise WrongError(
        f"{name}: {int(differs.sum())} of {differs.numel()} element(s) wrong, the first at {first}: "
        f"got {_shown(actual)}, expected {_shown(expected)}"
    )


def _bits(buffer: Tensor) -> Tensor:
    return buffer.view(torch.uint8).reshape(buffer.numel(), buffer.element_size())


def _shown(tensor: Tensor) -> str:
    values = tensor.detach().cpu().flatten()[:8].tolist()
    return f"{values}{'...' if tensor.numel() > len(values) else ''}"
