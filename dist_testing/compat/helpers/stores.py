"""Stores and gloo devices that a test makes itself."""

from __future__ import annotations

import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dist_testing.core.ground.errors import UsageError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

_LOOPBACK = "127.0.0.1"


def create_tcp_store(
    addr: str = "localhost",
    world_size: int = 1,
    is_master: bool = True,
    timeout: timedelta = timedelta(minutes=5),
    wait_for_workers: bool = True,
    jit_class: bool = False,
    use_libuv: bool = True,
) -> TCPStore:
    """Make a TCP store with its server in this process.

    The port is chosen and bound once, so no other process can take it.

    Args:
        addr: Address that the server listens on; default: loopback only.
        world_size: Clients that the store waits for if `wait_for_workers`, this process included.
        is_master: Must be True: a client needs the port of a server, which the server's `port` says.
        timeout: Limit of each operation of the store; default: 5 minutes.
        wait_for_workers: Whether to return only when all clients have connected.
        jit_class: Must be False: torch has no TorchScript class any more.
        use_libuv: Whether the server is torch's libuv server.

    Returns:
        The store; its attribute `port` is the server's port.

    Raises:
        UsageError: If `is_master` is False, or `jit_class` is True.
    """
    from torch._C._distributed_c10d import TCPStore

    if not is_master:
        raise UsageError(
            "create_tcp_store(is_master=False): there is no port to connect to.\n"
            "The function makes a server, on a port that is known only afterwards.\n"
            "For a client write TCPStore(addr, server.port, ...), with the port of the server."
        )
    if jit_class:
        raise UsageError(
            "create_tcp_store(jit_class=True): torch has no TorchScript class of TCP stores any more.\n"
            "Only releases of torch that are too old for this library had one.\n"
            "Leave jit_class out; the function then returns a torch.distributed.TCPStore."
        )
    listening = socket.create_server((_LOOPBACK if addr == "localhost" else addr, 0))
    return TCPStore(
        addr,
        listening.getsockname()[1],
        world_size,
        True,
        timeout=timeout,
        wait_for_workers=wait_for_workers,
        # From here on the store owns the descriptor.
        master_listen_fd=listening.detach(),
        use_libuv=use_libuv,
    )


def create_device(interface: str | None = None, lazy_init: bool = False) -> Any:
    """Make a gloo device for the options of a gloo group.

    Args:
        interface: Name of a network interface; None, or any name on Windows, for loopback.
        lazy_init: Whether ranks connect only when they send the first message.

    Returns:
        The device, a `ProcessGroupGloo.Device`.
    """
    import torch.distributed as dist

    gloo: Any = dist.ProcessGroupGloo
    if interface is None or sys.platform == "win32":
        return gloo.create_device(hostname=_LOOPBACK, lazy_init=lazy_init)
    return gloo.create_device(interface=interface, lazy_init=lazy_init)
