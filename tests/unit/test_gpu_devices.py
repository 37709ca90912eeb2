"""Finding the GPUs of each vendor, choosing those that a process may use, and the variables that ranks get."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dist_testing.gpus import devices
from dist_testing.gpus.devices import AMD, NVIDIA, VENDORS, Vendor, gpus_present, visible_gpus
from dist_testing.gpus.gpu import NODES_VARIABLE, Gpu, GpuError, node_directory
from dist_testing.gpus.lease import Lease
from dist_testing.gpus.world_gpus import WorldGpus
from tests.support.gpu_nodes import make_render_node

_UUIDS = ("GPU-8932f937-aaaa", "GPU-8932f937-bbbb", "GPU-5c1b4a2e-cccc", "GPU-77777777-dddd")


def gpus(*uuids: str) -> tuple[Gpu, ...]:
    """GPUs with these UUIDs."""
    return tuple(Gpu(index, Path(f"/dev/nvidia{index}"), uuid) for index, uuid in enumerate(uuids))


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


def test_a_simulated_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A typing error would find no GPU and skip every test, without a reason."""
    file, closed = tmp_path / "file", tmp_path / "closed"
    file.touch()
    closed.mkdir(mode=0)
    folders = {tmp_path / "missing": "No such file", file: "Not a directory", closed: "Permission denied"}
    if os.geteuid() == 0:
        # root may read every folder.
        del folders[closed]
    for folder, why in folders.items():
        with pytest.raises(GpuError, match=why) as error:
            gpus_present({NODES_VARIABLE: str(folder)})
        assert str(folder) in str(error.value)
        assert NODES_VARIABLE in str(error.value)


_REMARKS = {
    "": "hides every device",
    "4": "'4' is no device here",
    "0,x,1": "'x' is no device here",
    "0,0": "names device 0 twice",
    "0,MIG-1": "MIG instance",
    "3,1": "",
}


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
    """Counting more than CUDA would turn a skip into a failure, counting fewer a failure into a skip.

    On a machine with free GPUs, a skip for a lack of GPUs needs an explanation.
    """
    present = gpus(*_UUIDS)
    found = visible_gpus(present, {"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.index for gpu in found.gpus] == expected
    assert _REMARKS.get(visible, "") in found.remark
    assert bool(found.remark) == ("CUDA_VISIBLE_DEVICES" in found.way_out)
    assert not (found.remark and _REMARKS.get(visible) == "")
    assert visible_gpus(present, {}).gpus == present


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


# A file that does not exist.
_NO_LIBRARY = {"DIST_TESTING_NVML": "/no/such/library"}


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, str], None]:
    """Adds a GPU to fake files of NVIDIA's driver, by address, minor number and UUID. Nodes are in `dev`."""
    driver, nodes = tmp_path / "proc", tmp_path / "dev"
    nodes.mkdir()
    monkeypatch.setattr(devices, "node_directory", lambda env: nodes)
    monkeypatch.setattr(devices, "_DRIVER_DIRECTORY", driver)

    def tell(address: str, minor: int, uuid: str) -> None:
        (nodes / f"nvidia{minor}").touch()
        (driver / address).mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\nno colon\n"
        (driver / address / "information").write_text(text)

    return tell


def test_names_and_order_come_from_the_driver(tell: Callable[[str, int, str], None], tmp_path: Path) -> None:
    """The numbers of device nodes may be in another order than the one in which CUDA counts."""
    tell("0000:86:00.0", 0, "GPU-????????")
    tell("0000:3b:00.0", 1, "GPU-b")
    (tmp_path / "proc" / "0000:99:00.0").mkdir()
    found = NVIDIA.find(_NO_LIBRARY)
    # Nothing has opened the second one yet, so its UUID is not known.
    assert [(gpu.index, gpu.minor, gpu.uuid, gpu.model) for gpu in found.gpus] == [
        (0, 1, "GPU-b", "NVIDIA H200"),
        (1, 0, "", "NVIDIA H200"),
    ]
    assert found.left_out == ()


def test_a_node_that_the_driver_does_not_list_is_no_gpu(tell: Callable[[str, int, str], None], tmp_path: Path) -> None:
    """Nodes stay when GPUs are taken out: one GPU would count as two, and the second rank would find no device."""
    tell("0000:3b:00.0", 0, "GPU-a")
    stale = tmp_path / "dev" / "nvidia5"
    stale.touch()
    found = NVIDIA.find(_NO_LIBRARY)
    assert [gpu.minor for gpu in found.gpus] == [0]
    assert found.left_out == (f"{stale}: the driver has no such GPU",)
    # Containers may hide the files of the driver.
    shutil.rmtree(tmp_path / "proc")
    assert [gpu.minor for gpu in NVIDIA.find(_NO_LIBRARY).gpus] == [0, 5]


@pytest.mark.parametrize("vendor", [NVIDIA, AMD], ids=lambda vendor: vendor.name)
def test_nodes_that_this_process_may_not_open_do_not_count(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm and containers show all nodes, but a job may open only its own, and CUDA counts only these."""
    for minor in range(3):
        (tmp_path / f"nvidia{minor}").touch()
        make_render_node(tmp_path, minor)
    closed = tmp_path / ("dri/renderD0" if vendor is AMD else "nvidia0")
    # The node can be read and not written, as the rights of some nodes are; root may open all.
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed or mode == os.R_OK)
    found = vendor.find({NODES_VARIABLE: str(tmp_path)})
    assert [(gpu.index, gpu.minor) for gpu in found.gpus] == [(0, 1), (1, 2)]
    assert found.left_out == (f"{closed}: this process may not open it",)


def test_amds_gpus_are_those_render_nodes_that_amd_made(tmp_path: Path) -> None:
    """GPUs of other vendors have render nodes, too, and most machines have none."""
    assert VENDORS == {"nvidia": NVIDIA, "amd": AMD}
    assert AMD.find({NODES_VARIABLE: str(tmp_path)}).gpus == ()
    make_render_node(tmp_path, 130, address="0000:03:00.0")
    make_render_node(tmp_path, 129, vendor="0x8086")
    make_render_node(tmp_path, 128, address="0000:83:00.0")
    (tmp_path / "dri" / "renderD131").touch()
    (tmp_path / "dri" / "card0").touch()
    found = AMD.find({NODES_VARIABLE: str(tmp_path)})
    assert [(gpu.index, gpu.minor) for gpu in found.gpus] == [(0, 130), (1, 128)]
    assert {gpu.control for gpu in found.gpus} == {tmp_path / "kfd"}
    assert found.left_out == ()


def test_amds_kernel_files_name_the_architecture(tmp_path: Path) -> None:
    """A target for one architecture would run on another, or on none."""
    make_render_node(tmp_path, 128, address="0000:03:00.0")
    make_render_node(tmp_path, 129, address="0000:83:00.0")
    topology = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for node, text in enumerate(
        (
            "cpu_cores_count 64\ngfx_target_version 0\n",
            "simd_count 304\ngfx_target_version 90402\ndrm_render_minor 129\n",
            "gfx_target_version many\ndrm_render_minor 128\n",
        )
    ):
        (topology / str(node)).mkdir(parents=True)
        (topology / str(node) / "properties").write_text(text)
    found = AMD.find({NODES_VARIABLE: str(tmp_path)})
    assert [(gpu.minor, gpu.arch) for gpu in found.gpus] == [(128, ""), (129, "gfx942")]


def test_worlds_lease_amds_gpus_and_set_hips_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HIP reads another variable than CUDA, and NVIDIA's library does not know the memory of these GPUs."""
    for minor in (128, 129):
        make_render_node(tmp_path, minor)
    monkeypatch.setenv(NODES_VARIABLE, str(tmp_path))
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    world = WorldGpus.take(1, AMD, limit_s=0, on_wait=lambda _: None)
    try:
        assert world.env == {"HIP_VISIBLE_DEVICES": "1"}
        assert [gpu.node.name for gpu in world.lease.gpus] == ["renderD129"]
        assert world.check(are_ranks_gone=True) == ()
    finally:
        world.release(are_ranks_gone=True)


@pytest.mark.parametrize(
    ("uuids", "expected"), [(("GPU-a", "GPU-b"), "GPU-a,GPU-b"), (("GPU-a", ""), "0,1"), (("", ""), "0,1")]
)
def test_ranks_get_all_uuids_or_all_numbers(uuids: tuple[str, str], expected: str) -> None:
    """In a mixed list CUDA ignores one kind, so a rank would lack its GPU."""
    gpus = tuple(Gpu(index, Path(f"/dev/nvidia{index}"), uuid) for index, uuid in enumerate(uuids))
    world = WorldGpus(Lease(gpus, ()), NVIDIA)
    assert world.env == {"CUDA_VISIBLE_DEVICES": expected, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
