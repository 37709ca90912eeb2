"""Requirements on the build of torch, on the platform and on installed packages.

Most are decided when the decorator is applied, as nothing changes later.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import unittest
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.cuda import nccl

from dist_testing.compat.requirements.requirement import note_required, requirement
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.skips import TEST_SKIPS

__all__ = ["import_transformers_or_skip", "requires_accelerator_dist_backend", "requires_gloo", "requires_mpi"]
__all__ += ["requires_nccl", "requires_nccl_shrink", "requires_nccl_version", "requires_ucc", "requires_xccl"]
__all__ += ["skip_if_rocm_arch_multiprocess", "skip_if_rocm_multiprocess", "skip_if_rocm_ver_atleast_multiprocess"]
__all__ += ["skip_if_rocm_ver_lessthan_multiprocess", "skip_if_win32"]

# torch's own suites set it.
_WITH_ROCM = "PYTORCH_TEST_WITH_ROCM"
# A function, a method or a class.
_Test = TypeVar("_Test", bound=Callable[..., Any])

ACCELERATOR_DIST_BACKENDS = ["nccl", "xccl", "hccl"]


def with_parentheses(decorator: _Test) -> _Test:
    """Make a decorator refuse a function or a class where its own arguments belong."""

    @functools.wraps(decorator)
    def wrapper(*given: Any, **named: Any) -> Any:
        if given and hasattr(given[0], "__qualname__"):
            raise UsageError(
                f"@{decorator.__name__}: got the function {given[0].__qualname__} instead of arguments.\n"
                "The decorator needs parentheses, even without arguments.\n"
                f"Write @{decorator.__name__}(), with its arguments if it has any."
            )
        return decorator(*given, **named)

    return cast(_Test, wrapper)


def is_rocm() -> bool:
    """Return whether torch was built for ROCm."""
    return torch.version.hip is not None


def skip_if_rocm_multiprocess(func: _Test) -> _Test:
    """Skip a test or class if torch was built for ROCm, or if `PYTORCH_TEST_WITH_ROCM=1` says that it counts as it."""
    return unittest.skipIf(is_rocm() or os.environ.get(_WITH_ROCM) == "1", TEST_SKIPS["skipIfRocm"].message)(func)


@with_parentheses
def skip_if_rocm_arch_multiprocess(arch: Sequence[str]) -> Callable[[_Test], _Test]:
    """Skip a test or class on these ROCm architectures.

    Args:
        arch: Names of architectures, such as "gfx942".
    """
    if not is_rocm():
        return lambda test: test

    def decide(environment: Mapping[str, str]) -> str | None:
        found = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0]
        return f"skip_if_rocm_arch_multiprocess: test skipped on {found}" if found in arch else None

    return requirement(decide, on_rank_only=True)


@with_parentheses
def skip_if_rocm_ver_lessthan_multiprocess(version: Sequence[int] | None = None) -> Callable[[_Test], _Test]:
    """Skip a test or class on a ROCm that is older than `version`.

    Args:
        version: Such as `(6, 2)`; None (default) to skip on every ROCm.
    """
    found = rocm_version()
    is_older = found is not None and (version is None or found < tuple(version))
    return unittest.skipIf(
        is_older,
        f"skip_if_rocm_ver_lessthan_multiprocess: ROCm {found} is available but {version} required",
    )


@with_parentheses
def skip_if_rocm_ver_atleast_multiprocess(version: Sequence[int] | None = None) -> Callable[[_Test], _Test]:
    """Skip a test or class on ROCm from `version` on, because it is known to fail there.

    Args:
        version: Such as `(7, 0)`; None (default) to skip on none.
    """
    found = rocm_version()
    is_newer = found is not None and version is not None and found >= tuple(version)
    return unittest.skipIf(
        is_newer,
        f"skip_if_rocm_ver_atleast_multiprocess: known failure on ROCm {found} (>= {version})",
    )


def rocm_version() -> tuple[int, ...] | None:
    """Return the version of ROCm that torch was built for; None for another build."""
    # A version such as 6.2.41133-dd7f95766.
    return tuple(int(part) for part in str(torch.version.hip).split("-")[0].split(".")) if is_rocm() else None


@with_parentheses
def skip_if_win32() -> Callable[[_Test], _Test]:
    """Skip a test or class on Windows."""
    return unittest.skipIf(sys.platform == "win32", "This unit test case is not supported on Windows platform")


@with_parentheses
def import_transformers_or_skip() -> Callable[[_Test], _Test]:
    """Skip a test if the package transformers or its BERT classes cannot be imported."""
    text = TEST_SKIPS["importerror"].message

    def decide_by_import(environment: Mapping[str, str]) -> str | None:
        try:
            transformers = importlib.import_module("transformers")
            for name in ("AutoModelForMaskedLM", "BertConfig"):
                getattr(transformers, name)
        except (ImportError, AttributeError) as error:
            return f"{text} ({error})"
        return None

    def decorator(func: _Test) -> _Test:
        is_missing = requirement(lambda environment: None if find_spec("transformers") else f"{text} (transformers)")
        return is_missing(requirement(decide_by_import, on_rank_only=True)(func))

    return decorator


def _has(backend: str) -> bool:
    if backend == "hccl":
        # The plugin for the device adds it.
        return hasattr(torch, "hpu") and torch.hpu.is_available()
    return dist.is_available() and dist.is_backend_available(backend)


def _requires(backend: str, name: str) -> Callable[[_Test], _Test]:
    def decorator(test: _Test) -> _Test:
        skipping = unittest.skipUnless(_has(backend), f"c10d was not compiled with the {name} backend")(test)
        note_required(skipping, backend=backend)
        return skipping

    return decorator


@with_parentheses
def requires_gloo() -> Callable[[_Test], _Test]:
    """Skip a test or class if torch was built without gloo."""
    return _requires("gloo", "Gloo")


@with_parentheses
def requires_nccl() -> Callable[[_Test], _Test]:
    """Skip a test or class if torch was built without NCCL. It does not check for GPUs: see `skip_if_lt_x_gpu`."""
    return _requires("nccl", "NCCL")


@with_parentheses
def requires_ucc() -> Callable[[_Test], _Test]:
    """Skip a test or class if torch was built without UCC."""
    return _requires("ucc", "UCC")


@with_parentheses
def requires_xccl() -> Callable[[_Test], _Test]:
    """Skip a test or class if torch was built without XCCL, the backend of Intel's GPUs."""
    return _requires("xccl", "XCCL")


@with_parentheses
def requires_mpi() -> Callable[[_Test], _Test]:
    """Skip a test or class if torch was built without MPI."""
    return _requires("mpi", "MPI")


def requires_nccl_version(version: tuple[int, ...], msg: str) -> Callable[[_Test], _Test]:
    """Skip a test or class if torch's NCCL is older than `version`, or missing. Without a GPU it never skips.

    Args:
        version: Oldest version that works, such as `(2, 27)`.
        msg: Reason why the test needs it; part of the skip reason.
    """
    if not torch.cuda.device_count():
        return lambda test: test
    if not _has("nccl"):
        return requires_nccl()
    found = nccl.version()  # type: ignore[no-untyped-call]
    return unittest.skipIf(
        found < version,
        f"Requires NCCL version greater than or equal to: {version}, found: {found}, reason: {msg}",
    )


@with_parentheses
def requires_nccl_shrink() -> Callable[[_Test], _Test]:
    """Skip a test or class if torch's NCCL is older than 2.27 and so cannot shrink a group."""
    return requires_nccl_version((2, 27), "Need NCCL 2.27+ for shrink_group")


@with_parentheses
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
