"""Counting GPUs by their device nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_testing.gpus.discover import gpu_count


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """A folder like /dev on a machine with four GPUs."""
    for name in (
        "nvidia0",
        "nvidia1",
        "nvidia2",
        "nvidia3",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-modeset",
        "nvidia0.old",
        "null",
    ):
        (tmp_path / name).touch()
    (tmp_path / "nvidia-caps").mkdir()
    return tmp_path


def test_only_nodes_of_gpus_count(nodes: Path) -> None:
    """The driver's own nodes exist on machines without a GPU, too."""
    assert gpu_count({}, str(nodes)) == 4


def test_gaps_in_the_numbers_do_not_matter(tmp_path: Path) -> None:
    """A container may be given the third and the eleventh GPU."""
    for name in ("nvidia2", "nvidia10"):
        (tmp_path / name).touch()
    assert gpu_count({}, str(tmp_path)) == 2


@pytest.mark.parametrize("env", [{}, {"CUDA_VISIBLE_DEVICES": "0,1"}], ids=["unset", "set"])
def test_a_machine_without_nodes_has_none(tmp_path: Path, env: dict[str, str]) -> None:
    """The variable allows GPUs; it does not make them."""
    assert gpu_count(env, str(tmp_path)) == 0
    assert gpu_count(env, str(tmp_path / "missing")) == 0


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", 0),
        (",", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("none", 0),
        ("0", 1),
        ("3", 1),
        ("4", 0),
        ("0,1,2,3", 4),
        ("0,1,2,3,4", 4),
        (" 0 , 2 ", 2),
        ("3,1", 2),
        ("0,-1,1", 1),
        ("0,9,1", 1),
        ("0,,1", 1),
        ("0,x,1", 1),
        ("GPU-8932f937", 1),
        ("GPU-8932f937,GPU-5c1b4a2e", 2),
        ("MIG-GPU-8932f937/1/0", 1),
        ("MIG-1,MIG-2,MIG-3,MIG-4,MIG-5", 4),
        ("9" * 5000, 0),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_the_variable_allows_some_of_them_as_in_cuda(nodes: Path, visible: str, expected: int) -> None:
    """Counting more than CUDA would turn a skip into a failure, counting fewer a failure into a skip."""
    assert gpu_count({"CUDA_VISIBLE_DEVICES": visible}, str(nodes)) == expected


@pytest.mark.parametrize("visible", ["0,0", "0,1,0", "GPU-8932f937,GPU-8932f937"])
def test_naming_a_device_twice_hides_all_of_them_as_in_cuda(nodes: Path, visible: str) -> None:
    """CUDA then shows no device at all; a rank would find that out only when it asks for one."""
    assert gpu_count({"CUDA_VISIBLE_DEVICES": visible}, str(nodes)) == 0
