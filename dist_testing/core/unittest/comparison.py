"""`assertEqual` for tensors, and for containers that hold some."""

from __future__ import annotations

import math
import sys
import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.util import safe_repr

from dist_testing.core.ground.errors import UsageError

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# A text, as everywhere in unittest; or, as in torch's classes, a function from the failure's text to another text.
_Message = str | Callable[[str], str] | None


class TensorComparisons(unittest.TestCase):
    """A base class whose `assertEqual` and `assertNotEqual` compare tensors; other values are compared by unittest.

    `torch.testing.assert_close` compares tensors, also inside lists, tuples and dicts, and with numbers, sequences of
    numbers and numpy arrays. The class does not import torch: a test with tensors has imported it.
    """

    def assertEqual(
        self,
        first: Any,
        second: Any,
        msg: _Message = None,
        *,
        atol: float | None = None,
        rtol: float | None = None,
        equal_nan: bool = True,
        exact_dtype: bool = True,
        exact_device: bool = False,
        exact_layout: bool = False,
        exact_stride: bool = False,
    ) -> None:
        """Fail if the two values are not equal.

        Args:
            first: Any value.
            second: Any value.
            msg: Text that is added to the failure's text; or a function from that text to another one.
            atol: Absolute tolerance. Numbers and tensors may differ by `atol + rtol * abs(second)`. Default: numbers
                must be equal, and tensors as close as `assert_close` requires for their dtype.
            rtol: Relative tolerance; see `atol`.
            equal_nan: Whether NaN equals NaN, for tensors and where tolerances are given.
            exact_dtype: Whether both tensors must have the same dtype.
            exact_device: Whether both must be on the same device.
            exact_layout: Whether both must have the same layout.
            exact_stride: Whether both must have the same strides.

        Raises:
            AssertionError: If they are not equal.
            UsageError: If only one of the tolerances is given.
        """
        if (atol is None) != (rtol is None):
            raise UsageError(
                f"assertEqual: atol = {atol!r}, rtol = {rtol!r}; expected both or neither.\n"
                "The allowed difference is atol + rtol * abs(second).\n"
                "Give both; one of them may be 0."
            )
        rules = {
            "atol": atol,
            "rtol": rtol,
            "equal_nan": equal_nan,
            "check_dtype": exact_dtype,
            "check_device": exact_device,
            "check_layout": exact_layout,
            "check_stride": exact_stride,
        }
        try:
            if atol is None and not _holds_tensor(first) and not _holds_tensor(second):
                super().assertEqual(first, second)
            elif difference := _difference(first, second, rules, ""):
                raise self.failureException(difference)
        except self.failureException as error:
            raise self.failureException(_text(self, msg, str(error))) from None

    def assertNotEqual(self, first: Any, second: Any, msg: _Message = None, **rules: Any) -> None:
        """Fail if the two values are equal; the arguments are those of `assertEqual`.

        Raises:
            AssertionError: If they are equal.
        """
        if not rules and not _holds_tensor(first) and not _holds_tensor(second):
            super().assertNotEqual(first, second, None if callable(msg) else msg)
            return
        try:
            self.assertEqual(first, second, **rules)
        except self.failureException:
            return
        raise self.failureException(_text(self, msg, f"{safe_repr(first)} == {safe_repr(second)}"))


def _text(case: unittest.TestCase, msg: _Message, text: str) -> str:
    return msg(text) if callable(msg) else case._formatMessage(msg, text)


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    is_array = numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc"
    return is_array and "torch" in sys.modules


def _is_tensor_like(value: object) -> bool:
    return _is_tensor(value) or _is_array(value)


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _is_number(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return isinstance(value, int | float | complex) or (numpy is not None and isinstance(value, numpy.number))


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping | list | tuple):
        return any(map(_holds_tensor, value.values() if isinstance(value, Mapping) else value))
    return _is_tensor_like(value)


def _difference(first: Any, second: Any, rules: Mapping[str, Any], place: str) -> str:
    """Return the first difference with its place; "" if there is none."""
    if _is_tensor_like(first) or _is_tensor_like(second):
        text = _tensor_difference(first, second, rules)
    elif isinstance(first, Mapping) and isinstance(second, Mapping):
        if first.keys() == second.keys():
            parts = (_difference(first[key], second[key], rules, f"{place}[{key!r}]") for key in first)
            return next(filter(None, parts), "")
        text = f"the keys differ: {list(first)} != {list(second)}"
    elif _is_sequence(first) and _is_sequence(second):
        if len(first) == len(second):
            parts = (_difference(first[i], second[i], rules, f"{place}[{i}]") for i in range(len(first)))
            return next(filter(None, parts), "")
        text = f"the lengths differ: {len(first)} != {len(second)}"
    elif _is_number(first) and _is_number(second) and rules["atol"] is not None:
        text = "" if _are_close(first, second, rules) else f"{first!r} and {second!r} are not close"
    else:
        text = "" if first == second else f"{first!r} != {second!r}"
    return f"{place}: {text}" if text and place else text


def _are_close(first: Any, second: Any, rules: Mapping[str, Any]) -> bool:
    if first == second:
        return True
    if first != first and second != second:
        return bool(rules["equal_nan"])
    difference = abs(first - second)
    return math.isfinite(difference) and bool(difference <= rules["atol"] + rules["rtol"] * abs(second))


def _tensor_difference(first: Any, second: Any, rules: Mapping[str, Any]) -> str:
    torch: Any = sys.modules["torch"]
    # A number has no dtype and no device.
    is_like_for_like = _is_tensor_like(first) and _is_tensor_like(second)
    device = next((value.device for value in (first, second) if _is_tensor(value)), None)
    try:
        one, other = _as_tensor(first, device), _as_tensor(second, device)
    except (TypeError, ValueError, RuntimeError):
        return f"{type(first).__name__} and {type(second).__name__} cannot be compared: {first!r}, {second!r}"
    # A number has no shape, but a sequence has: as in torch's own test classes, 1 equals tensor([1]), and [1] does not
    # equal tensor(1).
    if (_is_number(first) or _is_number(second)) and one.numel() == other.numel() == 1:
        one, other = one.reshape(()), other.reshape(())
    try:
        torch.testing.assert_close(one, other, **{**rules, "check_dtype": rules["check_dtype"] and is_like_for_like})
    except AssertionError as error:
        return str(error)
    return ""


def _as_tensor(value: Any, device: Any) -> Any:
    torch: Any = sys.modules["torch"]
    if _is_tensor(value):
        return value
    if _is_array(value):
        return torch.as_tensor(value, device=device)
    if not _is_number(value) and not _is_sequence(value):
        raise TypeError
    tensor = torch.tensor(value, device=device)
    # A Python float has the digits of float64.
    return torch.tensor(value, device=device, dtype=torch.float64) if tensor.is_floating_point() else tensor
