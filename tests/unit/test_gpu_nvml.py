"""Our calls of NVIDIA's management library, compared with NVIDIA's own binding."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from dist_testing.gpus import nvml

# requirements_unit.txt has it: the library itself does without.
pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py (requirements_unit.txt) is not installed")


def _layout(structure: Any) -> list[tuple[int, int]]:
    """Offset and size in bytes of each field, and at the end the size of all."""
    fields = [getattr(structure, name) for name, *_ in structure._fields_]
    return [*((field.offset, field.size) for field in fields), (0, ctypes.sizeof(structure))]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (nvml._MemoryV2, "c_nvmlMemory_v2_t"),
        (nvml._Process, "c_nvmlProcessInfo_v3_t"),
        (nvml._Event, "c_nvmlEventData_t"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_structures_have_nvidias_layout(ours: Any, theirs: str) -> None:
    """A field that is read four bytes too early is a number as well, and the driver writes behind a short one."""
    assert _layout(ours) == _layout(getattr(pynvml, theirs))


def test_the_full_pci_address_is_where_nvidia_writes_it() -> None:
    """Two GPUs with the same short address would be in a wrong order."""
    assert (nvml._Pci.address.offset, nvml._Pci.address.size, ctypes.sizeof(nvml._Pci)) == (
        pynvml.nvmlPciInfo_t.busId.offset,
        pynvml.nvmlPciInfo_t.busId.size,
        ctypes.sizeof(pynvml.nvmlPciInfo_t),
    )


def test_numbers_are_nvidias() -> None:
    """A wrong code turns a lost GPU into one whose memory the driver does not report."""
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
