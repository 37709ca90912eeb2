"""`assertEqual` of the unittest classes: tensors by torch's rules, everything else by unittest's."""

from __future__ import annotations

import sys
from typing import Any

import numpy
import pytest
import torch

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.unittest.comparison import TensorComparisons

_CASE = TensorComparisons()


def _is_equal(first: Any, second: Any, **rules: Any) -> bool:
    """Return whether assertEqual passes, and check that assertNotEqual says the opposite."""
    try:
        _CASE.assertEqual(first, second, **rules)
    except AssertionError:
        _CASE.assertNotEqual(first, second, **rules)
        return False
    with pytest.raises(AssertionError):
        _CASE.assertNotEqual(first, second, **rules)
    return True


_ONE = torch.tensor([1.0, 2.0])
_NAN = float("nan")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (_ONE, torch.tensor([1.0, 2.0])),
        (_ONE, torch.tensor([1.0, 2.0 + 1e-6])),
        (_ONE, [1.0, 2.0]),
        ((1, 2), _ONE),
        (torch.zeros(0), []),
        (torch.zeros(2, 1), [[0], [0]]),
        (torch.tensor(2), 2),
        (2, torch.tensor([2.0])),
        (torch.tensor([[1]]), 1),
        (torch.tensor(0.1, dtype=torch.bfloat16), 0.1),
        (torch.tensor(True), True),
        (torch.tensor([_NAN]), torch.tensor([_NAN])),
        (torch.tensor([1j]), [1j]),
        ({"a": _ONE, "b": 1}, {"b": 1, "a": _ONE.clone()}),
        ([_ONE, "text", None], (_ONE.clone(), "text", None)),
        ({"a": [{"b": _ONE}]}, {"a": [{"b": [1.0, 2.0]}]}),
        (_ONE.to_sparse(), _ONE.to_sparse()),
        (numpy.array([1.0, 2.0]), torch.tensor([1.0, 2.0], dtype=torch.float64)),
        (numpy.array([1, 2]), numpy.array([1, 2])),
        (torch.nn.Parameter(_ONE), _ONE),
        (torch.tensor(1), numpy.int64(1)),
        (numpy.float32(0.5), torch.tensor([0.5])),
    ],
)
def test_equal(first: Any, second: Any) -> None:
    """If this fails, a correct test fails."""
    assert _is_equal(first, second)
    assert _is_equal(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (_ONE, torch.tensor([1.0, 2.1])),
        (_ONE, torch.tensor([1.0, 2.0], dtype=torch.float64)),
        (_ONE, torch.tensor([[1.0, 2.0]])),
        (_ONE, 1.0),
        (_ONE, [1.0]),
        (torch.tensor(1), numpy.int64(2)),
        (torch.tensor(1), [1]),
        (torch.tensor(1), [[1]]),
        (torch.tensor([1]), [[1]]),
        (torch.tensor(1), numpy.array([1])),
        (_ONE, None),
        (_ONE, "text"),
        (_ONE, {"a": 1}),
        (torch.tensor([1, 2]), [1.5, 2]),
        (torch.tensor(2), 2.5),
        (torch.zeros(2, 2), [[0, 0], [0]]),
        ({"a": _ONE}, {"b": _ONE}),
        ([_ONE], [_ONE, _ONE]),
        ([_ONE, 1], [_ONE, 2]),
        ([_ONE], {"a": _ONE}),
        (numpy.array([1.0]), numpy.array([2.0])),
        (numpy.array(["a"]), _ONE),
    ],
)
def test_not_equal(first: Any, second: Any) -> None:
    """If this fails, a wrong test passes, because a value is rounded, cut off or broadcast."""
    assert not _is_equal(first, second)
    assert not _is_equal(second, first)


def test_keywords_mean_the_same_as_in_torch() -> None:
    """If this fails, keywords that users pass to torch's class have another meaning here."""
    near = _ONE + 0.1
    assert _is_equal(_ONE, near, atol=0.2, rtol=0)
    assert not _is_equal(_ONE, near, atol=0.01, rtol=0)
    assert _is_equal([1.0, _NAN, 1j], [1.1, _NAN, 1.1j], atol=0.2, rtol=0)
    assert _is_equal(100.0, 101.0, atol=0, rtol=0.1)
    assert not _is_equal(float("inf"), 1.0, atol=1, rtol=1)
    assert not _is_equal([1.0], [1.1, 1.1], atol=0.2, rtol=0)
    assert not _is_equal("a", "b", atol=1, rtol=1)
    assert not _is_equal([_NAN], [_NAN], atol=1, rtol=0, equal_nan=False)
    assert _is_equal(_ONE, _ONE.double(), exact_dtype=False)
    assert not _is_equal(_ONE, _ONE.to("meta"), exact_device=True)
    assert not _is_equal(_ONE.to_sparse(), _ONE, exact_layout=True)
    assert not _is_equal(torch.zeros(2, 3), torch.zeros(3, 2).t(), exact_stride=True)
    with pytest.raises(UsageError, match=r"atol = 0.1, rtol = None; expected both or neither"):
        _CASE.assertEqual(_ONE, near, atol=0.1)


def test_values_without_tensors_use_unittests_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, values without tensors lose unittest's own comparison, or pay for the import of torch."""
    monkeypatch.delitem(sys.modules, "torch")
    assert _is_equal([1], [1])
    assert not _is_equal([1], (1,))
    assert not _is_equal(1.0, 1.0 + 1e-9)
    assert not _is_equal(_NAN, float("nan"))
    assert _is_equal(1.0, 1.1, atol=0.2, rtol=0)
    with pytest.raises(AssertionError, match=r"(?s)Lists differ: \[1, 2\] != \[1, 3\].*- \[1, 2\].*: why"):
        _CASE.assertEqual([1, 2], [1, 3], "why")
    assert "torch" not in sys.modules


def test_failure_shows_the_path_and_the_message() -> None:
    """If this fails, a user sees two different tensors, but not where they are in nested dicts and lists."""
    with pytest.raises(AssertionError, match=r"(?s)^\['a'\]\[1\]: Tensor-likes are not close!.*index \(1,\).*: why$"):
        _CASE.assertEqual({"a": [1, _ONE]}, {"a": [1, torch.tensor([1.0, 3.0])]}, "why")
    with pytest.raises(AssertionError, match=r"^\[0\]: 1 != 2; why$"):
        _CASE.assertEqual([1, _ONE], [2, _ONE], lambda text: f"{text}; why")
    with pytest.raises(AssertionError, match=r"^1 != 2; why$"):
        _CASE.assertEqual(1, 2, lambda text: f"{text}; why")
    with pytest.raises(AssertionError, match=r"^tensor\(\[1., 2.\]\) == tensor\(\[1., 2.\]\) : why$"):
        _CASE.assertNotEqual(_ONE, _ONE, "why")
