"""Which transports TensorPipe may use here."""

from __future__ import annotations

import functools
import subprocess

__all__ = ["has_efa", "tp_transports"]


@functools.cache
def has_efa() -> bool:
    """Whether libfabric finds an Elastic Fabric Adapter (`fi_info -p efa -t FI_EP_RDM`); asked once per process."""
    try:
        found = subprocess.run(
            ["fi_info", "-p", "efa", "-t", "FI_EP_RDM"],
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return False
    return found.returncode == 0


def tp_transports() -> list[str] | None:
    """For `_transports` of TensorPipe's options: without InfiniBand where there is EFA, which it takes it for."""
    return ["shm", "uv"] if has_efa() else None
