"""GPUs of this machine, found without creating a CUDA context: a process that has one cannot be forked from.

    device nodes -> which GPUs are there        CUDA_VISIBLE_DEVICES -> which of them this process may use

What the driver says in files is enough to count, to name and to lease. Where those are hidden, as in some containers,
NVIDIA's management library is asked for the names. Only NVIDIA's GPUs are found; those of AMD and Intel would need the
same of their own: nodes, names, and the variable that chooses among them. Nobody has tried that yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_testing.errors import GpuError
from dist_testing.gpus.nvml import open_nvml
from dist_testing.gpus.simulated import NODES_VARIABLE, is_simulated

__all__ = ["Gpu", "VisibleGpus", "gpus_present", "node_directory", "visible_gpus"]

_NODE = re.compile(r"nvidia([0-9]{1,4})")
_SMALL_NUMBER = re.compile(r"[0-9]{1,9}")
# NVIDIA's driver: one folder per GPU, named by its PCI address, with a file of "Name: value" lines.
_DRIVER_DIRECTORY = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        index: Its number among the machine's GPUs, in the order of their PCI addresses; by device node if the driver
            does not tell those.
        node: Its device node, which is what a lease locks.
        uuid: As `CUDA_VISIBLE_DEVICES` takes it; "" if the driver does not tell.
        model: The vendor's name for it; "" if the driver does not tell.
        is_simulated: Whether it stands for a GPU only in tests.
    """

    index: int
    node: Path
    uuid: str = ""
    model: str = ""
    is_simulated: bool = False

    @property
    def minor(self) -> int:
        """The number of its device node."""
        return int(self.node.name.removeprefix("nvidia"))

    @property
    def name(self) -> str:
        """What CUDA is told to use this GPU and no other: its UUID, which every process understands alike."""
        return self.uuid or str(self.index)


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """GPUs that this process may use.

    Attributes:
        gpus: In the order in which CUDA counts them.
        remark: Why `CUDA_VISIBLE_DEVICES` gives fewer than it names; "" if it does not.
    """

    gpus: tuple[Gpu, ...]
    remark: str = ""


def node_directory(env: Mapping[str, str] = os.environ) -> Path:
    """Where the device nodes are."""
    return Path(env.get(NODES_VARIABLE) or "/dev")


def gpus_present(env: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Every GPU that has a device node here. A container has nodes only for what it was given.

    Raises:
        GpuError: If the folder of the nodes cannot be read, or a simulated one does not exist.
    """
    nodes = node_directory(env)
    simulated = is_simulated(env)
    try:
        names = os.listdir(nodes)
    except FileNotFoundError as error:
        if not simulated:
            return ()
        raise _unreadable(nodes, error) from error
    except OSError as error:
        raise _unreadable(nodes, error) from error
    minors = sorted(int(match[1]) for name in names if (match := _NODE.fullmatch(name)))
    if simulated:
        return tuple(
            Gpu(index, nodes / f"nvidia{minor}", f"GPU-simulated-{minor}", "simulated GPU", is_simulated=True)
            for index, minor in enumerate(minors)
        )
    told = _told_by_driver()
    if any(minor not in told or not told[minor].uuid for minor in minors):
        told |= _told_by_library(env)
    by_address = sorted(minors, key=lambda minor: (told[minor].address if minor in told else "~", minor))
    return tuple(
        Gpu(
            index,
            nodes / f"nvidia{minor}",
            told[minor].uuid if minor in told else "",
            told[minor].model if minor in told else "",
        )
        for index, minor in enumerate(by_address)
    )


def visible_gpus(present: Sequence[Gpu], env: Mapping[str, str] = os.environ) -> VisibleGpus:
    """Those that `CUDA_VISIBLE_DEVICES` allows, read as CUDA reads it.

    The list ends at the first entry that is no device, and one that names a device twice gives none (CUDA programming
    guide, "CUDA Environment Variables").

    Args:
        present: GPUs of the machine.
        env: Where the variable is looked up.
    """
    value = env.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return VisibleGpus(tuple(present))
    quoted = f"CUDA_VISIBLE_DEVICES={value[:80]!r}"
    if not value.strip():
        return VisibleGpus((), f"{quoted} hides every device")
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.startswith("MIG-"):
            return VisibleGpus((), f"{quoted} names a MIG instance, and those are not handed out: name whole GPUs")
        gpu = _named(entry, present)
        if gpu is None:
            return VisibleGpus(tuple(chosen), f"{quoted}: {entry!r} is no device here, and CUDA ignores what follows")
        if gpu in chosen:
            return VisibleGpus((), f"{quoted} names device {entry} twice, and CUDA then shows none")
        chosen.append(gpu)
    return VisibleGpus(tuple(chosen))


def _named(entry: str, present: Sequence[Gpu]) -> Gpu | None:
    if _SMALL_NUMBER.fullmatch(entry):
        index = int(entry)
        return present[index] if index < len(present) else None
    if not entry.startswith("GPU-"):
        return None
    # CUDA takes the first letters of a UUID for it, if no other begins so.
    fitting = [gpu for gpu in present if gpu.uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None


@dataclass(frozen=True, slots=True)
class _Told:
    address: str
    uuid: str
    model: str


def _told_by_driver(directory: Path = _DRIVER_DIRECTORY) -> dict[int, _Told]:
    """By device minor, what the driver's files say. Empty where they are hidden, as in some containers."""
    told: dict[int, _Told] = {}
    try:
        addresses = sorted(os.listdir(directory))
    except OSError:
        return told
    for address in addresses:
        try:
            lines = (directory / address / "information").read_text("utf-8", errors="replace").splitlines()
        except OSError:
            # Of a GPU that fell off the bus.
            continue
        facts = {name.strip(): value.strip() for name, found, value in (line.partition(":") for line in lines) if found}
        minor = facts.get("Device Minor", "")
        if _SMALL_NUMBER.fullmatch(minor):
            uuid = facts.get("GPU UUID", "")
            # Until something has opened the GPU, the driver writes question marks.
            told[int(minor)] = _Told(address, "" if "?" in uuid else uuid, facts.get("Model", ""))
    return told


def _told_by_library(env: Mapping[str, str]) -> dict[int, _Told]:
    with open_nvml(env) as library:
        gpus = library.gpus() if library is not None else ()
    return {gpu.minor: _Told(gpu.address, gpu.uuid, gpu.model) for gpu in gpus}


def _unreadable(nodes: Path, error: OSError) -> GpuError:
    return GpuError(
        f"The GPUs of this machine cannot be counted: {nodes}: {error.strerror}.\n"
        "The folder of the device nodes cannot be read.\n"
        f"Let this user read it, or correct {NODES_VARIABLE} if that is set."
    )
