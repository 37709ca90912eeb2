"""GPUs, leases and who has them, for people who look at a machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from dist_testing.gpus.devices import Gpu, gpus_present, node_directory, visible_gpus
from dist_testing.gpus.holders import find_holders
from dist_testing.gpus.nvml import Nvml, NvmlGpu, open_nvml
from dist_testing.gpus.simulated import NODES_VARIABLE

__all__ = ["listing"]

_GIB = 1 << 30


def listing(env: Mapping[str, str] = os.environ) -> list[str]:
    """What there is, line by line.

    Raises:
        GpuError: If the device nodes cannot be read, or a GPU is gone.
    """
    present = gpus_present(env)
    simulated = f" (simulated: {NODES_VARIABLE} is set)" if env.get(NODES_VARIABLE) else ""
    lines = [f"{len(present)} GPU(s) by the device nodes in {node_directory(env)}{simulated}"]
    visible = visible_gpus(present, env)
    if visible.remark:
        lines.append(visible.remark)
    if "CUDA_VISIBLE_DEVICES" in env:
        lines.append(f"this process may use {len(visible.gpus)}: {_numbers(visible.gpus)}")
    with open_nvml(env) as nvml:
        told = {gpu.minor: gpu for gpu in nvml.gpus()} if nvml is not None else {}
        if nvml is None:
            lines.append("the management library is not there: nothing is known of memory and connections")
        else:
            lines.append(f"driver {nvml.driver_version()}")
        holders = find_holders(present)
        for gpu in present:
            lines += [
                "",
                f"GPU {gpu.index}: {gpu.model or 'model not told'}, {gpu.uuid or 'UUID not told'}, {gpu.node}",
            ]
            lines.append(f"  leased by {holders[gpu]}" if gpu in holders else "  free: nobody has leased it")
            if nvml is not None and gpu.minor in told:
                lines += _from_library(nvml, told[gpu.minor])
        if nvml is not None and len(told) > 1:
            lines += ["", "between GPUs:", *_connections(nvml, [gpu for gpu in present if gpu.minor in told], told)]
    lines += ["", *_for_bazel(len(visible.gpus))]
    return lines


def _from_library(nvml: Nvml, gpu: NvmlGpu) -> list[str]:
    lines = []
    if (memory := nvml.memory(gpu)) is not None:
        lines.append(f"  memory: {memory.used / _GIB:.1f} of {memory.total / _GIB:.1f} GiB in use")
    for process in nvml.processes(gpu):
        size = "size not told" if process.used is None else f"{process.used / _GIB:.1f} GiB"
        lines.append(f"  process {process.pid}: {size}")
    return lines


def _connections(nvml: Nvml, gpus: Sequence[Gpu], told: Mapping[int, NvmlGpu]) -> list[str]:
    return [
        f"  {one.index} - {other.index}: {nvml.connection(told[one.minor], told[other.minor]) or 'not told'}"
        for number, one in enumerate(gpus)
        for other in gpus[number + 1 :]
    ]


def _for_bazel(count: int) -> list[str]:
    if not count:
        return ["for Bazel: this machine has no GPU to promise; leave //dist_testing/config:gpus at auto"]
    return [
        "for user.bazelrc, so that Bazel counts them too:",
        f"  test --local_resources=gpu={count}",
        f"  build:gpu --@dist_testing//dist_testing/config:gpus={count}",
    ]


def _numbers(gpus: Sequence[Gpu]) -> str:
    return ", ".join(str(gpu.index) for gpu in gpus) or "none"
