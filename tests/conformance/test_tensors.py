"""Guarded tensors: every byte that a backend writes where it must not is seen, and texts say what is wrong."""

from __future__ import annotations

import math

import pytest
import torch

from dist_testing.conformance.axes import DTYPES, LAYOUTS, SHAPES, fits
from dist_testing.conformance.kit import WrongError
from dist_testing.conformance.on_rank.oracle import moved
from dist_testing.conformance.on_rank.tensors import Guarded, check_same, guarded

CPU = torch.device("cpu")
# Elements before and after a tensor in its buffer.
GUARD = 5


def made(size: str, layout: str, dtype: str = "float32") -> Guarded:
    """Return a tensor of a cell."""
    return guarded(SHAPES[size], dtype, layout, CPU)


PAIRS = [(layout, size) for layout in LAYOUTS for size in SHAPES if fits(layout, size)]


@pytest.mark.parametrize(("layout", "size"), PAIRS)
def test_the_layout_is_what_its_name_says(layout: str, size: str) -> None:
    """Shape, steps, offset, and the room before and after."""
    one = made(size, layout)
    count = math.prod(SHAPES[size])
    dense = torch.empty(SHAPES[size]).stride()
    assert one.view.shape == SHAPES[size]
    assert one.view.storage_offset() == (0 if layout == "contiguous" else GUARD)
    if layout == "transposed":
        assert one.view.stride() == (1, 3)
    elif layout == "strided":
        assert one.view.stride() == tuple(2 * step for step in dense)
    else:
        assert one.view.stride() == dense
    before = 0 if layout == "contiguous" else GUARD
    reach = max(1, count) * (2 if layout == "strided" else 1)
    assert one.buffer.numel() == before + reach + GUARD
    assert int(one.outside.sum()) == one.buffer.numel() - count
    assert one.view.untyped_storage().data_ptr() == one.buffer.untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_that_nothing_has_written(dtype: str) -> None:
    """Its bytes are no value of the oracle; bools have none to spare, so an output is the opposite of the result."""
    one = made("odd", "offset", dtype)
    expected = moved(dtype, 1, 0, SHAPES["odd"], 0)
    if dtype == "bool":
        assert bool(one.buffer.all())
        assert torch.equal(one.unlike(expected).view, expected.logical_not())
    else:
        assert set(one.buffer.view(torch.uint8).tolist()) == {0xA5}
        assert set(one.unlike(expected).buffer.view(torch.uint8).tolist()) == {0xA5}
        assert not bool((one.view == expected).any())


@pytest.mark.parametrize(("layout", "size"), PAIRS)
@pytest.mark.parametrize("dtype", ["float32", "bool", "int8", "complex128"])
def test_a_write_outside_is_seen(layout: str, size: str, dtype: str) -> None:
    """Of any single element; a write inside of an output is no write outside."""
    value = moved(dtype, 1, 0, SHAPES[size], 0)
    one = made(size, layout, dtype).fill(value)
    assert torch.equal(one.view, value)
    one.check_guards("tensor")
    one.view.copy_(moved(dtype, 2, 1, SHAPES[size], 1))
    one.check_guards("tensor")
    places = one.outside.nonzero().flatten().tolist()
    for place in {places[0], places[-1], places[len(places) // 2]}:
        kept = one.buffer[place].clone()
        one.buffer[place] = not bool(kept) if dtype == "bool" else 1
        with pytest.raises(WrongError, match=r"^tensor: 1 element\(s\) outside of the tensor were written$"):
            one.check_guards("tensor")
        one.buffer[place] = kept
    one.check_guards("tensor")


def test_a_write_of_one_byte_is_seen() -> None:
    """Also if the number stays the same for `==`, as with zeros of two signs."""
    one = made("odd", "strided").fill(torch.zeros(7))
    one.buffer[0] = 0.0
    one.fill(torch.zeros(7)).buffer[0] = -0.0
    with pytest.raises(WrongError, match="outside"):
        one.check_guards("tensor")
    one.fill(torch.zeros(7)).view[3] = -0.0
    with pytest.raises(WrongError, match="the input was changed"):
        one.check_unchanged("input")


@pytest.mark.parametrize(("layout", "size"), [(layout, size) for layout, size in PAIRS if size != "empty"])
def test_a_changed_input_is_seen(layout: str, size: str) -> None:
    """Inside and outside of the tensor."""
    one = made(size, layout, "int64").fill(moved("int64", 0, 0, SHAPES[size], 0))
    one.check_unchanged("input")
    one.buffer[-1] += 1
    with pytest.raises(WrongError, match=r"^input: the input was changed, \["):
        one.check_unchanged("input")
    one.buffer[-1] -= 1
    one.view.add_(1)
    with pytest.raises(WrongError, match=r"^input: the input was changed"):
        one.check_unchanged("input")


def test_equal_tensors_pass() -> None:
    """Whatever the layout."""
    for layout in LAYOUTS:
        value = moved("float32", 1, 2, SHAPES["matrix"], 0)
        check_same("output", made("matrix", layout).fill(value).view, value)
    check_same("output", torch.tensor(True), torch.tensor(True))
    check_same("output", torch.ones(2, requires_grad=True), torch.ones(2))


def test_what_a_wrong_result_says() -> None:
    """How many elements, the first one, and the values."""
    with pytest.raises(WrongError) as caught:
        check_same("output", torch.tensor([1, 7, 3, 8]), torch.tensor([1, 2, 3, 4]))
    assert str(caught.value) == (
        "output: 2 of 4 element(s) wrong, the first at 1: got [1, 7, 3, 8], expected [1, 2, 3, 4]"
    )
    with pytest.raises(WrongError) as caught:
        check_same("output", torch.arange(9), torch.zeros(9, dtype=torch.int64))
    assert str(caught.value) == (
        "output: 8 of 9 element(s) wrong, the first at 1: "
        "got [0, 1, 2, 3, 4, 5, 6, 7]..., expected [0, 0, 0, 0, 0, 0, 0, 0]..."
    )
    with pytest.raises(WrongError, match=r"got \[0, 0, 0, 0, 0, 0, 0, 0\], expected"):
        check_same("output", torch.zeros(8, dtype=torch.int64), torch.ones(8, dtype=torch.int64))


def test_another_shape_or_dtype_is_wrong() -> None:
    """Each alone, although the values are equal."""
    with pytest.raises(WrongError) as caught:
        check_same("output", torch.zeros(2, 1), torch.zeros(2))
    assert str(caught.value) == "output: torch.float32 of shape (2, 1); expected torch.float32 of shape (2,)"
    with pytest.raises(WrongError, match="float64 of shape"):
        check_same("output", torch.zeros(2, dtype=torch.float64), torch.zeros(2))


def test_a_bool_that_is_neither_0_nor_1_is_wrong() -> None:
    """It is true, and another program may see its byte."""
    actual = torch.tensor([1, 2, 0], dtype=torch.uint8).view(torch.bool)
    with pytest.raises(WrongError, match=r"1 of 3 element\(s\) wrong, the first at 1"):
        check_same("output", actual, torch.tensor([True, True, False]))
    with pytest.raises(WrongError, match="the first at 0"):
        check_same("output", torch.tensor([True])[::1], torch.tensor([False]))
    matrix = torch.ones(3, 2, dtype=torch.bool).t()
    check_same("output", matrix, torch.ones(2, 3, dtype=torch.bool))
