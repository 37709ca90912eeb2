"""Requirements on what torch was built with. Decided when the decorator is applied: nothing of it changes later."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = [
    "ACCELERATOR_DIST_BACKENDS",
    "requires_accelerator_dist_backend",
    "requires_gloo",
    "requires_mpi",
    "requires_nccl",
    "requires_nccl_shrink",
    "requires_nccl_version",
    "requires_ucc",
]

# A function, a method or a class.
_Test = TypeVar("_Test", bound=Callable[..., Any])

ACCELERATOR_DIST_BACKENDS = ["nccl", "xccl", "hccl"]


def _has(backend: str) -> bool:
    """Whether a process group of this backend can be made, as far as the build of torch decides it."""
    import torch
    import torch.distributed as dist

    if backend == "hccl":
        # Comes with the plugin that brings the device.
        return hasattr(torch, "hpu") and torch.hpu.is_available()
    return dist.is_available() and dist.is_backend_available(backend)


def _requires(backend: str, name: str) -> Callable[[_Test], _Test]:
    return unittest.skipUnless(_has(backend), f"c10d was not compiled with the {name} backend")


def requires_gloo() -> Callable[[_Test], _Test]:
    """Skip if torch has no gloo."""
    return _requires("gloo", "Gloo")


def requires_nccl() -> Callable[[_Test], _Test]:
    """Skip if torch has no NCCL. Says nothing about GPUs: see `skip_if_lt_x_gpu`."""
    return _requires("nccl", "NCCL")


def requires_ucc() -> Callable[[_Test], _Test]:
    """Skip if torch has no UCC."""
    return _requires("ucc", "UCC")


def requires_mpi() -> Callable[[_Test], _Test]:
    """Skip if torch has no MPI."""
    return _requires("mpi", "MPI")


def requires_nccl_version(version: tuple[int, ...], msg: str) -> Callable[[_Test], _Test]:
    """Skip if torch's NCCL is older than `version`. Without a GPU nothing is skipped: other requirements say that.

    Args:
        version: Such as `(2, 27)`.
        msg: What the newer version is needed for.
    """
    import torch

    if not torch.cuda.device_count():
        return lambda test: test
    if not _has("nccl"):
        return requires_nccl()
    from torch.cuda import nccl

    found = nccl.version()  # type: ignore[no-untyped-call]
    return unittest.skipIf(
        found < version,
        f"Requires NCCL version greater than or equal to: {version}, found: {found}, reason: {msg}",
    )


def requires_nccl_shrink() -> Callable[[_Test], _Test]:
    """Skip if torch's NCCL cannot shrink a group (older than 2.27)."""
    return requires_nccl_version((2, 27), "Need NCCL 2.27+ for shrink_group")


def requires_accelerator_dist_backend(backends: Sequence[str] | None = None) -> Callable[[_Test], _Test]:
    """Skip if torch has none of these backends.

    Args:
        backends: Of `ACCELERATOR_DIST_BACKENDS`; None for all of those.
    """
    wanted = list(ACCELERATOR_DIST_BACKENDS if backends is None else backends)
    known = [backend for backend in wanted if backend in ACCELERATOR_DIST_BACKENDS]
    return unittest.skipUnless(
        any(_has(backend) for backend in known),
        f"No accelerator communication backend available among {wanted}",
    )
