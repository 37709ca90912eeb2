"""Values that travel from ranks to the caller of `dist_testing.run`, and values that cannot."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from dist_testing.core.ground.errors import UsageError
from dist_testing.functions.function_rank import read_value, value_file, write_value


class _Own:
    pass


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2.5,
        1j,
        "text",
        b"bytes",
        [1, (2, {"three": {4}})],
        {"a": None, 3: [()], (1, "x"): 2.0},
        OrderedDict(a=1),
        torch.float16,
        torch.Size([2, 3]),
    ],
)
def test_data_comes_back_equal(value: object, tmp_path: Path) -> None:
    """If this fails, a caller gets another value than the rank has returned."""
    write_value(value, "train", str(tmp_path), 1)
    found = read_value(tmp_path, 1)
    assert found == value
    assert type(found) is type(value)


def test_tensors_come_back(tmp_path: Path) -> None:
    """If this fails, a caller cannot compare the tensors of its ranks."""
    value: dict[str, Any] = {
        "weights": torch.nn.Linear(2, 3).state_dict(),
        "loss": torch.tensor(0.5, dtype=torch.bfloat16),
    }
    write_value(value, "train", str(tmp_path), 0)
    found = read_value(tmp_path, 0)
    assert found["loss"].dtype is torch.bfloat16
    assert torch.equal(found["weights"]["weight"], value["weights"]["weight"])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (_Own(), ["rank 2 has returned a value of type", "_Own, which cannot travel to the caller."]),
        ({"model": [1, _Own()]}, ["a value with ['model'][1] of type", "_Own"]),
        ((0, threading.Lock()), ["a value with [1] of type _thread.lock", "cannot pickle"]),
        (numpy.ones(2), ["of type numpy.ndarray", "Return torch.from_numpy(array)"]),
        ({"mean": numpy.float64(2)}, ["['mean'] of type numpy.float64", "value.item()"]),
        (torch.nn.Linear(1, 1), ["torch.nn.modules.linear.Linear", "Return value.state_dict()"]),
        (lambda: 1, ["of type function"]),
    ],
)
def test_what_cannot_travel_is_named(value: Any, said: list[str], tmp_path: Path) -> None:
    """If this fails, the error of `run` does not say which rank and which part of its value is wrong."""
    with pytest.raises(UsageError) as caught:
        write_value(value, "train", str(tmp_path), 2)
    text = str(caught.value)
    assert len(text.splitlines()) == 3
    for part in ["run(train)", *said]:
        assert part in text
    assert not value_file(tmp_path, 2).exists()


def test_the_caller_runs_no_code_of_a_rank(tmp_path: Path) -> None:
    """If this fails, a rank that writes a pickle in the place of a value runs code in its caller."""
    torch.save(_Own(), value_file(tmp_path, 0))
    with pytest.raises(Exception, match="Weights only load failed"):
        read_value(tmp_path, 0)
