"""Computes what a correct backend writes, from rank numbers alone.

A value depends on the rank that sends it, the part, the position and the number of the call. So swapped ranks, roots,
parts and calls give wrong values, and cannot cancel out. The arithmetic runs in one process, in 64-bit integers, and
every result is exact in the dtype that it is converted to. The oracle never asks the backend.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Factor of premul_sum.
FACTOR = 2
# Values of moves stay below it, so that the dtype represents each of them exactly.
_MODULUS = {"uint8": 251, "int8": 127, "int16": 32_749, "float16": 2_039, "bfloat16": 251}
_LARGE_MODULUS = 1_000_003
# Of the values of all ranks, one row each.
_REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda every: every.sum(0),
    "product": lambda every: every.prod(0),
    "min": lambda every: every.amin(0),
    "max": lambda every: every.amax(0),
    "band": lambda every: functools.reduce(torch.bitwise_and, every),
    "bor": lambda every: functools.reduce(torch.bitwise_or, every),
    "bxor": lambda every: functools.reduce(torch.bitwise_xor, every),
    # Exact: `_given` makes the sums divisible.
    "avg": lambda every: every.sum(0) // len(every),
    "premul_sum": lambda every: every.sum(0) * FACTOR,
}


def moved(dtype: str, source: int, part: int, shape: Sequence[int], call: int) -> Tensor:
    """Return the values that one rank sends in one part, such as what another rank gets.

    `source` is a global rank; `shape` is that of the part; `call` is the number of the call in its cell.
    """
    return contribution("", dtype, (), source, part, shape, call)


def contribution(
    op: str, dtype: str, ranks: Sequence[int], source: int, part: int, shape: Sequence[int], call: int
) -> Tensor:
    """Return the values that one rank of a group gives to a reduction; ranks are global. See `moved`."""
    return _typed(_given(op, dtype, ranks, source, part, math.prod(shape), call), dtype).reshape(tuple(shape))


def reduced(op: str, dtype: str, ranks: Sequence[int], part: int, shape: Sequence[int], call: int) -> Tensor:
    """Return the reduction of all ranks' contributions; see `contribution` for the arguments."""
    every = torch.stack([_given(op, dtype, ranks, rank, part, math.prod(shape), call) for rank in ranks])
    if dtype.startswith("complex") and op == "product":
        value = _typed(every, "complex128").prod(0).to(getattr(torch, dtype))
    else:
        value = _typed(_REDUCE[op](every), dtype)
    return value.reshape(tuple(shape))


def _given(op: str, dtype: str, ranks: Sequence[int], source: int, part: int, count: int, call: int) -> Tensor:
    value = _raw(op, dtype, source, part, count, call)
    if op == "avg" and source == ranks[-1]:
        total = torch.stack([_raw(op, dtype, rank, part, count, call) for rank in ranks]).sum(0)
        value = value + (-total) % len(ranks)
    return value


def _raw(kind: str, dtype: str, source: int, part: int, count: int, call: int) -> Tensor:
    position = torch.arange(count, dtype=torch.int64)
    if kind in ("sum", "avg", "premul_sum") and dtype != "bool":
        # From 1, so that a rank that is left out shows; the sum over seven ranks fits into eight bits.
        return (source * 7 + part * 5 + position * 3 + position // 13 + call * 2) % 13 + 1
    if kind == "product" and dtype != "bool":
        return 2 - ((source + part + position + call) % 3 == 0).to(torch.int64)
    if dtype == "bool":
        mixed = (source * 0x9E37 + part * 0x85EB + position * 0xC2B2 + call * 0x27D5 + 0x1656) * 0x2545F491
        # Mixed twice: a bit of the product alone repeats after 65,536 elements, or is alike for neighbours.
        return ((mixed ^ (mixed >> 15)) & 0xFFFFFFFF) * 0x2C1B3C6D >> 31 & 1
    modulus = _MODULUS.get(dtype, _LARGE_MODULUS)
    value = (source * 37 + part * 11 + position * 5 + position // 251 * 3 + call * 17 + 1) % modulus
    return value if dtype == "uint8" else value - modulus // 2


def _typed(value: Tensor, dtype: str) -> Tensor:
    if dtype.startswith("complex"):
        part = torch.float32 if dtype == "complex64" else torch.float64
        # The imaginary part is another number, so that exchanged parts show.
        return torch.complex(value.to(part), (value * 2).to(part))
    return value.to(getattr(torch, dtype))
