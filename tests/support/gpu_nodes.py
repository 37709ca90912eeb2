"""Makes device nodes of simulated GPUs, and processes that keep them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import sys
from dist_testing.gpus.devices import gpus_present
from dist_testing.gpus.lease import lease_gpus
count = int(sys.argv[1])
lease = lease_gpus(count, gpus_present()[:count], limit_s=60)
print("held", flush=True)
input()
"""


def make_nodes(folder: Path, minors: Sequence[int]) -> Path:
    """Make a simulated device folder with these GPUs, and return it."""
    folder.mkdir()
    for name in ("nvidiactl", *(f"nvidia{minor}" for minor in minors)):
        (folder / name).touch()
    return folder


@contextmanager
def holder_of(count: int) -> Iterator[subprocess.Popen[str]]:
    """Another process, of the target //other:training_nccl, that keeps a lease on the first GPUs until it is killed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TEST_TARGET": "//other:training_nccl"}
    command = [sys.executable, "-c", _HOLD, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def break_node(node: Path) -> None:
    """Make a node fail to open with ENXIO, as one without a device does: a socket's file takes its place."""
    node.unlink()
    folder = os.open(node.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as device:
            # The address of a socket has room for a short path only.
            device.bind(f"/proc/self/fd/{folder}/{node.name}")
    finally:
        os.close(folder)


def make_render_node(folder: Path, minor: int, *, vendor: str = "0x1002", address: str = "") -> None:
    """Add a render node to a simulated device folder; by default AMD's, at a PCI address made from its number."""
    (folder / "dri").mkdir(exist_ok=True)
    (folder / "dri" / f"renderD{minor}").touch()
    (folder / "kfd").touch()
    device = folder / "sys" / "devices" / (address or f"0000:{minor:02x}:00.0")
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n", encoding="ascii")
    node = folder / "sys" / "class" / "drm" / f"renderD{minor}"
    node.mkdir(parents=True)
    (node / "device").symlink_to(device)
