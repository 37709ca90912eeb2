"""The oracle against values that a reader can compute, and its own promises: nothing that is mixed up can pass."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dist_testing.conformance.axes import (
    COMPLEX,
    DTYPES,
    FLOATS,
    GROUPS,
    LAYOUTS,
    OPS,
    SHAPES,
    fits,
    is_defined,
    members,
    part_length,
    root_of,
)
from dist_testing.conformance.on_rank.oracle import FACTOR, contribution, moved, reduced

# Numbers that were computed by hand from the definition: dtype, source, part, call, and the first values.
_MOVED: list[tuple[str, int, int, int, list[Any]]] = [
    ("int64", 0, 0, 0, [-500000, -499995, -499990, -499985]),
    ("int64", 2, 3, 1, [-500000 + 74 + 33 + 17 + 5 * n for n in range(4)]),
    ("float32", 1, 0, 0, [-500000 + 37 + 5.0 * n for n in range(4)]),
    ("uint8", 1, 1, 1, [37 + 11 + 17 + 1 + 5 * n for n in range(4)]),
    ("int8", 1, 1, 1, [66 - 63, 71 - 63, 76 - 63, 81 - 63]),
    ("int8", 3, 0, 0, [112 - 63, 117 - 63, 122 - 63, 127 - 127 - 63]),
    ("int16", 0, 1, 0, [12 - 16374, 17 - 16374, 22 - 16374, 27 - 16374]),
    ("float16", 0, 1, 0, [12 - 1019.0, 17 - 1019.0, 22 - 1019.0, 27 - 1019.0]),
    ("bfloat16", 0, 1, 0, [12 - 125.0, 17 - 125.0, 22 - 125.0, 27 - 125.0]),
    ("complex64", 0, 0, 1, [complex(18 - 500001 + 5 * n, 2 * (18 - 500001 + 5 * n)) for n in range(4)]),
    ("complex128", 0, 1, 0, [complex(12 - 500001 + 5 * n, 2 * (12 - 500001 + 5 * n)) for n in range(4)]),
]


@pytest.mark.parametrize(("dtype", "source", "part", "call", "values"), _MOVED)
def test_what_a_rank_sends(dtype: str, source: int, part: int, call: int, values: list[Any]) -> None:
    """Golden values."""
    found = moved(dtype, source, part, (2, 2), call)
    assert (found.dtype, tuple(found.shape)) == (getattr(torch, dtype), (2, 2))
    assert found.flatten().tolist() == values


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_two_messages_are_alike(dtype: str) -> None:
    """Another rank, part or call has other values, so a mixed-up message cannot pass."""
    shape = (101,) if dtype == "bool" else (7,)
    every = {
        tuple(moved(dtype, source, part, shape, call).tolist())
        for source, part, call in itertools.product(range(7), range(7), range(2))
    }
    # Eight bits have chance hits between far-off ranks, but never between neighbours.
    assert len(every) >= (80 if dtype in ("uint8", "int8", "bfloat16") else 97)
    for source, part in itertools.product(range(6), range(6)):
        mine = moved(dtype, source, part, shape, 0)
        for other in ((source + 1, part, 0), (source, part + 1, 0), (source, part, 1)):
            assert not torch.equal(mine, moved(dtype, *other[:2], shape, other[2]))
        if source != part:
            assert not torch.equal(mine, moved(dtype, part, source, shape, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_a_large_tensor_differ(dtype: str) -> None:
    """A backend that copies a block to another place shows, whatever the size of the block."""
    value = moved(dtype, 1, 2, SHAPES["large"], 0)
    for block in (13, 127, 251, 256, 2039, 4096, 32749, 65536):
        assert not torch.equal(value[block:], value[:-block])
    if dtype != "bool":
        assert len(set(value.tolist())) >= 120


def test_bools_are_mixed() -> None:
    """Neither constant nor alternating: between a third and two thirds are true, in every rank, part and operation."""
    every = [moved("bool", source, part, (301,), 0) for source, part in itertools.product(range(7), range(7))]
    # Also for operations that count.
    every += [contribution(op, "bool", (0, 1), 1, 0, (301,), 0) for op in ("sum", "product", "min", "bor")]
    assert all(100 <= int(one.sum()) <= 200 for one in every)


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "avg": operator.add,
    "premul_sum": operator.add,
    "product": operator.mul,
    "min": min,
    "max": max,
    "band": operator.and_,
    "bor": operator.or_,
    "bxor": operator.xor,
}


@pytest.mark.parametrize("op", OPS)
def test_reductions_by_plain_python(op: str) -> None:
    """The reduction of all contributions, combined one after the other by Python's own operators."""
    shape = (3, 5)
    for dtype, ranks in itertools.product(DTYPES, [(0,), (1, 3), (0, 1, 2), tuple(range(7))]):
        if not is_defined(op, dtype):
            continue
        every = [contribution(op, dtype, ranks, rank, 2, shape, 1) for rank in ranks]
        found = reduced(op, dtype, ranks, 2, shape, 1)
        assert all((one.dtype, tuple(one.shape)) == (getattr(torch, dtype), shape) for one in (*every, found))
        lists = zip(*(one.flatten().tolist() for one in every), strict=True)
        expected = [functools.reduce(_COMBINE[op], values) for values in lists]
        if dtype == "bool":
            # The sum of bools is "any", their product "all".
            expected = list(map(bool, expected))
        elif op in ("avg", "premul_sum"):
            expected = [value / len(ranks) if op == "avg" else value * FACTOR for value in expected]
        assert found.flatten().tolist() == expected


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bool"])
@pytest.mark.parametrize("op", ["sum", "avg", "premul_sum"])
def test_every_contribution_counts(op: str, dtype: str) -> None:
    """A sum without one rank, with one rank twice, or with another part is another sum; and it fits into the dtype."""
    ranks = tuple(range(7))
    every = [contribution(op, dtype, ranks, rank, 0, (7,), 0) for rank in ranks]
    total = torch.stack([one.to(torch.complex128).real for one in every]).sum(0)
    assert all(bool((one != 0).all()) for one in every)
    assert total.max() <= 127
    for other in ((1, 0), (0, 1)):
        moved_on = [contribution(op, dtype, ranks, rank, other[0], (7,), other[1]) for rank in ranks]
        assert not torch.equal(torch.stack(every), torch.stack(moved_on))


def test_contributions_by_hand() -> None:
    """Golden values of each kind."""
    ranks = (0, 1, 2)
    first = (4,)
    assert contribution("sum", "int32", ranks, 1, 2, first, 1).tolist() == [
        (7 + 10 + 3 * n + 2) % 13 + 1 for n in range(4)
    ]
    assert contribution("product", "int32", ranks, 1, 1, first, 0).tolist() == [2, 1, 2, 2]
    assert contribution("max", "int32", ranks, 1, 0, first, 0).tolist() == [38 - 500001 + 5 * n for n in range(4)]
    # The last rank of an average makes the sum divisible by three.
    sums = [sum(contribution("sum", "int32", ranks, rank, 0, first, 0)[n].item() for rank in ranks) for n in range(4)]
    plain = contribution("sum", "int32", ranks, 2, 0, first, 0)
    last = contribution("avg", "int32", ranks, 2, 0, first, 0)
    assert (last - plain).tolist() == [-total % 3 for total in sums]
    assert torch.equal(
        contribution("avg", "int32", ranks, 1, 0, first, 0), contribution("sum", "int32", ranks, 1, 0, first, 0)
    )
    # After 13 elements the values go on otherwise.
    assert contribution("sum", "int32", ranks, 0, 0, (15,), 0)[13:].tolist() == [(39 + 1) % 13 + 1, (42 + 1) % 13 + 1]


def test_a_long_move_by_hand() -> None:
    """After 251 elements the values go on otherwise, so a period of the dtype shows."""
    found = moved("uint8", 0, 0, (253,), 0).tolist()
    assert found[250:] == [(5 * 250 + 1) % 251, (5 * 251 + 3 + 1) % 251, (5 * 252 + 3 + 1) % 251]


def test_shapes_without_elements_and_dimensions() -> None:
    """Shapes stay what they are."""
    for shape in ((), (0,), (1,), (0, 3)):
        assert moved("float32", 0, 0, shape, 0).shape == shape
        assert contribution("sum", "float32", (0, 1), 0, 0, shape, 0).shape == shape
        for op in ("sum", "product", "bxor"):
            assert reduced(op, "int64", (0, 1), 0, shape, 0).shape == shape
        assert reduced("product", "complex64", (0, 1), 0, shape, 0).shape == shape


def test_which_reductions_have_a_value() -> None:
    """The whole table."""
    bits = ("bool", "uint8", "int8", "int16", "int32", "int64")
    real = ("float16", "bfloat16", "float32", "float64")
    pairs = ("complex64", "complex128")
    defined = {
        "sum": (*bits, *real, *pairs),
        "product": (*bits, *real, *pairs),
        "min": (*bits, *real),
        "max": (*bits, *real),
        "band": bits,
        "bor": bits,
        "bxor": bits,
        "avg": (*bits[1:], *real, *pairs),
        "premul_sum": (*real, *pairs),
    }
    assert tuple(defined) == OPS
    assert set(DTYPES) == {*bits, *real, *pairs}
    assert (FLOATS, COMPLEX) == (real, pairs)
    for op, dtype in itertools.product(OPS, DTYPES):
        assert is_defined(op, dtype) == (dtype in defined[op]), (op, dtype)


def test_layouts_and_shapes() -> None:
    """The whole table, and sizes that leave the fast paths."""
    assert SHAPES == {"0d": (), "empty": (0,), "one": (1,), "odd": (7,), "matrix": (3, 5), "large": (70_001,)}
    assert LAYOUTS == ("contiguous", "offset", "strided", "transposed")
    fitting = {
        "contiguous": set(SHAPES),
        "offset": set(SHAPES),
        "strided": {"odd", "matrix", "large"},
        "transposed": {"matrix"},
    }
    for layout, size in itertools.product(LAYOUTS, SHAPES):
        assert fits(layout, size) == (size in fitting[layout]), (layout, size)
    assert math.prod(SHAPES["large"]) % 2


def test_uneven_parts() -> None:
    """Lengths from 0 to 4 that differ between the two directions, and between calls."""
    table = [[part_length(source, target, 0) for target in range(4)] for source in range(4)]
    assert table == [[0, 3, 1, 4], [2, 0, 3, 1], [4, 2, 0, 3], [1, 4, 2, 0]]
    assert [part_length(0, 0, call) for call in range(6)] == [0, 1, 2, 3, 4, 0]


def test_groups() -> None:
    """Every group of every world."""
    assert GROUPS == {"none": 1, "world": 1, "part": 4, "overlap": 3, "single": 2}
    for size in range(1, 8):
        assert members("none", size) == members("world", size) == members("", size) == tuple(range(size))
    assert (members("part", 4), members("part", 7)) == ((1, 3), (1, 3, 5))
    assert (members("overlap", 3), members("overlap", 5)) == ((1, 2), (1, 2, 3, 4))
    assert (members("single", 2), members("single", 5)) == ((1,), (4,))
    ranks = (1, 3, 5, 7)
    for end in ("", "_in_group"):
        assert [root_of(name + end, ranks) for name in ("first", "middle", "last")] == [1, 5, 7]
