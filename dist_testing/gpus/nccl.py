"""Checks what NCCL needs of the machine, and reads its flight recorder when a case fails.

torch keeps a record of the last collectives of each rank, and its watchdog writes it to a file when one of them takes
longer than the group's limit. The file is in Python's pickle format and comes from a rank, so it is read as plain data:
the reader imports nothing and calls nothing.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dist_testing.core.ground.errors import UsageError

# File names in a world's folder: this, then the rank.
_PREFIX = "flight-record-"

_SHARED_MEMORY = Path("/dev/shm")
# NCCL's segments take some ten MB for each connection between ranks that cannot reach each other's memory; a
# container's usual 64 MiB is too little for a few. Bytes per rank.
_SHARED_MEMORY_PER_RANK = 64 << 20
_MIB = 1 << 20
# Number of collectives that the recorder keeps; torch's own default.
_RECORDED = 2000
# torch waits four times this long for all ranks' files before it ends the process. The group's limit leaves a tenth of
# the case's limit, and the wait may take less than half of that. A share of the case's limit.
_DUMP_WAIT_SHARE = 0.01
_LONGEST_DUMP_WAIT_S = 15.0
# Larger files are refused; a full record takes a few MiB. Bytes.
_MAX_RECORDING = 16 << 20
# The part of a record that a report shows.
_LAST_SHOWN = 3
_TENSORS_SHOWN = 4
_NAME_CHARS = 80
_NOT_PLAIN = re.compile(r"[^\w .-]")


def check_devices(name: str, world_size: int, ranks_per_gpu: int) -> None:
    """Refuse the world of a case that NCCL would refuse at its first collective ("Duplicate GPU detected").

    Raises:
        UsageError: If two ranks share a GPU.
    """
    if min(world_size, ranks_per_gpu) > 1:
        raise UsageError(
            f"{name}: {world_size} ranks of NCCL, {ranks_per_gpu} to a GPU.\n"
            "NCCL takes one rank of a group on each GPU, no more.\n"
            "Give each rank a GPU of its own, or use the backend cuda_gloo."
        )


def lack_of_memory(world_size: int, env: Mapping[str, str] = os.environ, shared_memory: Path = _SHARED_MEMORY) -> str:
    """Return a warning if there may be too little shared memory for NCCL; "" if there is enough.

    It is no error: ranks whose GPUs reach each other need almost none, and only NCCL itself finds out which GPUs do.

    Args:
        world_size: Number of ranks.
        env: Environment of the ranks, as far as NCCL reads it.
        shared_memory: The folder of the kernel's shared memory.
    """
    if world_size < 2 or env.get("NCCL_SHM_DISABLE", "0") != "0":
        return ""
    try:
        space = os.statvfs(shared_memory)
    except OSError as error:
        observed = f"cannot be used ({error.strerror})"
    else:
        free = space.f_bavail * space.f_frsize
        if free >= world_size * _SHARED_MEMORY_PER_RANK:
            return ""
        observed = f"has {free // _MIB} MiB free"
    return (
        f"NCCL, {world_size} ranks: {shared_memory} {observed}.\n"
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


def recorder_env(directory: Path, limit_s: float) -> dict[str, str]:
    """Return variables that have torch write its record where `recordings` finds it; the user's own take precedence.

    `directory` is the world's folder, `limit_s` the case's limit in seconds.
    """
    wait_s = min(_LONGEST_DUMP_WAIT_S, _DUMP_WAIT_SHARE * limit_s)
    return {
        "TORCH_FR_BUFFER_SIZE": str(_RECORDED),
        "TORCH_FR_DUMP_TEMP_FILE": str(directory / _PREFIX),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": str(max(1, round(1000 * wait_s))),
    }


def recordings(directory: Path, world_size: int) -> dict[int, str]:
    """Return the last collectives of each rank that has left a record, in one line per rank."""
    found = {}
    for rank in range(world_size):
        path = directory / f"{_PREFIX}{rank}"
        try:
            if not path.is_file() or path.is_symlink():
                continue
            with path.open("rb") as file:
                content = file.read(_MAX_RECORDING + 1)
        except OSError as error:
            found[rank] = f"its flight record cannot be read: {error.strerror}"
            continue
        try:
            found[rank] = _summary(_read_plain_pickle(content))
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            found[rank] = f"its flight record is not one: {error}"
    return found


class _PlainUnpickler(pickle.Unpickler):
    """Reads dicts, lists, tuples, numbers and texts; a pickle that names a function or a class is refused."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise ValueError(f"{module_name}.{global_name} is not plain data")


def _read_plain_pickle(content: bytes) -> Any:
    """The value of a pickle that holds plain data.

    Raises:
        ValueError: If it is too large, is not a pickle, or holds anything else.
    """
    if len(content) > _MAX_RECORDING:
        raise ValueError("it is too large")
    # The unpickler allocates room for as many values, or bytes, as the pickle says. `genops` checks the bytes.
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name.endswith("PUT") and int(argument or 0) > len(content):
            raise ValueError(f"a pickle of {len(content)} bytes remembers {argument} values")
    try:
        return _PlainUnpickler(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, LookupError, OverflowError, TypeError) as error:
        raise ValueError(f"the pickle is broken: {error}") from error


def _summary(record: Any) -> str:
    entries = record["entries"] if isinstance(record, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it has no list of entries")
    return "; ".join(_collective(entry) for entry in entries[-_LAST_SHOWN:]) or "no collective"


def _collective(entry: Any) -> str:
    """Such as `#12 all_reduce [[3, 4]] completed`."""
    name, state, sizes = entry["profiling_name"], entry["state"], entry["input_sizes"]
    number = int(entry["collective_seq_id"])
    if not (isinstance(name, str) and isinstance(state, str) and isinstance(sizes, list)):
        raise ValueError("an entry has values of other types")
    # Only numbers are read: a list may contain itself.
    shapes = [[n for n in size if isinstance(n, int)] for size in sizes[:_TENSORS_SHOWN] if isinstance(size, list)]
    return f"#{number} {_plain(name.rpartition(':')[2])} {shapes} {_plain(state)}"


def _plain(text: str) -> str:
    return _NOT_PLAIN.sub("", text)[:_NAME_CHARS]
