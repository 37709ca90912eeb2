"""`python -m dist_testing.gpus` on machines with a fault, when users need it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dist_testing.gpus import devices
from dist_testing.gpus.devices import gpus_present, visible_gpus
from dist_testing.gpus.gpu import NODES_VARIABLE, NVML_VARIABLE, GpuError
from dist_testing.gpus.world_gpus import WorldGpus
from tests.support.fake_nvml import STATE_VARIABLE, build_fake_nvml
from tests.support.gpu_nodes import break_node, make_nodes, make_render_node

_LIMIT_S = 60.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the fake management library."""
    return build_fake_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """Two GPUs."""
    return make_nodes(tmp_path / "dev", range(2))


def machine(nodes: Path, library: Path, *ends: str) -> dict[str, str]:
    """Variables of a machine whose library reports these ends of its GPUs."""
    state = nodes.parent / "state"
    lines = [f"gpu {i} GPU-{i} 00000000:{i}b:00.0 107374182400 0 {end}" for i, end in enumerate(ends)]
    state.write_text("\n".join(lines), encoding="ascii")
    return {NODES_VARIABLE: str(nodes), NVML_VARIABLE: str(library), STATE_VARIABLE: str(state)}


def start(env: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Start the program as users start it."""
    return subprocess.run(
        [sys.executable, "-m", "dist_testing.gpus", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
    )


def listed(env: Mapping[str, str], *arguments: str) -> str:
    """Output of the program."""
    ended = start(env, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_a_lost_gpu_does_not_hide_the_others(nodes: Path, library: Path) -> None:
    """With one of eight GPUs lost, the listing must show all eight."""
    first, second = listed(machine(nodes, library, "lost", "")).split("GPU 0: ")[1].split("GPU 1: ")
    assert "the driver says that the GPU is lost" in first
    assert "See the kernel's log" in first
    assert "memory: 0.0 of 100.0 GiB in use" in second


def test_a_gpu_that_was_lost_before_is_counted(nodes: Path, library: Path) -> None:
    """The library does not report which one."""
    text = listed(machine(nodes, library, "gone", ""))
    assert "the driver has lost 1 GPU(s); it does not report which" in text
    assert text.startswith("2 GPU(s)")


def test_a_node_that_may_belong_to_a_lost_gpu_is_listed(
    nodes: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease on it reports the fault; a missing node would hide it."""
    env = machine(nodes, library, "gone", "")
    monkeypatch.setenv(STATE_VARIABLE, env.pop(STATE_VARIABLE))
    monkeypatch.setattr(devices, "node_directory", lambda env: nodes)
    monkeypatch.setattr(devices, "_facts_of_driver", dict)
    copy = str(shutil.copy(library, nodes.parent))
    # As on a machine with real GPUs. The answers of a library are cached, so this is another file.
    assert [gpu.minor for gpu in gpus_present({NVML_VARIABLE: copy})] == [1, 0]


def test_the_reason_for_a_missing_library_is_shown(nodes: Path, library: Path) -> None:
    """A library that does not fit the driver and a missing library need different repairs."""
    env = {NODES_VARIABLE: str(nodes), NVML_VARIABLE: str(library)}
    assert f"no management library ({library}: nvmlInit_v2: Unknown Error (error 999))" in listed(env)
    assert "/no/such/library: cannot open shared object file" in listed({**env, NVML_VARIABLE: "/no/such/library"})
    assert "undefined symbol: nvmlErrorString" in listed({**env, NVML_VARIABLE: "libc.so.6"})
    assert "a real one does not know simulated GPUs" in listed({NODES_VARIABLE: str(nodes)})


def test_a_gpu_in_mig_mode_is_refused_with_its_reason(
    nodes: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that was promised a GPU would see one instance of it, or nothing."""
    env = machine(nodes, library, "mig", "")
    monkeypatch.setenv(STATE_VARIABLE, env[STATE_VARIABLE])
    assert [gpu.is_mig for gpu in gpus_present(env)] == [True, False]
    assert [gpu.index for gpu in visible_gpus(gpus_present(env), env).gpus] == [1]
    assert f"GPU 0 ({nodes}/nvidia0) in MIG mode, and MIG instances are not handed out" in listed(env)


def test_a_node_that_cannot_be_opened_is_not_called_free(nodes: Path) -> None:
    """Users would wait for a test that can never start on it."""
    break_node(nodes / "nvidia1")
    first, second = listed({NODES_VARIABLE: str(nodes)}).split("GPU 1: ")
    assert "free: not leased" in first
    assert second.splitlines()[1] == "  cannot be used: No such device or address"


def test_amds_gpus_are_listed_with_a_warning(nodes: Path) -> None:
    """Users must know that AMD's GPUs were never tried on hardware."""
    make_render_node(nodes, 128)
    text = listed({NODES_VARIABLE: str(nodes)})
    assert f"AMD GPU 0: {nodes}/dri/renderD128, free: not leased" in text
    assert "this has not been tried on hardware" in text


def test_a_world_leases_only_gpus_of_its_architectures(
    nodes: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with two kinds of GPUs, a rank would run code on a GPU that it was not compiled for."""
    env = machine(nodes, library, "", "")
    with Path(env[STATE_VARIABLE]).open("a", encoding="ascii") as state:
        state.write("\narch 0 8 0")
    assert "GPU 0: simulated GPU, sm_80" in listed(env)
    assert "GPU 1: simulated GPU, sm_90" in listed(env)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(devices, "_gpus_of_library", devices._gpus_of_library.__wrapped__)
    with pytest.raises(GpuError, match="2 GPU"):
        WorldGpus.take(2, archs=("sm_90",), limit_s=0, on_wait=lambda _: None)
    world = WorldGpus.take(1, archs=("sm_90", "sm_100"), limit_s=0, on_wait=lambda _: None)
    try:
        assert [gpu.minor for gpu in world.lease.gpus] == [1]
    finally:
        world.release(are_ranks_gone=True)


def test_bazels_flags_for_a_machine_are_written(nodes: Path, tmp_path: Path) -> None:
    """GPU tests run one after the other on a machine with many GPUs, unless Bazel knows their number."""
    env = {NODES_VARIABLE: str(nodes), "BUILD_WORKSPACE_DIRECTORY": str(tmp_path)}
    written = tmp_path / "dist_testing_host.bazelrc"
    listed(env, "--bazelrc")
    assert written.read_text().splitlines()[1:] == ["test --local_resources=gpu=2"]
    listed({**env, "CUDA_VISIBLE_DEVICES": "1"}, "--bazelrc=mine.bazelrc")
    assert "gpu=1\n" in (tmp_path / "mine.bazelrc").read_text()
    for node in nodes.iterdir():
        node.unlink()
    # The file of a larger machine must not stay.
    listed(env, "--bazelrc")
    assert "local_resources" not in written.read_text()


def test_a_file_that_cannot_be_written_is_named(nodes: Path, tmp_path: Path) -> None:
    """A traceback would hide that the workspace is read-only."""
    file = tmp_path / "none" / "x.bazelrc"
    ended = start({NODES_VARIABLE: str(nodes)}, f"--bazelrc={file}")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"{file} cannot be written: No such file or directory.\n")
    assert len(ended.stderr.splitlines()) == 3
