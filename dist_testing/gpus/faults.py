"""Recognizes errors that only the hardware or its driver can cause: CUDA errors by their text, and Xid errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dist_testing.gpus.gpu import Gpu
    from dist_testing.gpus.nvml import Nvml

# Texts of `cudaGetErrorString`, complete. Errors that a kernel under test can cause are not among them ("an illegal
# memory access was encountered", "unspecified launch failure", "out of memory"), even if the kernel's log has an Xid.
_CUDA_FAULTS = (
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected during the execution",
    "CUDA-capable device(s) is/are busy or unavailable",
    "no CUDA-capable device is detected",
    "system not yet initialized",
    "system has unsupported display driver / cuda driver combination",
)
_CUDA_ERROR = re.compile(r"(?:AcceleratorError|RuntimeError): CUDA error: (.+?)\s*")

# Xid errors of the memory, the links, the bus and the GPU's own processor, by NVIDIA's "Xid Errors" (the catalog) and
# "GPU Memory Error Management". Not among them: errors that a program can cause (13, 31, 43, 45, 68, ...), and 63 and
# 92, which report repaired or corrected memory and end no program.
_XID_FAULTS = {
    48: "memory error that ECC cannot correct",
    64: "memory that cannot be repaired",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "memory error that ECC cannot correct, contained",
    95: "memory error that ECC cannot correct, not contained",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "memory error that ECC has not corrected",
}


def is_hardware_fault(summary: str) -> bool:
    """Whether an exception, summarised in one line as `Class: text`, says that the hardware or its driver is broken."""
    match = _CUDA_ERROR.fullmatch(summary)
    return match is not None and match[1] in _CUDA_FAULTS


def hardware_faults(nvml: Nvml, gpus: Sequence[Gpu]) -> list[str]:
    """Return one text for each kind of Xid error of watched GPUs, since the last call, that no program can cause."""
    by_minor = {gpu.minor: gpu for gpu in gpus}
    return [
        f"{by_minor[minor]}: Xid {number}, {_XID_FAULTS[number]}"
        for minor, number in dict.fromkeys(nvml.read_xids())
        if number in _XID_FAULTS
    ]
