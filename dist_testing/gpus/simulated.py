"""Variables that put files in the place of hardware, for tests on machines without GPUs.

They are for tests of schedulers and of this library; nothing else should set them.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NODES_VARIABLE", "NVML_VARIABLE", "is_simulated"]

# Another folder with device nodes. What is in it is simulated: files named like NVIDIA's nodes.
NODES_VARIABLE = "DIST_TESTING_GPU_NODES"
# Another file of NVIDIA's management library.
NVML_VARIABLE = "DIST_TESTING_NVML"


def is_simulated(env: Mapping[str, str]) -> bool:
    """Whether the device nodes are files."""
    return bool(env.get(NODES_VARIABLE))
