"""What NVIDIA's management library (NVML) reports about the GPUs: names, memory, processes, errors.

The library creates no CUDA context. The runner and the tools load it, and keep it open only while a world exists; the
fork server and the ranks never do. Where it is missing, every caller goes on without it.

NVIDIA's own binding, nvidia-ml-py, would replace only the calls, a fifth of this file, and every target with GPUs would
need it. Where it is installed, `import torch` imports it as well, which takes 10 to 25 ms in each new process. A test
compares the two instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Collection, Iterator, Mapping
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from typing import NamedTuple

from dist_testing.gpus.gpu import NVML_VARIABLE, GpuError, is_simulated

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
# nvmlReturn_t.
_SUCCESS = 0
_TOO_SMALL = 7
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
# nvmlMemory_v2_t: its size and, in the high byte, its version.
_MEMORY_VERSION = 40 | 2 << 24
# The list may grow between the call for its length and the call for its content.
_SPARE_PROCESSES = 16
# The largest count of processes that is believed; no machine runs more on one GPU.
_MAX_PROCESSES = 4096
# All bits set: the driver does not report the value (a virtual machine, Windows' driver model).
_NOT_REPORTED = 2**64 - 1

# nvmlEventTypeXidCriticalError.
_XID_EVENT = 8
# At most so many events are read at once, in case a driver always reports one more.
_MAX_EVENTS = 1000

_PCI_ADDRESS_CHARS = len("0000:00:00.0")


class _MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint),
        ("used", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", c_void_p),
        ("kind", c_ulonglong),
        ("data", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


class _Pci(ctypes.Structure):
    # It begins with the address in its old, shorter form, and ends with the full address.
    _fields_ = (("old_address", ctypes.c_char * 16), ("numbers", c_uint * 5), ("address", ctypes.c_char * 32))


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """What the driver reports of one GPU; "" for what it does not."""

    minor: int  # the number of its device node
    address: str  # its PCI address
    uuid: str  # as `CUDA_VISIBLE_DEVICES` takes it
    model: str  # the vendor's name for it
    arch: str = ""  # its architecture in the form of compilers, such as "sm_90"
    is_mig: bool = False  # whether it is divided into instances, as far as the driver reports it
    # The library's pointer to it, valid while the library is open.
    handle: c_void_p = field(default_factory=c_void_p, compare=False)


class NvmlMemory(NamedTuple):
    """Memory of a GPU in bytes; `used` is what processes have, without what the driver keeps for itself."""

    total: int
    used: int

    @property
    def free_share(self) -> float:
        """The part that is free, from 0 to 1; 1 if the driver reports no total."""
        return 1 - self.used / self.total if self.total else 1.0


@contextlib.contextmanager
def open_nvml(env: Mapping[str, str] = os.environ) -> Iterator[Nvml | None]:
    """Open the library for the length of the block; None if the library or its driver is missing.

    The real library does not know simulated GPUs, so with those it stays closed.
    """
    nvml = nvml_or_reason(env)
    if isinstance(nvml, str):
        yield None
        return
    with contextlib.closing(nvml):
        yield nvml


def nvml_or_reason(env: Mapping[str, str]) -> Nvml | str:
    """Open the library. If it cannot be opened, return why, in its own or the system's words."""
    if is_simulated(env) and not env.get(NVML_VARIABLE):
        return "a real one does not know simulated GPUs"
    try:
        library = ctypes.CDLL(env.get(NVML_VARIABLE) or _LIBRARY)
        explain = library.nvmlErrorString
    except (OSError, AttributeError) as error:
        return str(error)
    nvml = Nvml(library)
    if (code := nvml.call("nvmlInit_v2")) == _SUCCESS:
        return nvml
    explain.argtypes, explain.restype = (c_int,), c_char_p
    return f"{library._name}: nvmlInit_v2: {(explain(code) or b'').decode(errors='replace')} (error {code})"


def lost_error(subject: str, *, is_reported: bool = True) -> GpuError:
    """Return the error for a GPU, `subject`, that is gone: the driver reports the loss, or does not show the GPU."""
    sign = "says that the GPU is lost" if is_reported else "no longer shows the GPU"
    return GpuError(
        f"{subject}: the driver {sign}.\n"
        "It has fallen off the bus or was reset; no program can use it.\n"
        "See the kernel's log for an Xid, and restart the machine or take the GPU out of the pool."
    )


class Nvml:
    """The open library. A value that the driver does not report is "" or None; a GPU that is gone is an error."""

    def __init__(self, library: ctypes.CDLL) -> None:
        # How many GPUs the last call of `gpus` found gone: the library cannot say which.
        self.lost_count = 0
        self._library = library
        # The driver's set of events, and the minors of the GPUs in it by their handles.
        self._events = c_void_p()
        self._watched: dict[int | None, int] = {}

    def driver_version(self) -> str:
        """Return the version of the driver, such as "580.65.06"."""
        return self._text("nvmlSystemGetDriverVersion")

    def gpu_count(self) -> int | None:
        """Return how many GPUs there are, those of other containers included; None if the driver does not answer."""
        count = c_uint()
        return count.value if self.call("nvmlDeviceGetCount_v2", byref(count)) == _SUCCESS else None

    def gpus(self) -> tuple[NvmlGpu, ...]:
        """Return the GPUs that the library shows here, in its order."""
        found = []
        self.lost_count = 0
        for index in range(self.gpu_count() or 0):
            handle, minor = c_void_p(), c_uint()
            code = self.call("nvmlDeviceGetHandleByIndex_v2", index, byref(handle))
            self.lost_count += code == _GPU_IS_LOST
            # With other errors, the GPU belongs to another container.
            if code != _SUCCESS or self.call("nvmlDeviceGetMinorNumber", handle, byref(minor)) != _SUCCESS:
                continue
            uuid, model = self._text("nvmlDeviceGetUUID", handle), self._text("nvmlDeviceGetName", handle)
            facts = (self._address(handle), uuid, model, self._arch(handle), self._is_mig(handle))
            found.append(NvmlGpu(minor.value, *facts, handle))
        return tuple(found)

    def memory(self, gpu: NvmlGpu) -> NvmlMemory | None:
        """Return the memory and its use; None if the driver does not report them, a GpuError if the GPU is gone."""
        memory = _MemoryV2(version=_MEMORY_VERSION)
        code = self.call("nvmlDeviceGetMemoryInfo_v2", gpu.handle, byref(memory))
        if code == _GPU_IS_LOST:
            raise lost_error(f"/dev/nvidia{gpu.minor} ({gpu.model or 'GPU'}, {gpu.uuid})")
        return NvmlMemory(memory.total, memory.used) if code == _SUCCESS else None

    def processes(self, gpu: NvmlGpu) -> dict[int, int | None] | None:
        """Return the processes that compute on the GPU, each with its memory in bytes, or None if that is not reported.

        The driver may report numbers of another PID namespace, and in a container often shows no process. None if it
        reports none at all.
        """
        function = "nvmlDeviceGetComputeRunningProcesses_v3"
        count = c_uint(0)
        code = self.call(function, gpu.handle, byref(count), None)
        if code != _TOO_SMALL:
            return {} if code == _SUCCESS else None
        room = min(count.value, _MAX_PROCESSES) + _SPARE_PROCESSES
        listed = (_Process * room)()
        count = c_uint(room)
        if self.call(function, gpu.handle, byref(count), listed) != _SUCCESS:
            return None
        return {
            process.pid: None if process.used == _NOT_REPORTED else process.used for process in listed[: count.value]
        }

    def watch_xids(self, minors: Collection[int]) -> None:
        """Have the driver note Xid errors of the GPUs with these device minors, until the library is closed."""
        if self.call("nvmlEventSetCreate", byref(self._events)) != _SUCCESS:
            return
        for gpu in self.gpus():
            arguments = (gpu.handle, c_ulonglong(_XID_EVENT), self._events)
            if gpu.minor in minors and self.call("nvmlDeviceRegisterEvents", *arguments) == _SUCCESS:
                self._watched[gpu.handle.value] = gpu.minor

    def read_xids(self) -> list[tuple[int, int]]:
        """Return the device minor of the GPU and the number of each Xid since the last call, without waiting.

        Of several Xids since then, some drivers report the last number only.
        """
        found = []
        for _ in range(_MAX_EVENTS if self._watched else 0):
            event = _Event()
            if self.call("nvmlEventSetWait_v2", self._events, byref(event), 0) != _SUCCESS:
                break
            if event.kind == _XID_EVENT and event.device in self._watched:
                found.append((self._watched[event.device], int(event.data)))
        return found

    def close(self) -> None:
        """Close the library."""
        if self._events:
            self.call("nvmlEventSetFree", self._events)
        self.call("nvmlShutdown")

    def call(self, name: str, *arguments: object) -> int:
        """Call a function that returns a nvmlReturn_t. A number is passed as `int`: others need a type of ctypes."""
        # The library of an old driver lacks newer functions.
        function = getattr(self._library, name, None)
        return _FUNCTION_NOT_FOUND if function is None else int(function(*arguments))

    def _text(self, name: str, *handle: c_void_p) -> str:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self.call(name, *handle, text, _TEXT_BYTES)
        return text.value.decode(errors="replace") if code == _SUCCESS else ""

    def _arch(self, handle: c_void_p) -> str:
        major, minor = c_int(), c_int()
        code = self.call("nvmlDeviceGetCudaComputeCapability", handle, byref(major), byref(minor))
        return f"sm_{major.value}{minor.value}" if code == _SUCCESS else ""

    def _is_mig(self, handle: c_void_p) -> bool:
        current, pending = c_uint(), c_uint()
        code = self.call("nvmlDeviceGetMigMode", handle, byref(current), byref(pending))
        return code == _SUCCESS and bool(current.value)

    def _address(self, handle: c_void_p) -> str:
        pci = _Pci()
        if self.call("nvmlDeviceGetPciInfo_v3", handle, byref(pci)) != _SUCCESS:
            return ""
        address: bytes = pci.address
        # The kernel writes four digits of the domain, the library eight.
        return address.decode(errors="replace").lower()[-_PCI_ADDRESS_CHARS:]
