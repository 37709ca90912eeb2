"""Numbers that must hold: their files, their limits, and how states of two runs are compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import Spec
from dist_testing.numbers.desk import SCHEMA_FILE, Base, Kind, from_options, read_bases, replace_bases
from dist_testing.numbers.number import BETTER, Number
from dist_testing.numbers.parity import _compare, _leaves
from dist_testing.numbers.recorder import hardware_of
from tests.support.results import refusal

_SPEC = Spec("", default_backend(), (2,), "fork")
_BASE: dict[str, Any] = {
    "case": "t.test_x",
    "name": "busbw",
    "backend": "gloo",
    "world_size": 2,
    "hardware": "CPU",
    "value": 10.0,
    "unit": "GB/s",
    "better": "higher",
}


def _file(folder: Path, *numbers: dict[str, Any], schema: object = 1) -> Path:
    path = folder / "numbers.json"
    path.write_text(json.dumps({"schema": schema, "numbers": numbers}))
    return path


@pytest.mark.parametrize(
    ("numbers", "schema", "said"),
    [
        ([{**_BASE, "unti": "s"}], 1, "unknown field ['unti']"),
        ([{**_BASE, "value": math.nan}], 1, "expected a finite number"),
        ([{**_BASE, "better": "faster"}], 1, "better = 'faster'; expected one of 'higher', 'lower', 'same'"),
        ([{"case": "t"}], 1, "missing fields"),
        ([], 2, "its schema is 2; this version of dist_testing reads 1"),
        ([_BASE, {**_BASE, "value": 11.0}], 1, "'busbw' of t.test_x on 'CPU' is there twice"),
    ],
)
def test_a_wrong_file_is_refused_before_a_test_runs(
    tmp_path: Path, numbers: list[dict[str, Any]], schema: int, said: str
) -> None:
    """If this fails, a typing error in the file makes a number hold that is compared with nothing."""
    path = _file(tmp_path, *numbers, schema=schema)
    first = refusal(lambda: from_options(_SPEC, {"--dist-numbers": str(path)})).splitlines()[0]
    assert first.startswith(f"--dist-numbers={path}: ")
    assert said in first


def test_a_missing_file_is_an_error_unless_the_run_writes_it(tmp_path: Path) -> None:
    """If this fails, a wrong path compares nothing, or the first file can never be made."""
    path = str(tmp_path / "numbers.json")
    with pytest.raises(UsageError, match="it is no file of numbers"):
        from_options(_SPEC, {"--dist-numbers": path})
    assert from_options(_SPEC, {"--dist-numbers-update": path}).known == {}
    with pytest.raises(UsageError, match="no file can be written in"):
        from_options(_SPEC, {"--dist-numbers-update": str(tmp_path / "none" / "numbers.json")})
    # As a runfile of Bazel. The end of each case would be too late: it would fail for its infrastructure.
    (tmp_path / "link.json").symlink_to(tmp_path / "none" / "numbers.json")
    with pytest.raises(UsageError, match=r"link.json: no file can be written in \S+/none"):
        from_options(_SPEC, {"--dist-numbers-update": str(tmp_path / "link.json")})
    with pytest.raises(UsageError, match=r"either compares its numbers with those of a file, or writes them"):
        from_options(_SPEC, {"--dist-numbers": path, "--dist-numbers-update": path})


def test_an_update_keeps_the_numbers_of_others(tmp_path: Path) -> None:
    """If this fails, a run of one test on one machine loses the numbers of all others."""
    other_machine = {**_BASE, "hardware": "H100"}
    other_case = {**_BASE, "case": "t.test_y"}
    other_size = {**_BASE, "world_size": 4}
    gone = {**_BASE, "name": "gone"}
    path = _file(tmp_path, gone, _BASE, other_machine, other_case, other_size)
    replace_bases(path, Kind("t.test_x", "gloo", 2), {"CPU"}, [Base(**{**_BASE, "value": 12.0})])
    kept = list(read_bases(path, "--dist-numbers").values())
    expected = [other_machine, other_case, other_size, {**_BASE, "value": 12.0}]
    assert sorted(kept, key=str) == sorted((Base(**base) for base in expected), key=str)
    # A case that records nothing any more has no base on any machine: it would fail everywhere.
    replace_bases(path, Kind("t.test_x", "gloo", 2), (), [])
    left = sorted(read_bases(path, "--dist-numbers").values(), key=str)
    assert left == sorted((Base(**other_case), Base(**other_size)), key=str)
    assert [entry.name for entry in tmp_path.iterdir()] == ["numbers.json"]


def test_the_schema_describes_the_file() -> None:
    """If this fails, an editor that checks the file by its schema marks what the library writes."""
    item = json.loads(SCHEMA_FILE.read_text())["properties"]["numbers"]["items"]
    assert set(item["required"]) == set(item["properties"]) == set(_BASE)
    assert item["properties"]["better"]["enum"] == list(BETTER)
    # Numbers of two kinds of machines have no base in common.
    assert hardware_of(torch.device("cpu"))


@pytest.mark.parametrize(
    "wrong",
    [{"value": math.nan}, {"value": math.inf}, {"name": ""}, {"name": "a\nb"}, {"unit": "x" * 31}, {"within": -1}],
)
def test_a_number_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    """If this fails, NaN is never worse than a base, or a name breaks the file of results."""
    good: dict[str, Any] = {"name": "a", "value": 1, "unit": "", "better": "same", "within": 0.1, "hardware": "CPU"}
    assert Number(**good)
    with pytest.raises(ValueError, match="expected"):
        Number(**{**good, **wrong})


def _steps(*states: object) -> list[dict[str, Any]]:
    return [dict(_leaves("", state)) for state in states]


_GOOD = {"loss": 1.0, "model": [torch.tensor([1.0, 2.0]), {"bias": torch.tensor(3)}]}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {**_GOOD, "loss": 1.5},
            "['loss'] differs: 1.5 on all ranks and 1.0 on one rank alone; largest difference 0.5",
        ),
        (
            {**_GOOD, "model": [torch.tensor([1.0, math.nan]), {"bias": torch.tensor(3)}]},
            "['model'][0] differs: nan on all ranks and 2.0 on one rank alone at [1]; largest difference inf, 1 of 2",
        ),
        (
            {**_GOOD, "model": [torch.tensor([1.0, 2.0]), {"bias": torch.tensor(4)}]},
            "['model'][1]['bias'] differs: 4 on all ranks and 3 on one rank alone; largest difference 1, 1 of 1",
        ),
        (
            {**_GOOD, "model": [torch.tensor([1.0]), {"bias": torch.tensor(3)}]},
            "['model'][0] is torch.float32 of shape [1] on all ranks, torch.float32 of shape [2] on one rank alone",
        ),
        ({"loss": 1.0}, "only in one of the runs: ['model'][0], ['model'][1]['bias']"),
    ],
)
def test_the_first_difference_of_two_runs(changed: object, said: str) -> None:
    """If this fails, the report names another tensor than the one that is wrong, or a difference passes."""
    expected = _steps(_GOOD, _GOOD, _GOOD)
    assert _compare(_steps(_GOOD, _GOOD, _GOOD), expected, 1e-5, 1e-8) is None
    found = _compare(_steps(_GOOD, changed, changed), expected, 1e-5, 1e-8)
    assert found is not None
    assert found[0] == 1
    assert said in found[1]
    assert _compare(_steps(_GOOD), expected, 1e-5, 1e-8) == (1, "1 steps on all ranks, 3 on one rank alone")


def test_tolerances_and_large_integers() -> None:
    """If this fails, a tolerance does not hold, or two integers that floats cannot tell apart are equal."""
    one, other = torch.tensor([1.0]), torch.tensor([1.01])
    assert _compare(_steps(other), _steps(one), 0.02, 0.0) is None
    assert _compare(_steps(other), _steps(one), 0.0, 0.02) is None
    assert _compare(_steps(other), _steps(one), 0.001, 0.001) is not None
    for large in (2**24, 2**62):
        assert _compare(_steps(torch.tensor(large + 1)), _steps(torch.tensor(large)), 0.0, 0.0) is not None
    assert _compare(_steps(True), _steps(False), 0.0, 0.0) is not None
    assert _compare(_steps(torch.tensor(1j)), _steps(torch.tensor(2j)), 0.0, 0.5) is not None


class _Other(torch.Tensor):
    """As a DTensor: no tensor that another rank can load."""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("x", "of type str"),
        (torch.eye(2).to_sparse(), "a Tensor of layout torch.sparse_coo on device cpu"),
        (torch.empty(2, device="meta"), "a Tensor of layout torch.strided on device meta"),
        (torch.ones(2).as_subclass(_Other), "a _Other of layout torch.strided on device cpu"),
    ],
)
def test_what_cannot_be_compared_is_refused(value: object, said: str) -> None:
    """If this fails, a text is compared with nothing, or torch's own error blames the rank that loads the states."""
    assert refusal(lambda: _steps({"name": value})).startswith(f"world.parity: ['name'] is {said}.\n")


def test_a_step_is_a_copy() -> None:
    """If this fails, every step has the weights of the last one."""
    weight = torch.zeros(2)
    (step,) = _steps({"weight": weight})
    weight.add_(1)
    assert step["['weight']"].tolist() == [0.0, 0.0]
