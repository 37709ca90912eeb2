"""Which back end lacks which collective, and which has which feature."""

from __future__ import annotations

from typing import ClassVar

__all__ = ["DistTestCases"]


class DistTestCases:
    """Tables for tests that run on many back ends.

    Attributes:
        skip_collective: Collective to the back ends that lack it.
        backend_feature: Feature to the back ends that have it.
    """

    skip_collective: ClassVar[dict[str, set[str]]] = {
        "allgather_coalesced": {"nccl", "mpi", "ucc", "xccl"},
        "reduce": set(),
        "sendrecv anysource": {"nccl", "ucc", "xccl"},
        "cpu barrier": {"nccl", "ucc", "xccl"},
    }
    backend_feature: ClassVar[dict[str, set[str]]] = {
        "gpu": {"nccl", "gloo", "ucc"},
        "cuda": {"nccl", "gloo", "ucc"},
        "ddp": {"nccl", "gloo", "ucc"},
        "subgroup": {"nccl", "gloo", "ucc"},
        "plugin": set(),
        "hpu": {"hccl"},
        "xpu": {"xccl"},
    }
