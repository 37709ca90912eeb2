"""Finding GPUs, and choosing those that a process may use."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dist_testing.gpus import devices
from dist_testing.gpus.devices import gpus_present, visible_gpus
from dist_testing.gpus.gpu import NODES_VARIABLE, Gpu, GpuError, node_directory

_UUIDS = ("GPU-8932f937-aaaa", "GPU-8932f937-bbbb", "GPU-5c1b4a2e-cccc", "GPU-77777777-dddd")


def gpus(*uuids: str) -> tuple[Gpu, ...]:
    """GPUs with these UUIDs."""
    return tuple(Gpu(index, Path(f"/dev/nvidia{index}"), uuid) for index, uuid in enumerate(uuids))


def seen(visible: str) -> list[int]:
    """Indices of the GPUs that a value of the variable allows, out of four."""
    found = visible_gpus(gpus(*_UUIDS), {"CUDA_VISIBLE_DEVICES": visible})
    return [gpu.index for gpu in found.gpus]


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """A folder like /dev on a machine with four GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia0.old", "null"):
        (tmp_path / name).touch()
    (tmp_path / "nvidia-caps").mkdir()
    return tmp_path


def test_only_nodes_of_gpus_count(nodes: Path) -> None:
    """The driver's own nodes exist on machines without a GPU, too, and a container may get any of the numbers."""
    env = {NODES_VARIABLE: str(nodes)}
    assert [gpu.node.name for gpu in gpus_present(env)] == [f"nvidia{n}" for n in range(4)]
    (nodes / "nvidia1").rename(nodes / "nvidia10")
    # CUDA counts them from 0.
    assert [(gpu.index, gpu.minor) for gpu in gpus_present(env)] == [(0, 0), (1, 2), (2, 3), (3, 10)]
    # `DIST_TESTING_GPU_NODES= pytest` is how people unset a variable.
    assert node_directory({NODES_VARIABLE: ""}) == Path("/dev")


def test_a_machine_without_nodes_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable allows GPUs; it does not make them."""
    assert gpus_present({NODES_VARIABLE: str(tmp_path)}) == ()
    assert visible_gpus((), {"CUDA_VISIBLE_DEVICES": "0,1"}).gpus == ()
    monkeypatch.setattr(devices, "node_directory", lambda env: tmp_path / "missing")
    assert gpus_present({}) == ()


def test_a_simulated_folder_that_is_missing_or_unreadable_is_an_error(tmp_path: Path) -> None:
    """A typing error would find no GPU and skip every test."""
    file = tmp_path / "file"
    file.touch()
    for folder, why in ((tmp_path / "missing", "No such file"), (file, "Not a directory")):
        with pytest.raises(GpuError, match=why) as error:
            gpus_present({NODES_VARIABLE: str(folder)})
        assert str(folder) in str(error.value)
        assert NODES_VARIABLE in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_this_user_may_not_read_is_an_error(tmp_path: Path) -> None:
    """Users would see that no GPU was found, without a reason."""
    tmp_path.chmod(0)
    try:
        with pytest.raises(GpuError, match="Permission denied"):
            gpus_present({NODES_VARIABLE: str(tmp_path)})
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", []),
        (" ", []),
        (",", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("none", []),
        ("0", [0]),
        ("4", []),
        ("0,1,2,3,4", [0, 1, 2, 3]),
        (" 0 , 2 ", [0, 2]),
        ("3,1", [3, 1]),
        ("0,-1,1", [0]),
        ("0,,1", [0]),
        ("0,x,1", [0]),
        ("+1", []),
        ("\u0661", []),
        ("9" * 5000, []),
        ("GPU-5c1b4a2e", [2]),
        ("GPU-5", [2]),
        ("GPU-77777777-dddd,0", [3, 0]),
        ("GPU-8932f937", []),
        ("GPU-8932f937-b", [1]),
        ("gpu-5c1b4a2e", []),
        ("GPU-00000000", []),
        ("0,0", []),
        ("0,1,0", []),
        ("2,GPU-5c1b4a2e", []),
        ("MIG-GPU-8932f937/1/0", []),
        ("0,MIG-1", []),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_the_variable_allows_some_of_them_as_in_cuda(visible: str, expected: list[int]) -> None:
    """Counting more than CUDA would turn a skip into a failure, counting fewer a failure into a skip."""
    assert seen(visible) == expected


@pytest.mark.parametrize(
    ("visible", "remark"),
    [
        (None, ""),
        ("", "hides every device"),
        ("1,7", "'7' is no device here"),
        ("1,1", "names device 1 twice"),
        ("MIG-1", "MIG instance"),
        ("0,1", ""),
    ],
)
def test_the_remark_explains_why_the_variable_hides_gpus(visible: str | None, remark: str) -> None:
    """On a machine with free GPUs, a skip for a lack of GPUs needs an explanation."""
    found = visible_gpus(gpus(*_UUIDS), {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert len(found.gpus) == 4 or visible is not None, "unset allows all GPUs, empty allows none"
    assert remark in found.remark
    assert bool(remark) == bool(found.remark) == ("CUDA_VISIBLE_DEVICES" in found.way_out)


@pytest.mark.parametrize(("visible", "expected"), [(None, [0, 2, 3]), ("1", []), ("1,2", [2]), ("0", [0])])
def test_gpus_in_mig_mode_are_refused_and_keep_their_numbers(visible: str | None, expected: list[int]) -> None:
    """A test that asks for a whole GPU would get an instance, or nothing, and its report would blame the test."""
    present = tuple(replace(gpu, is_mig=gpu.index == 1) for gpu in gpus(*_UUIDS))
    found = visible_gpus(present, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.index for gpu in found.gpus] == expected
    names_it = visible != "0"
    assert ("GPU 1 (/dev/nvidia1) in MIG mode" in found.remark) == names_it
    assert ("Switch MIG mode off" in found.way_out) == names_it


def test_gpus_of_another_architecture_are_left_out_and_named() -> None:
    """A kernel that was compiled for one architecture fails on another, and the report would blame the test."""
    archs = ("sm_80", "sm_90", "", "sm_100")
    present = tuple(replace(gpu, arch=arch) for gpu, arch in zip(gpus(*_UUIDS), archs, strict=True))
    assert len(visible_gpus(present, {}).gpus) == 4
    found = visible_gpus(present, {"CUDA_VISIBLE_DEVICES": "0,1,2"}, archs=("sm_90", "sm_100"))
    assert [gpu.index for gpu in found.gpus] == [1]
    assert found.remark == ("GPU 0 is sm_80, GPU 2 is of an unknown architecture, and the target needs sm_90 or sm_100")
    assert "gpu_archs" in found.way_out
    assert visible_gpus(present, {"CUDA_VISIBLE_DEVICES": "3"}, archs=("sm_100",)).remark == ""
