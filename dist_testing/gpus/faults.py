"""CUDA's errors that accuse the machine and nobody else."""

from __future__ import annotations

import re

__all__ = ["is_hardware_fault"]

# By the texts of `cudaGetErrorString`, whole: what a kernel of a test can provoke ("an illegal memory access was
# encountered", "unspecified launch failure", "out of memory") is the test's, whatever the kernel's log says of an Xid.
_FAULTS = (
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected during the execution",
    "CUDA-capable device(s) is/are busy or unavailable",
    "no CUDA-capable device is detected",
    "system not yet initialized",
    "system has unsupported display driver / cuda driver combination",
)
_CUDA_ERROR = re.compile(r"(?:AcceleratorError|RuntimeError): CUDA error: (.+?)\s*")


def is_hardware_fault(summary: str) -> bool:
    """Whether an exception, summarised in one line as `Class: text`, says that the hardware or its driver is broken."""
    match = _CUDA_ERROR.fullmatch(summary)
    return match is not None and match[1] in _FAULTS
