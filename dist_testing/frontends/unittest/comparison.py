"""`assertEqual` for tensors, and for containers that hold some."""

from __future__ import annotations

import math
import sys
import unittest
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.util import safe_repr

from dist_testing.errors import UsageError

__all__ = ["TensorComparisons"]

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# rtol and atol of `torch.testing.assert_close` by dtype, as it documents them. Where it has others than 0 for a dtype
# that is not named, it is asked.
_TOLERANCES = {
    "torch.float16": (1e-3, 1e-5),
    "torch.bfloat16": (1.6e-2, 1e-5),
    "torch.float32": (1.3e-6, 1e-5),
    "torch.float64": (1e-7, 1e-7),
    "torch.complex64": (1.3e-6, 1e-5),
    "torch.complex128": (1e-7, 1e-7),
}

# Either a text, as everywhere in unittest, or what makes one out of the text of the failure, as in torch's classes.
_Message = str | Callable[[str], str] | None


@dataclass(frozen=True, slots=True)
class _Rules:
    """How tensors and numbers are compared; see `TensorComparisons.assertEqual`."""

    atol: float | None
    rtol: float | None
    equal_nan: bool
    exact_dtype: bool
    exact_device: bool
    exact_layout: bool
    exact_stride: bool


class TensorComparisons(unittest.TestCase):
    """`assertEqual` and `assertNotEqual` that know tensors. For everything else they are unittest's own.

    Tensors are compared by `torch.testing.assert_close`; they may stand in lists, tuples and dicts, and opposite to
    numbers, sequences of numbers, and numpy arrays. torch is not imported: where there are tensors, it is there.
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
        """Fail if the two are not equal.

        Args:
            first: Anything.
            second: Anything.
            msg: Is added to the text of the failure; a function is given that text, and returns another.
            atol: With `rtol`: numbers and tensors may differ by `atol + rtol * abs(second)`. Default: numbers must be
                equal, tensors as close as torch asks of their dtype.
            rtol: See there.
            equal_nan: Whether NaN equals NaN, where tensors or tolerances are involved.
            exact_dtype: Whether tensors must have one dtype.
            exact_device: Whether they must be on one device.
            exact_layout: Whether they must have one layout.
            exact_stride: Whether they must have the same strides.

        Raises:
            UsageError: If only one of the tolerances is given.
        """
        if (atol is None) != (rtol is None):
            raise UsageError(
                f"assertEqual: atol = {atol!r}, rtol = {rtol!r}; expected both or neither.\n"
                "The allowed difference is atol + rtol * abs(second).\n"
                "Give both; one of them may be 0."
            )
        rules = _Rules(atol, rtol, equal_nan, exact_dtype, exact_device, exact_layout, exact_stride)
        try:
            if atol is None and not _holds_tensor(first) and not _holds_tensor(second):
                super().assertEqual(first, second)
            elif difference := _difference(first, second, rules, ""):
                raise self.failureException(difference)
        except self.failureException as error:
            text = str(error)
            raise self.failureException(msg(text) if callable(msg) else self._formatMessage(msg, text)) from None

    def assertNotEqual(self, first: Any, second: Any, msg: _Message = None, **rules: Any) -> None:
        """Fail if the two are equal.

        Args:
            first: Anything.
            second: Anything.
            msg: As for `assertEqual`.
            **rules: Those of `assertEqual`.
        """
        if not rules and not _holds_tensor(first) and not _holds_tensor(second):
            super().assertNotEqual(first, second, None if callable(msg) else msg)
            return
        try:
            self.assertEqual(first, second, **rules)
        except self.failureException:
            return
        text = f"{safe_repr(first)} == {safe_repr(second)}"
        raise self.failureException(msg(text) if callable(msg) else self._formatMessage(msg, text))


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc"


def _is_tensor_like(value: object) -> bool:
    return _is_tensor(value) or ("torch" in sys.modules and _is_array(value))


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | complex)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tensor(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_tensor(item) for item in value)
    return _is_tensor_like(value)


def _difference(first: Any, second: Any, rules: _Rules, place: str) -> str:
    """What is different, and where; "" if nothing is."""
    if _is_tensor_like(first) or _is_tensor_like(second):
        text = _tensor_difference(first, second, rules)
    elif isinstance(first, Mapping) and isinstance(second, Mapping):
        if first.keys() == second.keys():
            pairs = ((first[key], second[key], f"{place}[{key!r}]") for key in first)
            return next((text for pair in pairs if (text := _difference(pair[0], pair[1], rules, pair[2]))), "")
        text = f"the keys differ: {list(first)} != {list(second)}"
    elif _is_sequence(first) and _is_sequence(second):
        if len(first) == len(second):
            triples = ((one, other, f"{place}[{i}]") for i, (one, other) in enumerate(zip(first, second, strict=True)))
            return next((text for item in triples if (text := _difference(item[0], item[1], rules, item[2]))), "")
        text = f"the lengths differ: {len(first)} != {len(second)}"
    elif _is_number(first) and _is_number(second) and rules.atol is not None and rules.rtol is not None:
        text = "" if _are_close(first, second, rules) else f"{first!r} and {second!r} are not close"
    else:
        text = "" if first == second else f"{first!r} != {second!r}"
    return f"{place}: {text}" if text and place else text


def _are_close(first: Any, second: Any, rules: _Rules) -> bool:
    if first == second:
        return True
    if first != first and second != second:
        return rules.equal_nan
    difference = abs(first - second)
    assert rules.atol is not None
    assert rules.rtol is not None
    return math.isfinite(difference) and bool(difference <= rules.atol + rules.rtol * abs(second))


def _tensor_difference(first: Any, second: Any, rules: _Rules) -> str:
    torch: Any = sys.modules["torch"]
    # A number has neither a dtype nor a device of its own.
    is_like_for_like = _is_tensor_like(first) and _is_tensor_like(second)
    device = next((value.device for value in (first, second) if _is_tensor(value)), None)
    try:
        one, other = _as_tensor(first, device), _as_tensor(second, device)
    except (TypeError, ValueError, RuntimeError):
        return f"{type(first).__name__} and {type(second).__name__} cannot be compared: {first!r}, {second!r}"
    if not is_like_for_like and one.numel() == other.numel() == 1 and 0 in (one.dim(), other.dim()):
        one, other = one.reshape(()), other.reshape(())
    check_dtype = rules.exact_dtype and is_like_for_like
    if _are_plainly_close(one, other, rules, check_dtype):
        return ""
    try:
        torch.testing.assert_close(
            one,
            other,
            atol=rules.atol,
            rtol=rules.rtol,
            equal_nan=rules.equal_nan,
            check_dtype=check_dtype,
            check_device=rules.exact_device,
            check_layout=rules.exact_layout,
            check_stride=rules.exact_stride,
        )
    except AssertionError as error:
        return str(error)
    return ""


def _are_plainly_close(one: Any, other: Any, rules: _Rules, check_dtype: bool) -> bool:
    """Whether two ordinary tensors are close; False also where only `assert_close` can tell.

    At its first call that imports torch's distributed tensors, which takes every fresh rank most of a second.
    """
    torch: Any = sys.modules["torch"]
    if not _is_ordinary(one) or not _is_ordinary(other) or one.shape != other.shape or one.device != other.device:
        return False
    if (check_dtype and one.dtype != other.dtype) or (rules.exact_stride and one.stride() != other.stride()):
        return False
    rtol, atol = rules.rtol, rules.atol
    if rtol is None or atol is None:
        rtol, atol = map(max, zip(*(_TOLERANCES.get(str(t.dtype), (0.0, 0.0)) for t in (one, other)), strict=True))
    dtype = torch.promote_types(one.dtype, other.dtype)
    try:
        close = torch.isclose(one.to(dtype), other.to(dtype), rtol=rtol, atol=atol, equal_nan=rules.equal_nan)
    except RuntimeError:
        # Not for all dtypes.
        return False
    return bool(close.all())


def _is_ordinary(value: Any) -> bool:
    torch: Any = sys.modules["torch"]
    is_plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    return is_plain and not value.is_quantized and not value.is_meta


def _as_tensor(value: Any, device: Any) -> Any:
    torch: Any = sys.modules["torch"]
    if _is_tensor(value):
        return value
    if _is_array(value):
        return torch.as_tensor(value, device=device)
    if not _is_number(value) and not _is_sequence(value):
        raise TypeError
    tensor = torch.tensor(value, device=device)
    # With all the digits that it has.
    return torch.tensor(value, device=device, dtype=torch.float64) if tensor.is_floating_point() else tensor
