"""What a world on NCCL needs beside its GPUs, and facts for a failure. The ledger has its collectives."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from dist_testing.core.engine.hooks import HeldResource, ResourceWish
from dist_testing.core.ground.case import CaseResult

_SHARED_MEMORY = Path("/dev/shm")
# NCCL's segments take some ten MB for each connection between ranks that cannot reach each other's memory; a
# container's usual 64 MiB is too little for a few. Bytes per rank.
_SHARED_MEMORY_PER_RANK = 64 << 20
_MIB = 1 << 20


class NcclSupport(HeldResource):
    """Warns once per run if shared memory is short, and adds to the report of a failure. All worlds share it."""

    # After a timeout torch would write its record to a file of the user's, and wait up to a minute for the other ranks.
    # $TORCH_NCCL_DUMP_ON_TIMEOUT, $TORCH_FR_DUMP_ON_TIMEOUT (library): with NCCL: whether torch writes its flight
    # recorder to a file after a timeout (default: 0).
    defaults: Mapping[str, str] = MappingProxyType(
        dict.fromkeys(("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_ON_TIMEOUT"), "0")
    )

    def __init__(self) -> None:
        self._has_warned = False

    def acquire(self, wish: ResourceWish) -> HeldResource:
        """Warn, if need be."""
        if (warning := lack_of_memory(wish.case.world_size)) and not self._has_warned:
            self._has_warned = True
            wish.log_line(warning)
        return self

    def explain(self, result: CaseResult) -> CaseResult:
        """Add NCCL's version, and the lack of memory."""
        lines = [f"NCCL {version}." if (version := nccl_version()) else "", lack_of_memory(result.case.world_size)]
        return dataclasses.replace(result, notes=(*result.notes, *filter(None, lines)))


def lack_of_memory(world_size: int) -> str:
    """Return a warning if there may be too little shared memory for NCCL; "" if there is enough.

    It is no error: ranks whose GPUs reach each other need almost none, and only NCCL itself finds out which GPUs do.
    """
    # $NCCL_SHM_DISABLE (user): value other than 0: NCCL uses no shared memory, and the library does not warn of too
    # little.
    if world_size < 2 or os.environ.get("NCCL_SHM_DISABLE", "0") != "0":
        return ""
    try:
        space = os.statvfs(_SHARED_MEMORY)
    except OSError as error:
        observed = f"cannot be used ({error.strerror})"
    else:
        free = space.f_bavail * space.f_frsize
        if free >= world_size * _SHARED_MEMORY_PER_RANK:
            return ""
        observed = f"has {free // _MIB} MiB free"
    return (
        f"NCCL, {world_size} ranks: {_SHARED_MEMORY} {observed}.\n"
        "Ranks whose GPUs do not reach each other exchange their data there; if it is too small, NCCL reports "
        "'unhandled system error'.\n"
        "Start the container with --shm-size=1g or --ipc=host, or set NCCL_SHM_DISABLE=1, which is slower."
    )


def nccl_version() -> str:
    """Return the version of torch's NCCL, such as "2.27.5"; "" if torch has none or is not loaded here."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch._C, "_nccl_version"):
        return ""
    return ".".join(str(part) for part in torch.cuda.nccl.version())
