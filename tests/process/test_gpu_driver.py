"""Errors of GPUs, as a fake management library in C reports them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from dist_testing.gpus.devices import NVIDIA
from dist_testing.gpus.faults import hardware_faults
from dist_testing.gpus.gpu import NVML_VARIABLE, Gpu
from dist_testing.gpus.lease import Lease
from dist_testing.gpus.nvml import Nvml, open_nvml
from dist_testing.gpus.world_gpus import WorldGpus
from tests.support.fake_nvml import STATE_VARIABLE, FakeMachine, build_fake_nvml

_GPUS = (Gpu(0, Path("/dev/nvidia4"), "GPU-four"), Gpu(1, Path("/dev/nvidia5"), "GPU-five"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the library."""
    return build_fake_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """Answers of the library, which this process finds."""
    monkeypatch.setenv(NVML_VARIABLE, str(library))
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    return FakeMachine(tmp_path / "state")


@pytest.fixture
def nvml(machine: FakeMachine) -> Iterator[Nvml]:
    """Watches the first GPU, after one error."""
    machine.set(lines=("xid 4 79",))
    with open_nvml() as nvml:
        assert nvml is not None
        nvml.watch_xids([4])
        yield nvml


def test_errors_of_the_hardware_are_reported_once(nvml: Nvml, machine: FakeMachine) -> None:
    """An error during one case must not excuse the next case on the same ranks."""
    assert hardware_faults(nvml, _GPUS) == []
    machine.set(lines=("xid 4 79", "xid 4 48", "xid 4 48", "xid 4 95"))
    assert hardware_faults(nvml, _GPUS) == [
        "GPU 0 (/dev/nvidia4): Xid 48, memory error that ECC cannot correct",
        "GPU 0 (/dev/nvidia4): Xid 95, memory error that ECC cannot correct, not contained",
    ]
    assert hardware_faults(nvml, _GPUS) == []


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 68, 92, 154])
def test_errors_that_a_program_can_cause_are_no_hardware_faults(nvml: Nvml, machine: FakeMachine, number: int) -> None:
    """An illegal access of a kernel under test is an Xid, too."""
    machine.set(lines=("xid 4 79", f"xid 4 {number}"))
    assert hardware_faults(nvml, _GPUS) == []


def test_errors_of_other_gpus_are_not_reported(nvml: Nvml, machine: FakeMachine) -> None:
    """A broken GPU would excuse failures on all other GPUs."""
    machine.set(lines=("xid 4 79", "xid 5 79"))
    assert hardware_faults(nvml, _GPUS) == []


def test_a_closed_library_frees_its_event_set(library: Path, machine: FakeMachine) -> None:
    """A run with a thousand cases would leak a thousand event sets."""
    count = ctypes.CDLL(str(library)).fakeEventSets
    before = count()
    with open_nvml() as nvml:
        assert nvml is not None
        nvml.watch_xids([4, 5])
        assert count() == before + 1
    assert count() == before


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"])
def test_a_library_without_events_reports_no_fault(
    tmp_path: Path, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """An old driver has no events, and some do not let every user watch."""
    library = str(build_fake_nvml(tmp_path, lacking=(function,)))
    monkeypatch.setenv(NVML_VARIABLE, library)
    with open_nvml() as nvml:
        assert nvml is not None
        nvml.watch_xids([4, 5])
        machine.set(lines=("xid 4 79",))
        assert hardware_faults(nvml, _GPUS) == []
    assert ctypes.CDLL(library).fakeEventSets() == 0


def test_without_a_library_there_are_no_faults() -> None:
    """Most machines have no such library."""
    world = WorldGpus(Lease(tuple(_GPUS), ()), NVIDIA)
    assert world.check(are_ranks_gone=True) == ()
