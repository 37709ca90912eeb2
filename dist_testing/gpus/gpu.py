"""What a GPU of any vendor is to this library: a device node, and the names by which programs choose it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dist_testing.core.ground.errors import LaunchError

# $DIST_TESTING_GPU_NODES (user): directory with files that are named like device nodes: each simulates a GPU, for tests
# of schedulers on machines without GPUs (default: the real GPUs).
NODES_VARIABLE = "DIST_TESTING_GPU_NODES"
# $DIST_TESTING_NVML (internal): file of another NVIDIA management library, for tests of this library. With simulated
# GPUs, only this one is asked.
NVML_VARIABLE = "DIST_TESTING_NVML"


class GpuError(LaunchError):
    """This process cannot find or use the GPUs. The cause is the machine, not the test."""


class LeaseTimeoutError(GpuError):
    """Other processes held the GPUs for longer than the case could wait."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. A text is "" if the driver does not report it."""

    # Its number among the machine's GPUs of this vendor that may be used here, in the order of their PCI addresses, or
    # of their device nodes if the driver does not report addresses.
    index: int
    node: Path  # its device node, which a lease locks
    uuid: str = ""  # as the vendor's variable takes it
    model: str = ""  # the vendor's name for it
    arch: str = ""  # its architecture as compilers name it, such as "sm_90" or "gfx942"
    control: Path = Path()  # the node on which processes queue for GPUs like this one
    is_mig: bool = False  # whether it is divided into instances, so that no program can use it as a whole

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.node})"

    @property
    def minor(self) -> int:
        """Return the number in the name of its device node."""
        name = self.node.name
        return int(name[len(name.rstrip("0123456789")) :])


@dataclass(frozen=True, slots=True)
class Found:
    """GPUs of one vendor on this machine that this process may use."""

    gpus: tuple[Gpu, ...]
    # A line for each device node that this process may not use, or that belongs to no GPU, with the reason.
    left_out: tuple[str, ...] = ()


def is_simulated(env: Mapping[str, str]) -> bool:
    """Whether the device nodes are files."""
    return bool(env.get(NODES_VARIABLE))


def node_directory(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the device nodes."""
    return Path(env.get(NODES_VARIABLE) or "/dev")


def node_names(folder: Path, *, may_be_missing: bool) -> list[str]:
    """Return the names of the files in a folder of device nodes; a GpuError if it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError as error:
        if may_be_missing and isinstance(error, FileNotFoundError):
            return []
        raise GpuError(
            f"The GPUs of this machine cannot be counted: {folder}: {error.strerror}.\n"
            "The folder of the device nodes cannot be read.\n"
            f"Let this user read it, or correct {NODES_VARIABLE} if that is set."
        ) from error


def why_closed(node: Path) -> str:
    """Return why this process may not use a device node, such as one of another job; "" if it may."""
    # The kernel also checks the device cgroup, through which Slurm and containers hand out some of the GPUs.
    return "" if os.access(node, os.R_OK | os.W_OK) else f"{node}: this process may not open it"
