"""Computes what a correct backend writes, from rank numbers alone.

A value depends on the rank that sends it, the part, the position and the number of the call. So swapped ranks, roots,
parts and calls give wrong values, and cannot cancel out. The arithmetic runs in one process, in 64-bit integers, and
every result is exact in the dtype that it is converted to. The oracle never asks the backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# The kind of values for operations that only move data.
MOVE = "move"
# Factor of premul_sum.
FACTOR = 2
# Values of moves stay below it, so that the dtype represents each of them exactly.
_MODULUS = {
    "uint8": 251,
    "int8": 127,
    "int16": 32_749,
    "float16": 2_039,
    "bfloat16": 251,
}
_LARGE_MODULUS = 1_000_003


def moved(dtype: str, source: int, part: int, shape: Sequence[int], call: int) -> Tensor:
    """Return the values that one rank sends in one part.

    Args:
        dtype: Name of the dtype.
        source: Global rank that sends.
        part: Number of the part, such as the rank that gets it.
        shape: Shape of the part.
        call: Number of the call in its cell.
    """
    return _typed(_raw(MOVE, dtype, source, part, math.prod(shape), call), dtype).reshape(tuple(shape))


def contribution(
    op: str, dtype: str, ranks: Sequence[int], source: int, part: int, shape: Sequence[int], call: int
) -> Tensor:
    """Return the values that one rank gives to a reduction.

    Args:
        op: The reduce operation.
        dtype: Name of the dtype.
        ranks: Global ranks of the group.
        source: Global rank that gives them.
        part: Number of the part; 0 if there is one.
        shape: Shape of the part.
        call: Number of the call in its cell.
    """
    return _typed(_given(op, dtype, ranks, source, part, math.prod(shape), call), dtype).reshape(tuple(shape))


def reduced(op: str, dtype: str, ranks: Sequence[int], part: int, shape: Sequence[int], call: int) -> Tensor:
    """Return the reduction of all ranks' contributions; see `contribution` for the arguments."""
    count = math.prod(shape)
    every = torch.stack([_given(op, dtype, ranks, rank, part, count, call) for rank in ranks])
    if dtype.startswith("complex") and op == "product":
        return torch.stack([_typed(given, "complex128") for given in every]).prod(0).to(_dtype(dtype)).reshape(shape)
    match op:
        case "sum":
            value = every.sum(0)
        case "premul_sum":
            value = every.sum(0) * FACTOR
        case "avg":
            # Exact: `_given` makes the sums divisible.
            value = every.sum(0) // len(ranks)
        case "product":
            value = every.prod(0)
        case "min":
            value = every.min(0).values
        case "max":
            value = every.max(0).values
        case _:
            combine = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[op]
            value = every[0]
            for other in every[1:]:
                value = combine(value, other)
    return _typed(value, dtype).reshape(tuple(shape))


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
    return value.to(_dtype(dtype))


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found
