"""Makes device nodes of simulated GPUs."""

from __future__ import annotations

import os
import socket
from pathlib import Path


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
    """Add a render node to a simulated device folder.

    Args:
        folder: The folder that `DIST_TESTING_GPU_NODES` names.
        minor: Number of the node.
        vendor: PCI number of the vendor; the default is AMD's.
        address: PCI address; made from the number of the node if it is "".
    """
    (folder / "dri").mkdir(exist_ok=True)
    (folder / "dri" / f"renderD{minor}").touch()
    (folder / "kfd").touch()
    device = folder / "sys" / "devices" / (address or f"0000:{minor:02x}:00.0")
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n", encoding="ascii")
    node = folder / "sys" / "class" / "drm" / f"renderD{minor}"
    node.mkdir(parents=True)
    (node / "device").symlink_to(device)
