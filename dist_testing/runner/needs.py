"""What a case needs of the machine, checked before a rank starts: one decision, one reason."""

from __future__ import annotations

import importlib

from dist_testing.gpus.discover import gpu_count
from dist_testing.skips import TEST_SKIPS, gpus_reason
from dist_testing.spec import Spec

__all__ = ["missing_need"]


def missing_need(spec: Spec, world_size: int) -> str | None:
    """Why a world of this size cannot run here; None if it can.

    Args:
        spec: What the target asks for.
        world_size: Ranks of the case.
    """
    backend = spec.backend
    if (gpus := spec.gpus(world_size)) and (found := gpu_count()) < gpus:
        return f"{gpus_reason(gpus)} (found {found})"

    if backend.register_module:
        try:
            importlib.import_module(backend.register_module)
        except ImportError as error:
            return f"{TEST_SKIPS['backend_unavailable'].message} ({backend.register_module}: {error})"

    import torch.distributed as dist

    if not dist.is_available():
        return TEST_SKIPS["backend_unavailable"].message
    if not dist.is_backend_available(backend.torch_backend):
        if backend.torch_backend == "nccl":
            return TEST_SKIPS["nccl"].message
        return f"{TEST_SKIPS['backend_unavailable'].message} (torch was built without {backend.torch_backend})"
    return None
