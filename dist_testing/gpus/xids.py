"""Xid errors: what the driver says of the GPUs while a world has them."""

from __future__ import annotations

from collections.abc import Sequence

from dist_testing.gpus.gpu import Gpu
from dist_testing.gpus.nvml import Nvml

__all__ = ["XidWatch"]

# Errors of the memory, the links, the bus and the GPU's own processor, by NVIDIA's "Xid Errors" (the catalog) and "GPU
# Memory Error Management". Not among them: what a program can cause (13, 31, 43, 45, 68, ...), and 63 and 92, which
# tell of repaired or corrected memory and end no program.
_HARDWARE = {
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


class XidWatch:
    """Notes the Xid errors of some GPUs until it is closed.

    Where the management library or its events are missing there is nothing to note.
    """

    def __init__(self, gpus: Sequence[Gpu], nvml: Nvml | None) -> None:
        """Begin.

        Args:
            gpus: Which.
            nvml: The library, which has to stay open as long as this: the driver forgets errors when it is closed.
        """
        self._gpus = {gpu.minor: gpu for gpu in gpus}
        self._events = None
        if nvml is not None:
            self._events = nvml.watch_xids([gpu for gpu in nvml.gpus() if gpu.minor in self._gpus])

    def hardware_faults(self) -> list[str]:
        """One text for each kind of error since the last call that accuses the hardware or its driver alone."""
        if self._events is None:
            return []
        found = [(self._gpus[gpu.minor], number) for gpu, number in self._events.read()]
        return [
            f"GPU {gpu.index} ({gpu.node}): Xid {number}, {_HARDWARE[number]}"
            for gpu, number in dict.fromkeys(found)
            if number in _HARDWARE
        ]

    def close(self) -> None:
        """Watch no longer."""
        if self._events is not None:
            self._events.close()
        self._events = None
