"""Memory and errors of GPUs, as a fake management library in C reports them."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dist_testing.gpus import devices, memory
from dist_testing.gpus.__main__ import listing
from dist_testing.gpus.devices import gpus_present
from dist_testing.gpus.gpu import NODES_VARIABLE, NVML_VARIABLE, Gpu, GpuError
from dist_testing.gpus.lease import lease_gpus
from dist_testing.gpus.memory import MemoryUse, memory_left, wait_for_memory
from dist_testing.gpus.nvml import Nvml, open_nvml
from dist_testing.gpus.world_gpus import hardware_faults
from tests.support.fake_nvml import STATE_VARIABLE, FakeMachine, build_fake_nvml
from tests.support.gpu_nodes import make_nodes

_GIB = 1 << 30
_GPUS = (Gpu(0, Path("/dev/nvidia4"), "GPU-four"), Gpu(1, Path("/dev/nvidia5"), "GPU-five"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the library."""
    return build_fake_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """Answers of the library, which this process finds; waits are short."""
    monkeypatch.setenv(NVML_VARIABLE, str(library))
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.setattr(memory, "_STEADY_S", 0.3)
    monkeypatch.setattr(memory, "_AFTER_LIMIT_S", 0.3)
    return FakeMachine(tmp_path / "state")


@pytest.fixture
def nvml(machine: FakeMachine) -> Iterator[Nvml]:
    """The open library."""
    with open_nvml() as opened:
        assert opened is not None
        yield opened


def test_structures_of_the_library_are_read_in_their_layout(nvml: Nvml, machine: FakeMachine) -> None:
    """A field that is read four bytes too early gives a wrong number, not an error."""
    machine.set(7.0, 1.0, processes=((5, 41, 0.5), (4, 42, 3.0), (4, 43, 2.0)))
    four, five = nvml.gpus()
    assert (four.minor, four.uuid, four.model, four.address) == (4, "GPU-four", "Fake GPU", "0000:3b:00.0")
    assert (five.minor, five.uuid, five.address) == (5, "GPU-five", "0000:1a:00.0")
    found = nvml.memory(four)
    assert found is not None
    assert (found.total, found.used) == (100 * _GIB, 7 * _GIB)
    assert nvml.processes(four) == {42: 3 * _GIB, 43: 2 * _GIB}
    assert nvml.driver_version() == "580.65.06"


def test_the_listing_shows_leases_and_memory(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users look here when a test waits for a GPU."""
    nodes = make_nodes(tmp_path / "dev", (4, 5))
    env = {**os.environ, NODES_VARIABLE: str(nodes), "CUDA_VISIBLE_DEVICES": "1,0,7"}
    machine.set(7.0, processes=((4, 42, 7.0),))
    with lease_gpus(1, gpus_present(env)[1:], limit_s=0):
        text = "\n".join(listing(env))
    assert text.startswith(f"2 GPU(s) by the device nodes in {nodes} (simulated: ")
    assert "'7' is no device here" in text
    assert "Correct CUDA_VISIBLE_DEVICES, or unset it" in text
    assert "this process may use 2: 1, 0" in text
    first, second = text.split("GPU 0: ")[1].split("GPU 1: ")
    assert "free: not leased" in first
    assert "memory: 7.0 of 100.0 GiB in use" in first
    assert "process 42: 7.0 GiB" in first
    assert f"leased by process {os.getpid()}" in second
    assert "--local_resources=gpu=2` to a file" in second
    text = "\n".join(listing({**env, NVML_VARIABLE: "/no/such/library"}))
    assert "memory is unknown" in text


def test_names_come_from_the_library_where_the_driver_hides_its_files(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In such a container no GPU would match a UUID in CUDA_VISIBLE_DEVICES."""
    nodes = make_nodes(tmp_path / "dev", (4, 5))
    monkeypatch.setattr(devices, "node_directory", lambda env: nodes)
    monkeypatch.setattr(devices, "_facts_of_driver", dict)
    # The answers are cached for the process.
    devices._gpus_of_library.cache_clear()
    # In the order of their addresses, as CUDA counts.
    assert [(gpu.index, gpu.minor, gpu.uuid) for gpu in gpus_present()] == [(0, 5, "GPU-five"), (1, 4, "GPU-four")]


def test_free_memory_is_not_waited_for(nvml: Nvml, machine: FakeMachine) -> None:
    """Every case would take longer."""
    machine.set(2.0, processes=((4, os.getpid(), 2.0),))
    lines: list[str] = []
    use = wait_for_memory(nvml, _GPUS, limit_s=60, on_wait=lines.append)
    assert use == {_GPUS[0]: MemoryUse(2 * _GIB, {os.getpid(): 2 * _GIB}), _GPUS[1]: MemoryUse(0, {})}
    assert lines == []


def test_memory_that_comes_free_is_waited_for(nvml: Nvml, machine: FakeMachine) -> None:
    """The driver needs a moment to free the memory of the last test; the next test would run out of memory."""
    machine.set(80.0)
    lines: list[str] = []

    def on_wait(line: str) -> None:
        lines.append(line)
        machine.set(1.0)

    assert wait_for_memory(nvml, _GPUS, limit_s=60, on_wait=on_wait)[_GPUS[0]].used == _GIB
    assert lines == [
        "waiting for memory; GPU 0 has 20% of its memory free (the driver does not report the process)",
    ]


@pytest.mark.parametrize(
    ("used", "processes", "end", "said"),
    [
        (
            (0.0, 60.0),
            ((5, os.getpid(), 60.0),),
            "",
            rf"GPU 1 has 40% of its memory free \(process {os.getpid()}: .*60.0 GiB",
        ),
        ((), (), "lost", r"nvidia4 .Fake GPU, GPU-four.: the driver says that the GPU is lost"),
        ((), (), "gone", r"GPU 0 ./dev/nvidia4., GPU 1 ./dev/nvidia5.: the driver says that the GPU is lost"),
    ],
    ids=["full", "lost", "gone"],
)
def test_a_gpu_that_cannot_be_used_is_the_machines_fault(
    nvml: Nvml, machine: FakeMachine, used: Sequence[float], processes: Sequence[Any], end: str, said: str
) -> None:
    """A test would run out of memory there, or get a CUDA error of its own, and its report would blame the test."""
    machine.set(*used, processes=processes, end=end)
    with pytest.raises(GpuError, match=said):
        wait_for_memory(nvml, _GPUS, limit_s=60, on_wait=lambda _: None)


def test_use_that_is_known_to_stay_is_not_waited_for_again(nvml: Nvml, machine: FakeMachine) -> None:
    """A desktop on the same GPU would cost every case two seconds."""
    settled: dict[Gpu, int] = {}
    lines: list[str] = []

    def wait() -> int:
        return wait_for_memory(nvml, _GPUS, limit_s=60, on_wait=lines.append, settled=settled)[_GPUS[0]].used

    machine.set(20.0)
    assert wait() == 20 * _GIB
    assert (len(lines), settled) == (1, {_GPUS[0]: 20 * _GIB})
    machine.set(20.01)
    wait()
    assert len(lines) == 1
    # Another program has come, and may end soon.
    machine.set(30.0)
    wait()
    assert (len(lines), settled) == (2, {_GPUS[0]: 30 * _GIB})
    # The programs have ended.
    machine.set(0.0)
    wait()
    assert (len(lines), settled) == (2, {})


@pytest.mark.parametrize(
    ("used_gib", "limit_s", "waited_s"),
    [
        # The memory of a training program changes all the time. It fell to 20 once, and never lower after that.
        (lambda at_s: 30.0 - 10 * (round(at_s / 0.2) % 2), 60.0, 0.3),
        # A neighbour that frees a little memory now and then would use up the time of the case.
        (lambda at_s: 49.0 - 0.1 * int(at_s / 0.2), 5.0, 5.0),
        (lambda at_s: 49.0 - 0.1 * int(at_s / 0.2), 600.0, 30.0),
        # The driver clears a large memory in steps.
        (lambda at_s: max(0.0, 80.0 - 10 * int(at_s / 0.2)), 60.0, 1.6),
    ],
    ids=["up and down", "a short limit", "a long limit", "steps"],
)
def test_how_long_memory_is_waited_for(
    nvml: Nvml,
    machine: FakeMachine,
    monkeypatch: pytest.MonkeyPatch,
    used_gib: Callable[[float], float],
    limit_s: float,
    waited_s: float,
) -> None:
    """If this fails, a case runs out of memory that comes free soon, or each case waits for half a minute."""
    clock = SimpleNamespace(now_s=0.0)

    def sleep(seconds: float) -> None:
        clock.now_s += seconds
        machine.set(used_gib(clock.now_s))

    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: clock.now_s, sleep=sleep))
    machine.set(used_gib(0.0))
    wait_for_memory(nvml, _GPUS, limit_s=limit_s, on_wait=lambda _: None)
    assert clock.now_s == pytest.approx(waited_s, abs=0.25)


def test_memory_that_stays_in_use_is_reported_with_its_process(nvml: Nvml, machine: FakeMachine) -> None:
    """The next test would fail instead."""
    before = {gpu: MemoryUse(_GIB, {}) for gpu in _GPUS}
    machine.set(4.0, 1.0, processes=((4, os.getpid(), 3.0),))
    # A world that began before this process.
    (text,) = memory_left(nvml, before, started_s=0.0)
    assert text.startswith(f"GPU 0: 3.0 GiB more than before (process {os.getpid()}: ")


# A process of another container: the kernel gives no number so high to a process here.
_UNSEEN = 1 << 22
_OWN = os.getpid()


@pytest.mark.parametrize(
    ("before_gib", "after_gib", "pid", "pid_gib", "left_gib"),
    [
        # In a container the driver reports no process.
        (0, 4.0, 0, 0.0, 4.0),
        # Contexts of the driver itself vary by some MiB.
        (1, 1.01, 0, 0.0, 0),
        # A training program that was there before may grow; memory beyond its own still counts.
        *((2, 9.0, pid, 9.0, 0) for pid in (_OWN, _UNSEEN)),
        *((2, 12.0, pid, 9.0, 3.0) for pid in (_OWN, _UNSEEN)),
        # A neighbour that ends frees its memory, and hides no leak of the world.
        *((10, 3.0, -pid, 0.0, 3.0) for pid in (_OWN, _UNSEEN)),
        *((10, 0.0, -pid, 0.0, 0) for pid in (_OWN, _UNSEEN)),
    ],
)
def test_memory_that_a_case_leaves(
    nvml: Nvml,
    machine: FakeMachine,
    before_gib: int,
    after_gib: float,
    pid: int,
    pid_gib: float,
    left_gib: float,
) -> None:
    """If this fails, the next case runs out of memory, or a case fails for what another program does.

    A negative pid has ended.
    """
    before = {_GPUS[0]: MemoryUse(before_gib * _GIB, {abs(pid): before_gib * _GIB} if pid else {})}
    machine.set(after_gib, processes=((4, pid, pid_gib),) if pid_gib else ())
    # A world that begins later than this process.
    started_s = time.time() + (3600 if pid in (_OWN, -_OWN) else 0)
    texts = memory_left(nvml, before, started_s=started_s)
    assert [text.partition(" GiB more")[0] for text in texts] == ([f"GPU 0: {left_gib}"] if left_gib else [])
    assert pid_gib or not texts or texts[0].endswith("more than before (the driver does not report the process)")


def test_a_neighbour_of_unknown_size_fails_no_case(nvml: Nvml, machine: FakeMachine) -> None:
    """If the driver does not report sizes, a neighbour that grows must not fail our case."""
    machine.set(2.0, processes=((4, os.getpid(), None),))
    before = wait_for_memory(nvml, _GPUS, limit_s=60, on_wait=lambda _: None)
    machine.set(9.0, processes=((4, os.getpid(), None),))
    assert memory_left(nvml, before, started_s=time.time() + 3600) == []


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("lost", "/dev/nvidia4 (Fake GPU, GPU-four): the driver says that the GPU is lost."),
        ("gone", "GPU 0 (/dev/nvidia4): the driver says that the GPU is lost."),
        ("hidden", "GPU 0 (/dev/nvidia4): the driver no longer shows the GPU."),
    ],
)
def test_a_gpu_that_is_lost_during_a_case_is_the_machines_fault(
    nvml: Nvml, machine: FakeMachine, end: str, text: str
) -> None:
    """The check would find no memory left behind on a GPU that is gone."""
    before = wait_for_memory(nvml, _GPUS[:1], limit_s=60, on_wait=lambda _: None)
    machine.set(end=end)
    with pytest.raises(GpuError) as error:
        memory_left(nvml, before, started_s=0.0)
    assert str(error.value).splitlines()[0] == text


def test_a_driver_that_no_longer_reports_processes_fails_no_case(
    nvml: Nvml, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All memory of a neighbour would count as ours."""
    before = {_GPUS[0]: MemoryUse(10 * _GIB, {_UNSEEN: 10 * _GIB})}
    machine.set(12.0)
    monkeypatch.setattr(nvml, "processes", lambda gpu: None)
    assert memory_left(nvml, before, started_s=0.0) == []
    # If no process was seen before either, it is a container that has the GPU for itself.
    (text,) = memory_left(nvml, {_GPUS[0]: MemoryUse(0, {})}, started_s=0.0)
    assert text.startswith("GPU 0: 12.0 GiB more")


def test_a_driver_that_does_not_answer_fails_no_case(nvml: Nvml, machine: FakeMachine) -> None:
    """A missing answer does not prove that a GPU is gone."""
    before = wait_for_memory(nvml, _GPUS[:1], limit_s=60, on_wait=lambda _: None)
    machine.set(lines=("mute",))
    assert memory_left(nvml, before, started_s=0.0) == []


@pytest.fixture
def watched(machine: FakeMachine) -> Iterator[Nvml]:
    """Watches the first GPU, after one error."""
    machine.set(lines=("xid 4 79",))
    with open_nvml() as nvml:
        assert nvml is not None
        nvml.watch_xids([4])
        yield nvml


def test_errors_of_the_hardware_are_reported_once(watched: Nvml, machine: FakeMachine) -> None:
    """An error during one case must not excuse the next one on the same ranks, nor one on another GPU.

    An illegal access of a kernel under test is an Xid, too.
    """
    assert hardware_faults(watched, _GPUS) == []
    caused_by_programs = [f"xid 4 {number}" for number in (13, 31, 43, 45, 63, 68, 92, 154)]
    machine.set(lines=("xid 4 79", "xid 5 79", *caused_by_programs, "xid 4 48", "xid 4 48", "xid 4 95"))
    assert hardware_faults(watched, _GPUS) == [
        "GPU 0 (/dev/nvidia4): Xid 48, memory error that ECC cannot correct",
        "GPU 0 (/dev/nvidia4): Xid 95, memory error that ECC cannot correct, not contained",
    ]
    assert hardware_faults(watched, _GPUS) == []


_MEMORY = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3")


@pytest.mark.parametrize(
    "lacking", [(*_MEMORY, "nvmlEventSetCreate"), ("nvmlDeviceRegisterEvents",), ("nvmlEventSetWait_v2",)]
)
def test_functions_that_an_old_library_lacks_return_nothing(
    tmp_path: Path, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, ...]
) -> None:
    """A driver of 2021 must not end the run with an AttributeError, and some do not let every user watch."""
    library = str(build_fake_nvml(tmp_path, lacking=lacking))
    monkeypatch.setenv(NVML_VARIABLE, library)
    with open_nvml() as nvml:
        assert nvml is not None
        nvml.watch_xids([4, 5])
        machine.set(lines=("xid 4 79",))
        assert hardware_faults(nvml, _GPUS) == []
        if lacking[0] in _MEMORY:
            gpu, _ = nvml.gpus()
            assert (nvml.memory(gpu), nvml.processes(gpu)) == (None, None)
            assert wait_for_memory(nvml, _GPUS, limit_s=60, on_wait=lambda _: None) == {}
    assert ctypes.CDLL(library).fakeEventSets() == 0
