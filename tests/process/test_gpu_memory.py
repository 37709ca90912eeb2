"""Memory of GPUs before and after a world, as a management library tells of it that was compiled for the test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dist_testing.errors import GpuError
from dist_testing.gpus import devices, memory
from dist_testing.gpus.devices import Gpu, gpus_present
from dist_testing.gpus.lease import lease_gpus
from dist_testing.gpus.listing import listing
from dist_testing.gpus.memory import MemoryUse, memory_left, wait_for_memory
from dist_testing.gpus.nvml import Nvml, NvmlProcess, open_nvml
from dist_testing.gpus.simulated import NODES_VARIABLE, NVML_VARIABLE
from tests.support.fake_nvml import STATE_VARIABLE, build_fake_nvml

_GIB = 1 << 30
_GPUS = (Gpu(0, Path("/dev/nvidia4"), "GPU-four"), Gpu(1, Path("/dev/nvidia5"), "GPU-five"))


class _Machine:
    """What the library says of two GPUs with 100 GiB each."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set()

    def set(self, *used_gib: float, processes: tuple[tuple[int, int, float], ...] = (), end: str = "") -> None:
        used = [*used_gib, 0, 0]
        lines = [
            f"gpu {4 + i} GPU-{name} 00000000:{address}:00.0 {100 * _GIB} {int(used[i] * _GIB)} {end}"
            for i, (name, address) in enumerate((("four", "3b"), ("five", "1A")))
        ]
        lines += [f"process {minor} {pid} {int(gib * _GIB)}" for minor, pid, gib in processes]
        # In one step: the library may be reading.
        new = self._file.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.replace(self._file)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library's file."""
    path = build_fake_nvml(tmp_path_factory.mktemp("nvml"))
    if path is None:
        pytest.skip("there is no C compiler here")
    return path


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Machine:
    """The library is the one that this process finds, and waits are short."""
    monkeypatch.setenv(NVML_VARIABLE, str(library))
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.setattr(memory, "_STEADY_S", 0.3)
    monkeypatch.setattr(memory, "_AFTER_LIMIT_S", 0.3)
    return _Machine(tmp_path / "state")


@pytest.fixture
def nvml(machine: _Machine) -> Iterator[Nvml]:
    """The open library."""
    with open_nvml() as opened:
        assert opened is not None
        yield opened


def test_a_library_that_is_not_there_is_nobody_to_ask(tmp_path: Path) -> None:
    """Most machines have none, and run everything else."""
    not_a_library = tmp_path / "text"
    not_a_library.write_text("text")
    for path in ("/no/such/library.so", str(not_a_library), "libc.so.6"):
        with open_nvml({NVML_VARIABLE: path}) as opened:
            assert opened is None


def test_a_driver_that_does_not_start_is_nobody_to_ask(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with the library and without the device."""
    monkeypatch.delenv(STATE_VARIABLE, raising=False)
    with open_nvml({NVML_VARIABLE: str(library)}) as opened:
        assert opened is None


def test_what_the_library_tells_is_read_as_it_lays_it_out(nvml: Nvml, machine: _Machine) -> None:
    """A field that is read four bytes too early is a number, too."""
    machine.set(7.0, 1.0, processes=((5, 41, 0.5), (4, 42, 3.0), (4, 43, 2.0)))
    four, five = nvml.gpus()
    assert (four.minor, four.uuid, four.model, four.address) == (4, "GPU-four", "Fake GPU", "0000:3b:00.0")
    assert (five.minor, five.uuid, five.address) == (5, "GPU-five", "0000:1a:00.0")
    found = nvml.memory(four)
    assert found is not None
    assert (found.total, found.used) == (100 * _GIB, 7 * _GIB)
    assert nvml.processes(four) == (NvmlProcess(42, 3 * _GIB), NvmlProcess(43, 2 * _GIB))
    assert nvml.driver_version() == "580.65.06"
    assert nvml.connection(four, five) == "PIX"


def test_what_an_old_library_lacks_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver of 2021 must not end the run with an AttributeError."""
    library = build_fake_nvml(tmp_path, old=True)
    if library is None:
        pytest.skip("there is no C compiler here")
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    _Machine(tmp_path / "state")
    with open_nvml({NVML_VARIABLE: str(library)}) as opened:
        assert opened is not None
        gpu, _ = opened.gpus()
        assert (opened.memory(gpu), opened.processes(gpu)) == (None, ())
        assert wait_for_memory(opened, _GPUS, limit_s=60, on_wait=lambda _: None) == {}


def test_the_listing_shows_what_is_known_of_a_machine(
    machine: _Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People come here when a test waits: who has what, and why is it not mine?"""
    nodes = tmp_path / "dev"
    nodes.mkdir()
    for name in ("nvidia4", "nvidia5", "nvidiactl"):
        (nodes / name).touch()
    env = {**os.environ, NODES_VARIABLE: str(nodes), "CUDA_VISIBLE_DEVICES": "1,0,7"}
    machine.set(7.0, processes=((4, 42, 7.0),))
    with lease_gpus(1, gpus_present(env)[1:], limit_s=0):
        text = "\n".join(listing(env))
    assert text.startswith(f"2 GPU(s) by the device nodes in {nodes} (simulated: ")
    assert "'7' is no device here" in text
    assert "this process may use 2: 1, 0" in text
    first, second = text.split("GPU 0: ")[1].split("GPU 1: ")
    assert "free: nobody has leased it" in first
    assert "memory: 7.0 of 100.0 GiB in use" in first
    assert "process 42: 7.0 GiB" in first
    assert f"leased by process {os.getpid()}" in second
    assert "  0 - 1: PIX" in second
    assert "test --local_resources=gpu=2" in second
    text = "\n".join(listing({**env, NVML_VARIABLE: "/no/such/library"}))
    assert "nothing is known of memory" in text


def test_a_real_library_is_not_asked_about_simulated_gpus(machine: _Machine, tmp_path: Path) -> None:
    """On a machine with both, the memory of real GPUs would decide about simulated ones."""
    with open_nvml({NODES_VARIABLE: str(tmp_path)}) as opened:
        assert opened is None


def test_names_come_from_the_library_where_the_driver_hides_its_files(
    machine: _Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In such a container CUDA_VISIBLE_DEVICES with a UUID would hide every GPU from us."""
    nodes = tmp_path / "dev"
    nodes.mkdir()
    for name in ("nvidia4", "nvidia5"):
        (nodes / name).touch()
    monkeypatch.setattr(devices, "node_directory", lambda env: nodes)
    monkeypatch.setattr(devices, "_told_by_driver", dict)
    # In the order of their addresses, which is CUDA's.
    assert [(gpu.index, gpu.minor, gpu.uuid) for gpu in gpus_present()] == [(0, 5, "GPU-five"), (1, 4, "GPU-four")]


def test_free_memory_is_not_waited_for(nvml: Nvml, machine: _Machine) -> None:
    """Every case would pay for it."""
    machine.set(2.0, processes=((4, os.getpid(), 2.0),))
    lines: list[str] = []
    use = wait_for_memory(nvml, _GPUS, limit_s=60, on_wait=lines.append)
    assert use == {_GPUS[0]: MemoryUse(2 * _GIB, {os.getpid(): 2 * _GIB}), _GPUS[1]: MemoryUse(0, {})}
    assert lines == []


def test_memory_that_comes_free_is_waited_for(nvml: Nvml, machine: _Machine) -> None:
    """The driver needs a moment for what the last test had; a test that starts in it runs out of memory."""
    machine.set(80.0)
    lines: list[str] = []

    def on_wait(line: str) -> None:
        lines.append(line)
        machine.set(1.0)

    assert wait_for_memory(nvml, _GPUS, limit_s=60, on_wait=on_wait)[_GPUS[0]].used == _GIB
    assert lines == [
        "waiting for memory; GPU 0 has 20% of its memory free (by whom the driver does not tell)",
    ]


def test_a_gpu_that_others_have_filled_is_refused_with_their_names(nvml: Nvml, machine: _Machine) -> None:
    """A test that runs out of memory there blames itself."""
    machine.set(0.0, 60.0, processes=((5, os.getpid(), 60.0),))
    with pytest.raises(GpuError) as error:
        wait_for_memory(nvml, _GPUS, limit_s=60, on_wait=lambda _: None)
    first = str(error.value).splitlines()[0]
    assert first.startswith(f"GPU 1 has 40% of its memory free (process {os.getpid()}: ")
    assert "60.0 GiB" in first


def test_a_gpu_that_others_use_a_little_is_used_after_all(nvml: Nvml, machine: _Machine) -> None:
    """A desktop on the same GPU must not stop every test."""
    machine.set(20.0)
    assert wait_for_memory(nvml, _GPUS, limit_s=60, on_wait=lambda _: None)[_GPUS[0]].used == 20 * _GIB


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("lost", r"nvidia4 .Fake GPU, GPU-four.: the driver says that the GPU is lost"),
        ("gone", r"GPU 0 ./dev/nvidia4., GPU 1 ./dev/nvidia5.: the driver says that the GPU is lost"),
    ],
)
def test_a_gpu_that_is_gone_is_the_machines_fault(nvml: Nvml, machine: _Machine, end: str, text: str) -> None:
    """The tests on it would each fail with a CUDA error of their own."""
    machine.set(end=end)
    with pytest.raises(GpuError, match=text):
        wait_for_memory(nvml, _GPUS, limit_s=60, on_wait=lambda _: None)


def test_memory_that_does_not_come_back_is_told_with_who_has_it(nvml: Nvml, machine: _Machine) -> None:
    """The next test would fail for it."""
    before = {gpu: MemoryUse(_GIB, {}) for gpu in _GPUS}
    started_s = time.time() - 3600
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        machine.set(4.0, 1.0, processes=((4, process.pid, 3.0),))
        (text,) = memory_left(nvml, before, started_s=started_s)
        process.kill()
    assert text.startswith(f"GPU 0: 3.0 GiB more than before (process {process.pid}: ")


def test_memory_that_nobody_is_seen_to_have_is_told_as_well(nvml: Nvml, machine: _Machine) -> None:
    """In a container the driver names no process."""
    machine.set(4.0)
    texts = memory_left(nvml, {_GPUS[0]: MemoryUse(0, {})}, started_s=time.time())
    assert texts == ["GPU 0: 4.0 GiB more than before (by whom the driver does not tell)"]


def test_what_older_processes_take_meanwhile_is_theirs(nvml: Nvml, machine: _Machine) -> None:
    """Somebody's training would fail our tests."""
    own = os.getpid()
    before = {_GPUS[0]: MemoryUse(2 * _GIB, {own: 2 * _GIB})}
    machine.set(9.0, processes=((4, own, 9.0),))
    assert memory_left(nvml, before, started_s=time.time() + 3600) == []
    # Beside it, what is ours still shows.
    machine.set(12.0, processes=((4, own, 9.0),))
    (text,) = memory_left(nvml, before, started_s=time.time() + 3600)
    assert text.startswith("GPU 0: 3.0 GiB more")


def test_memory_that_is_back_is_nothing_to_tell(nvml: Nvml, machine: _Machine) -> None:
    """Contexts of the driver itself vary by some MiB."""
    machine.set(1.01)
    assert memory_left(nvml, {_GPUS[0]: MemoryUse(_GIB, {})}, started_s=0.0) == []
