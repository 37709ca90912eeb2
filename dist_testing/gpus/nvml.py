"""What NVIDIA's management library tells of the GPUs: names, memory, who uses it, how they are connected.

It creates no CUDA context. It is loaded in the runner and in tools, and open no longer than a world is there; never in
the template or in a rank. Where it is missing there is simply nobody to ask, so every caller goes on without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dist_testing.errors import GpuError
from dist_testing.gpus.simulated import NVML_VARIABLE, is_simulated

__all__ = ["Nvml", "NvmlEvents", "NvmlGpu", "NvmlMemory", "NvmlProcess", "lost_error", "open_nvml", "why_missing"]

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
# nvmlReturn_t.
_SUCCESS = 0
_TOO_SMALL = 7
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
# nvmlMemory_v2_t: its size and, in the high byte, its version.
_MEMORY_VERSION = 40 | 2 << 24
# The list may grow between the question for its length and the question for its content.
_SPARE_PROCESSES = 16
# An upper bound on what is believed of a count; no machine runs more processes on one GPU.
_MAX_PROCESSES = 4096
# All bits set: the driver does not tell (a virtual machine, Windows' driver model).
_NOT_TOLD = 2**64 - 1

# nvmlEventTypeXidCriticalError.
_XID_EVENT = 8
# An upper bound on what is read at once, against a driver that always has one more.
_MAX_EVENTS = 1000

# nvmlGpuP2PCapsIndex_t.
_P2P_READ, _P2P_NVLINK = 0, 2
# nvmlGpuP2PStatus_t; what lies between is a reason why not.
_P2P_OK, _P2P_UNKNOWN = 0, 6
# NVML_NVLINK_MAX_LINKS.
_MAX_LINKS = 18
# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo`.
_TOPOLOGY = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class _MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """One GPU.

    Attributes:
        handle: What the library knows it by, while it is open.
        minor: The number of its device node.
        address: Its PCI address.
        uuid: As `CUDA_VISIBLE_DEVICES` takes it.
        model: The vendor's name for it.
    """

    handle: int
    minor: int
    address: str
    uuid: str
    model: str


@dataclass(frozen=True, slots=True)
class NvmlMemory:
    """Memory of a GPU, in bytes.

    Attributes:
        total: All of it.
        used: What processes have, without what the driver keeps for itself.
    """

    total: int
    used: int


@dataclass(frozen=True, slots=True)
class NvmlProcess:
    """A process that computes on a GPU.

    Attributes:
        pid: Which, as this process's namespace of process numbers has it; the driver may give another one's.
        used: Its memory in bytes; None if the driver does not tell.
    """

    pid: int
    used: int | None


@contextlib.contextmanager
def open_nvml(env: Mapping[str, str] = os.environ) -> Iterator[Nvml | None]:
    """The library, for as long as the block lasts; None if it is not there or its driver is not.

    A real one knows nothing of simulated GPUs, so with those it is not asked.
    """
    if is_simulated(env) and not env.get(NVML_VARIABLE):
        yield None
        return
    library = _open(env)
    if isinstance(library, str):
        yield None
        return
    try:
        yield Nvml(library)
    finally:
        library.nvmlShutdown()


def why_missing(env: Mapping[str, str] = os.environ) -> str:
    """Why the library cannot be opened, as it or the system says; "" if it can."""
    library = _open(env)
    if isinstance(library, str):
        return library
    library.nvmlShutdown()
    return ""


def _open(env: Mapping[str, str]) -> ctypes.CDLL | str:
    """The library, or why it cannot be opened."""
    try:
        library = ctypes.CDLL(env.get(NVML_VARIABLE) or _LIBRARY)
        code = int(library.nvmlInit_v2())
        if code == _SUCCESS:
            return library
        explain = library.nvmlErrorString
    except (OSError, AttributeError) as error:
        return str(error)
    explain.restype = ctypes.c_char_p
    return f"{library._name}: nvmlInit_v2: {(explain(code) or b'').decode(errors='replace')} (error {code})"


def lost_error(subject: str, *, is_told: bool = True) -> GpuError:
    """The error for a GPU that is gone.

    Args:
        subject: Which.
        is_told: Whether the driver says so; if not, it does not show the GPU any more.
    """
    sign = "says that the GPU is lost" if is_told else "no longer shows the GPU"
    return GpuError(
        f"{subject}: the driver {sign}.\n"
        "It has fallen off the bus or was reset; no program can use it.\n"
        "See the kernel's log for an Xid, and restart the machine or take the GPU out of the pool."
    )


class Nvml:
    """The open library. What it does not tell is "" or None; a GPU that is gone is an error.

    Attributes:
        lost_count: How many GPUs the last call of `gpus` found gone: the library cannot say which.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.lost_count = 0
        self._library = library

    def driver_version(self) -> str:
        """Version of the driver, such as "580.65.06"."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(_TEXT_BYTES))
        return text.value.decode(errors="replace") if code == _SUCCESS else ""

    def gpu_count(self) -> int | None:
        """How many there are, those of other containers too; None if the driver does not answer."""
        count = ctypes.c_uint()
        return count.value if self._call("nvmlDeviceGetCount_v2", ctypes.byref(count)) == _SUCCESS else None

    def gpus(self) -> tuple[NvmlGpu, ...]:
        """Those that the library shows here, in its order."""
        found = []
        self.lost_count = 0
        for index in range(self.gpu_count() or 0):
            handle = ctypes.c_void_p()
            minor = ctypes.c_uint()
            code = self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            self.lost_count += code == _GPU_IS_LOST
            # Others that cannot be opened belong to another container.
            if code != _SUCCESS:
                continue
            if self._call("nvmlDeviceGetMinorNumber", handle, ctypes.byref(minor)) != _SUCCESS:
                continue
            uuid, model = (self._text(name, handle) for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetName"))
            address = self._address("nvmlDeviceGetPciInfo_v3", handle)
            found.append(NvmlGpu(handle.value or 0, minor.value, address, uuid, model))
        return tuple(found)

    def memory(self, gpu: NvmlGpu) -> NvmlMemory | None:
        """How much there is and how much is in use; None if the driver does not tell.

        Raises:
            GpuError: If the GPU is gone.
        """
        memory = _MemoryV2(version=_MEMORY_VERSION)
        handle = ctypes.c_void_p(gpu.handle)
        code = self._call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory))
        if code == _GPU_IS_LOST:
            raise lost_error(f"/dev/nvidia{gpu.minor} ({gpu.model or 'GPU'}, {gpu.uuid})")
        return NvmlMemory(memory.total, memory.used) if code == _SUCCESS else None

    def is_mig(self, gpu: NvmlGpu) -> bool:
        """Whether it is divided into instances; False if the driver does not tell, as of GPUs that cannot be."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        handle = ctypes.c_void_p(gpu.handle)
        code = self._call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
        return code == _SUCCESS and bool(current.value)

    def processes(self, gpu: NvmlGpu) -> tuple[NvmlProcess, ...] | None:
        """Who computes on it, as far as the driver lets this process see; in a container often nobody.

        None if the driver does not tell.
        """
        function = "nvmlDeviceGetComputeRunningProcesses_v3"
        handle = ctypes.c_void_p(gpu.handle)
        count = ctypes.c_uint(0)
        code = self._call(function, handle, ctypes.byref(count), None)
        if code != _TOO_SMALL:
            return () if code == _SUCCESS else None
        room = min(count.value, _MAX_PROCESSES) + _SPARE_PROCESSES
        listed = (_Process * room)()
        count = ctypes.c_uint(room)
        if self._call(function, handle, ctypes.byref(count), listed) != _SUCCESS:
            return None
        return tuple(
            NvmlProcess(process.pid, None if process.used == _NOT_TOLD else process.used)
            for process in listed[: count.value]
        )

    def watch_xids(self, gpus: Sequence[NvmlGpu]) -> NvmlEvents | None:
        """Have the driver note Xid errors of these GPUs from now on; None if it does for none of them."""
        events = ctypes.c_void_p()
        if self._call("nvmlEventSetCreate", ctypes.byref(events)) != _SUCCESS:
            return None
        watched = [
            gpu
            for gpu in gpus
            if self._call(
                "nvmlDeviceRegisterEvents", ctypes.c_void_p(gpu.handle), ctypes.c_ulonglong(_XID_EVENT), events
            )
            == _SUCCESS
        ]
        if not watched:
            self._call("nvmlEventSetFree", events)
            return None
        return NvmlEvents(self._call, events, {gpu.handle: gpu for gpu in watched})

    def connection(self, one: NvmlGpu, other: NvmlGpu) -> str:
        """What lies between two GPUs, in the words of `nvidia-smi topo`; "" if the driver does not tell.

        Returns:
            Such as "NV4, PIX": four links of NVLink, and a PCIe switch; "NV" where the links cannot be counted. With
            "no peer access" the two reach each other through the host's memory only.
        """
        words = [self._nvlink(one, other), self._ancestor(one, other)]
        if self._peers(one, other, _P2P_READ) is False:
            words.append("no peer access")
        return ", ".join(word for word in words if word)

    def _nvlink(self, one: NvmlGpu, other: NvmlGpu) -> str:
        handle = ctypes.c_void_p(one.handle)
        ends = []
        for link in map(ctypes.c_uint, range(_MAX_LINKS)):
            is_active = ctypes.c_int()
            code = self._call("nvmlDeviceGetNvLinkState", handle, link, ctypes.byref(is_active))
            if code == _SUCCESS and is_active.value:
                ends.append(self._address("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link))
        direct = ends.count(other.address) if other.address else 0
        reachable = self._peers(one, other, _P2P_NVLINK)
        if reachable is None:
            return f"NV{direct}" if direct else ""
        # Behind a switch every link leads to the switch, and with it to every GPU.
        return f"NV{direct or len(ends) or ''}" if reachable else ""

    def _peers(self, one: NvmlGpu, other: NvmlGpu, capability: int) -> bool | None:
        status = ctypes.c_int(_P2P_UNKNOWN)
        code = self._call(
            "nvmlDeviceGetP2PStatus",
            ctypes.c_void_p(one.handle),
            ctypes.c_void_p(other.handle),
            ctypes.c_int(capability),
            ctypes.byref(status),
        )
        if code != _SUCCESS or status.value >= _P2P_UNKNOWN:
            return None
        return status.value == _P2P_OK

    def _ancestor(self, one: NvmlGpu, other: NvmlGpu) -> str:
        level = ctypes.c_int()
        code = self._call(
            "nvmlDeviceGetTopologyCommonAncestor",
            ctypes.c_void_p(one.handle),
            ctypes.c_void_p(other.handle),
            ctypes.byref(level),
        )
        return _TOPOLOGY.get(level.value, "") if code == _SUCCESS else ""

    def _call(self, function: str, *arguments: object) -> int:
        # An old driver's library lacks what came later.
        found = getattr(self._library, function, None)
        return int(found(*arguments)) if found is not None else _FUNCTION_NOT_FOUND

    def _text(self, function: str, handle: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._call(function, handle, text, ctypes.c_uint(_TEXT_BYTES))
        return text.value.decode(errors="replace") if code == _SUCCESS else ""

    def _address(self, function: str, *whose: object) -> str:
        # nvmlPciInfo_t begins with the address in its old, shorter form, and ends with it in full.
        information = ctypes.create_string_buffer(_PCI_BYTES)
        if self._call(function, *whose, information) != _SUCCESS:
            return ""
        address = information.raw[_PCI_ADDRESS_AT:].split(b"\0", 1)[0].decode(errors="replace").lower()
        # The kernel writes four digits of the domain, the library eight.
        return address[-_PCI_ADDRESS_CHARS:]


class NvmlEvents:
    """Xid errors of some GPUs since `Nvml.watch_xids`, for as long as the library is open."""

    def __init__(self, call: Callable[..., int], events: ctypes.c_void_p, gpus: Mapping[int, NvmlGpu]) -> None:
        self._call = call
        self._events = events
        self._gpus = gpus

    def read(self) -> list[tuple[NvmlGpu, int]]:
        """What has come since the last call. Does not wait.

        Of several Xids since then, some drivers tell the last number only.
        """
        found = []
        for _ in range(_MAX_EVENTS):
            event = _Event()
            if self._call("nvmlEventSetWait_v2", self._events, ctypes.byref(event), ctypes.c_uint(0)) != _SUCCESS:
                break
            gpu = self._gpus.get(event.device or 0)
            if gpu is not None and event.kind == _XID_EVENT:
                found.append((gpu, int(event.data)))
        return found

    def close(self) -> None:
        """Watch no longer."""
        self._call("nvmlEventSetFree", self._events)


# nvmlPciInfo_t: char[16], five unsigned int, char[32].
_PCI_ADDRESS_AT = 16 + 5 * 4
_PCI_BYTES = _PCI_ADDRESS_AT + 32
_PCI_ADDRESS_CHARS = len("0000:00:00.0")
