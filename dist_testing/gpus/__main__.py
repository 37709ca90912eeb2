"""`python -m dist_testing.gpus`: the GPUs of this machine, and the processes that lease them.

Exit status: 0 if the listing was printed or written; 1 if the GPUs cannot be read, or the file cannot be written; 2 if
the command line is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dist_testing.core.ground.errors import DistTestingError
from dist_testing.gpus.devices import AMD, NVIDIA, visible_gpus
from dist_testing.gpus.gpu import NODES_VARIABLE, Gpu, GpuError, is_simulated, node_directory
from dist_testing.gpus.lease import find_holders
from dist_testing.gpus.nvml import Nvml, NvmlGpu, nvml_or_reason

_HOST_BAZELRC = "dist_testing_host.bazelrc"
_GIB = 1 << 30


def main() -> int:
    """Print the listing, or write the flags of this machine."""
    parser = argparse.ArgumentParser(prog="python -m dist_testing.gpus", description=__doc__)
    parser.add_argument(
        "--bazelrc",
        nargs="?",
        const=_HOST_BAZELRC,
        metavar="FILE",
        help=f"write Bazel's flags for this machine instead; by default to {_HOST_BAZELRC} in the workspace, which "
        "dist_testing.bazelrc imports",
    )
    options = parser.parse_args()
    try:
        if options.bazelrc is None:
            print("\n".join(listing()))
        else:
            _write(Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", ""), options.bazelrc))
    except DistTestingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _write(file: Path) -> None:
    text = bazelrc()
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpuError(
            f"{file} cannot be written: {error.strerror}.\n"
            "It gets Bazel's flags for the GPUs of this machine.\n"
            "Name another file: --bazelrc=FILE."
        ) from error
    print(f"{file}:\n{text}", end="")


def listing(env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the lines of the listing."""
    found = NVIDIA.find(env)
    present = found.gpus
    simulated = f" (simulated: {NODES_VARIABLE} is set)" if is_simulated(env) else ""
    lines = [f"{len(present)} GPU(s) by the device nodes in {node_directory(env)}{simulated}"]
    lines += [f"left out: {lack}" for lack in found.left_out]
    visible = visible_gpus(present, env)
    if visible.remark:
        lines += [visible.remark, visible.way_out]
    if NVIDIA.visible_variable in env:
        numbers = ", ".join(str(gpu.index) for gpu in visible.gpus) or "none"
        lines.append(f"this process may use {len(visible.gpus)}: {numbers}")
    nvml = nvml_or_reason(env)
    with contextlib.nullcontext() if isinstance(nvml, str) else contextlib.closing(nvml):
        shown = {} if isinstance(nvml, str) else {gpu.minor: gpu for gpu in nvml.gpus()}
        lines += _about_library(nvml)
        holders = find_holders(present)
        for gpu in present:
            model, arch = gpu.model or "model unknown", gpu.arch or "architecture unknown"
            lines += ["", f"GPU {gpu.index}: {model}, {arch}, {gpu.uuid or 'UUID unknown'}, {gpu.node}"]
            lines.append(f"  {_lease(gpu, holders)}")
            if not isinstance(nvml, str) and gpu.minor in shown:
                lines += _from_library(nvml, shown[gpu.minor])
    lines += _amd(env)
    if not visible.gpus:
        return [*lines, "", "for Bazel: this machine has no GPU to promise; leave //dist_testing/config:gpus at auto"]
    return [
        *lines,
        "",
        f"for Bazel: --bazelrc writes `test --local_resources=gpu={len(visible.gpus)}` to a file that",
        "dist_testing.bazelrc imports, so that as many tests run at once as the GPUs allow",
    ]


def bazelrc(env: Mapping[str, str] = os.environ) -> str:
    """Return Bazel's flags for this machine: as many GPU tests at once as it has GPUs."""
    counts = [len(visible_gpus(vendor.find(env).gpus, env, vendor).gpus) for vendor in (NVIDIA, AMD)]
    flags = f"test --local_resources=gpu={max(counts)}\n" if any(counts) else "# No GPUs.\n"
    return f"# Made by dist_testing's //tools/gpu for one machine. Make it again when its GPUs change.\n{flags}"


def _about_library(nvml: Nvml | str) -> list[str]:
    if isinstance(nvml, str):
        return [f"memory is unknown: no management library ({nvml})"]
    lost = f"the driver has lost {nvml.lost_count} GPU(s); it does not report which"
    return [f"driver {nvml.driver_version()}", *([lost] if nvml.lost_count else [])]


def _from_library(nvml: Nvml, gpu: NvmlGpu) -> list[str]:
    lines = []
    try:
        memory = nvml.memory(gpu)
    except GpuError as error:
        return [f"  {line}" for line in str(error).splitlines()]
    if memory is not None:
        lines.append(f"  memory: {memory.used / _GIB:.1f} of {memory.total / _GIB:.1f} GiB in use")
    for pid, used in (nvml.processes(gpu) or {}).items():
        size = "size unknown" if used is None else f"{used / _GIB:.1f} GiB"
        lines.append(f"  process {pid}: {size}")
    return lines


def _amd(env: Mapping[str, str]) -> list[str]:
    try:
        found = AMD.find(env)
    except GpuError as error:
        return ["", *str(error).splitlines()]
    if not found.gpus and not found.left_out:
        return []
    holders = find_holders(found.gpus)
    return [
        "",
        AMD.remark,
        *(f"left out: {lack}" for lack in found.left_out),
        *(f"AMD GPU {gpu.index}: {gpu.node}, {_lease(gpu, holders)}" for gpu in found.gpus),
    ]


def _lease(gpu: Gpu, holders: Mapping[Gpu, str]) -> str:
    if gpu in holders:
        return f"leased by {holders[gpu]}"
    try:
        # `find_holders` has looked at the locks of all GPUs that can be opened.
        os.close(os.open(gpu.node, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    return "free: not leased"


if __name__ == "__main__":
    sys.exit(main())
