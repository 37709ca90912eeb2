"""NVIDIA's libraries: checks before NCCL fails, and our calls of NVML, compared with NVIDIA's own binding."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dist_testing.gpus import nccl, nvml
from dist_testing.gpus.nccl import lack_of_memory, nccl_version

_MIB = 1 << 20


def test_too_little_shared_memory_is_reported_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL itself reports only "unhandled system error"."""
    space = SimpleNamespace(f_bavail=64 * _MIB // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: space)
    assert lack_of_memory(1) == ""
    observed, why, way_out = lack_of_memory(2).splitlines()
    assert observed == "NCCL, 2 ranks: /dev/shm has 64 MiB free."
    assert "unhandled system error" in why
    assert "--shm-size" in way_out
    assert "NCCL_SHM_DISABLE=1" in way_out
    monkeypatch.setenv("NCCL_SHM_DISABLE", "0")
    assert lack_of_memory(2) != ""
    # The way out was taken, so the warning ends.
    monkeypatch.setenv("NCCL_SHM_DISABLE", "1")
    assert lack_of_memory(2) == ""
    monkeypatch.delenv("NCCL_SHM_DISABLE")
    space.f_bavail *= 100
    assert lack_of_memory(2) == ""


def test_a_machine_without_shared_memory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some containers have none."""
    monkeypatch.setattr(nccl, "_SHARED_MEMORY", tmp_path / "missing")
    assert "No such file" in lack_of_memory(2)


def test_the_version_of_nccl_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of a hang needs it; a torch without NCCL has none."""
    # Private functions, which only a torch with NCCL has; 2.27.5 as NCCL packs it for torch.
    monkeypatch.setattr(torch._C, "_nccl_version", lambda: 2 << 32 | 27 << 16 | 5, raising=False)
    monkeypatch.setattr(torch._C, "_nccl_version_suffix", lambda: b"", raising=False)
    assert nccl_version() == "2.27.5"
    monkeypatch.delattr(torch._C, "_nccl_version")
    assert nccl_version() == ""


_ASKS = """if True:
    import _thread, sys, threading, torch
    from dist_testing.gpus.nccl_rank import import_no_compiler

    if "leave" not in sys.argv:
        for _ in range(2):
            import_no_compiler(torch)
    ended = threading.Event()

    class Name(str):
        # The thread drops the last reference to its arguments when the call has returned.
        def __del__(self):
            ended.set()

    # As torch's own code asks: no Python function is on the thread's stack.
    _thread.start_new_thread(hasattr, (torch, Name("_inductor")))
    ended.wait()
    print("torch._inductor" in sys.modules, torch._inductor.__name__)
"""


@pytest.mark.parametrize(("arguments", "imports"), [((), "False"), (("leave",), "True")], ids=["kept", "as torch is"])
def test_a_thread_of_torch_imports_no_compiler(arguments: tuple[str, ...], imports: str) -> None:
    """If this fails, ranks whose collective has failed import torch's compiler for seconds before they end."""
    ended = subprocess.run([sys.executable, "-c", _ASKS, *arguments], capture_output=True, text=True, check=True)
    assert ended.stdout == f"{imports} torch._inductor\n"


def _layout(structure: Any) -> list[tuple[int, int]]:
    """Offset and size in bytes of each field, and at the end the size of all."""
    fields = [getattr(structure, name) for name, *_ in structure._fields_]
    return [*((field.offset, field.size) for field in fields), (0, ctypes.sizeof(structure))]


def test_structures_and_numbers_are_nvidias() -> None:
    """If this fails, a number is read four bytes too early, or a lost GPU is one whose memory is not reported."""
    # requirements_unit.txt has it: the library itself does without.
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py (requirements_unit.txt) is not installed")
    assert _layout(nvml._MemoryV2) == _layout(pynvml.c_nvmlMemory_v2_t)
    assert _layout(nvml._Process) == _layout(pynvml.c_nvmlProcessInfo_v3_t)
    assert _layout(nvml._Event) == _layout(pynvml.c_nvmlEventData_t)
    # Two GPUs with the same short address would be in a wrong order.
    ours, theirs = nvml._Pci.address, pynvml.nvmlPciInfo_t.busId
    assert (ours.offset, ours.size) == (theirs.offset, theirs.size)
    assert ctypes.sizeof(nvml._Pci) == ctypes.sizeof(pynvml.nvmlPciInfo_t)
    expected = {
        "_SUCCESS": pynvml.NVML_SUCCESS,
        "_TOO_SMALL": pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
        "_FUNCTION_NOT_FOUND": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        "_GPU_IS_LOST": pynvml.NVML_ERROR_GPU_IS_LOST,
        "_MEMORY_VERSION": pynvml.nvmlMemory_v2,
        "_NOT_REPORTED": pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value,
        "_XID_EVENT": pynvml.nvmlEventTypeXidCriticalError,
    }
    assert {name: getattr(nvml, name) for name in expected} == expected
