"""Requirements on the build of torch. They are decided when the decorator is applied, as nothing changes later."""

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
    """Return whether the build of torch has this backend."""
    import torch
    import torch.distributed as dist

    if backend == "hccl":
        # The plugin for the device adds it.
        return hasattr(torch, "hpu") and torch.hpu.is_available()
    return dist.is_available() and dist.is_backend_available(backend)


def _requires(backend: str, name: str) -> Callable[[_Test], _Test]:
    return unittest.skipUnless(_has(backend), f"c10d was not compiled with the {name} backend")


def requires_gloo() -> Callable[[_Test], _Test]:
    """Skip a test or class if torch was built without gloo."""
    return _requires("gloo", "Gloo")


def requires_nccl() -> Callable[[_Test], _Test]:
    """Skip a test or class if torch was built without NCCL. It does not check for GPUs: see `skip_if_lt_x_gpu`."""
    return _requires("nccl", "NCCL")


def requires_ucc() -> Callable[[_Test], _Test]:
    """Skip a test or class if torch was built without UCC."""
    return _requires("ucc", "UCC")


def requires_mpi() -> Callable[[_Test], _Test]:
    """Skip a test or class if torch was built without MPI."""
    return _requires("mpi", "MPI")


def requires_nccl_version(version: tuple[int, ...], msg: str) -> Callable[[_Test], _Test]:
    """Skip a test or class if torch's NCCL is older than `version`, or missing. Without a GPU it never skips.

    Args:
        version: Oldest version that works, such as `(2, 27)`.
        msg: Reason why the test needs it; part of the skip reason.
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
    """Skip a test or class if torch's NCCL is older than 2.27 and so cannot shrink a group."""
    return requires_nccl_version((2, 27), "Need NCCL 2.27+ for shrink_group")


def requires_accelerator_dist_backend(backends: Sequence[str] | None = None) -> Callable[[_Test], _Test]:
    """Skip a test or class if torch has none of these backends.

    Args:
        backends: Names out of "nccl", "xccl", "hccl"; None (default) for all of them. Other names are ignored.
    """
    wanted = list(ACCELERATOR_DIST_BACKENDS if backends is None else backends)
    known = [backend for backend in wanted if backend in ACCELERATOR_DIST_BACKENDS]
    return unittest.skipUnless(
        any(_has(backend) for backend in known),
        f"No accelerator communication backend available among {wanted}",
    )
