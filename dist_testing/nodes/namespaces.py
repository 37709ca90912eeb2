"""Makes simulated nodes, and moves a process into one.

    node 0            node 1            ...
    +----------+      +----------+
    |   eth0   |      |   eth0   |      a network and a UTS namespace each
    +----|-----+      +----|-----+
         |                 |
    +----|-----------------|-----+
    |   port0    bridge   port1  |      a network namespace of its own
    +----------------------------+

Only descriptors and processes hold the namespaces. When the last of them is gone, for any reason, the kernel removes
namespaces and interfaces, so nothing can stay behind. No process is in the namespace of the bridge, so a descriptor
holds it. A user without privileges gets a user namespace around all of them.

Every function raises `OSError` if the kernel refuses, or forbids it to this user.

This module imports nothing that has to be installed, because `missing_permission` loads it in a bare interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dist_testing.nodes.netlink import Netlink

# The interface of each node to the others, and the bits of the network part of its address.
INTERFACE = "eth0"
_NETWORK_BITS = 16
# <linux/sched.h>
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x40000000
# <sys/mount.h>
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
# <sys/prctl.h>
_PR_SET_DUMPABLE = 4

_BRIDGE = "switch"
# Where the C library looks up names first.
_HOSTS = "/etc/hosts"
# Size of the answer of the process that makes the nodes: an error with a short text.
_ANSWER_BYTES = 4096
# Limit for the attempt in a bare interpreter. Seconds.
_ATTEMPT_LIMIT_S = 30.0
_ATTEMPT = """
import sys
sys.path.append(sys.argv[1])
from dist_testing.nodes.namespaces import attempt
attempt()
"""

_libc: Any = ctypes.CDLL(None, use_errno=True)


def node_address(node: int) -> str:
    """Return the IPv4 address of a node. Only the world's own namespaces have it."""
    return f"10.0.0.{node + 1}"


def node_name(node: int) -> str:
    """Return the host name of a node."""
    return f"node{node}"


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a world, as descriptors of this process."""

    bridge: int  # network namespace of the bridge; keep it open as long as the nodes are to reach each other
    user: int | None  # user namespace around them; None if this process may make network namespaces itself
    network: tuple[int, ...]  # network namespace of each node
    uts: tuple[int, ...]  # UTS namespace of each node, which holds its host name
    store: int | None  # socket that listens on node 0; None if none was asked for

    def of(self, node: int) -> tuple[int, ...]:
        """Return the descriptors that `enter` needs for a node."""
        user = () if self.user is None else (self.user,)
        return (*user, self.network[node], self.uts[node])

    @property
    def fds(self) -> tuple[int, ...]:
        """All descriptors. Without them, and without a process in it, a node is gone."""
        return tuple(fd for fd in (self.bridge, self.user, *self.network, *self.uts, self.store) if fd is not None)


def make_nodes(count: int, store_port: int, backlog: int) -> Nodes:
    """Make nodes that a bridge connects.

    A child process makes them, so this process stays in its own namespaces. It must be fit to be forked.
    A socket listens at `store_port` of node 0; 0 for no socket.
    """
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        pid = os.fork()
        if pid == 0:
            _make_and_send(far, count, store_port, backlog)
        far.close()
        answer, fds, _, _ = socket.recv_fds(near, _ANSWER_BYTES, 2 * count + 3)
        os.waitpid(pid, 0)
    error = json.loads(answer) if answer else [0, "the process that makes them has ended"]
    if error is not None:
        raise OSError(*error)
    for fd in fds:
        os.set_inheritable(fd, False)
    bridge, *rest = fds
    store = rest.pop() if store_port else None
    user = rest.pop() if len(rest) > 2 * count else None
    return Nodes(bridge, user, tuple(rest[:count]), tuple(rest[count:]), store)


def enter(fds: Sequence[int]) -> None:
    """Move this process, which must have one thread, into a node. Close the descriptors, those of `Nodes.of`."""
    for fd in fds:
        # The kernel knows from the descriptor which kind of namespace it is.
        _call(_libc.setns, fd, 0)
        os.close(fd)
    # A process that joins a user namespace loses this, and with it the runner's view of its stacks and memory.
    _call(_libc.prctl, _PR_SET_DUMPABLE, 1, 0, 0, 0)


def enter_network(fd: int) -> None:
    """Move this thread into the network namespace of a descriptor, which stays open."""
    _call(_libc.setns, fd, _CLONE_NEWNET)


def port_name(node: int) -> str:
    """Return the name of the bridge's port to a node."""
    return f"port{node}"


def write_hosts(path: Path, count: int) -> None:
    """Write the names and addresses of nodes to a file, and those that this machine knows."""
    # The first line with a name counts.
    named = "".join(f"{node_address(node)} {node_name(node)}\n" for node in range(count))
    path.write_bytes(named.encode() + Path(_HOSTS).read_bytes())


def name_nodes(hosts: Path) -> None:
    """Show a file of `write_hosts` as /etc/hosts to this process and those that it starts. Call it after `enter`."""
    _call(_libc.unshare, _CLONE_NEWNS)
    # Other processes must not see the next mount.
    _call(_libc.mount, b"none", b"/", None, _MS_REC | _MS_PRIVATE, None, making="private mounts")
    _call(_libc.mount, bytes(hosts), _HOSTS.encode(), None, _MS_BIND, None, making=f"a mount at {_HOSTS}")


@functools.cache
def missing_permission() -> str:
    """Return why this process cannot make nodes; "" if it can. Tries it once, in another process."""
    command = [sys.executable, "-I", "-S", "-c", _ATTEMPT, str(Path(__file__).resolve().parents[2])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ATTEMPT_LIMIT_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"an attempt has not ended after {_ATTEMPT_LIMIT_S:.0f} s"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"an attempt ended with status {done.returncode}"


def attempt() -> NoReturn:
    """Make two nodes, enter one, and end this process: status 0, or 1 after a line that says why it failed."""
    try:
        nodes = make_nodes(2, 0, 0)
        enter(nodes.of(1))
        name_nodes(Path(_HOSTS))
    except OSError as error:
        print(error.strerror)
        sys.exit(1)
    sys.exit(0)


def _make_and_send(channel: socket.socket, count: int, store_port: int, backlog: int) -> NoReturn:
    """Make the nodes in this process, a child, send their descriptors to the parent, and end."""
    fds: list[int] = []
    error: list[int | str] | None = None
    try:
        fds = _make(count, store_port, backlog)
    except OSError as refused:
        error = [refused.errno or 0, refused.strerror or str(refused)]
    except BaseException as unexpected:
        # JSON needs up to six bytes for a character.
        error = [0, f"{type(unexpected).__name__}: {unexpected}"[: _ANSWER_BYTES // 8]]
    finally:
        socket.send_fds(channel, [json.dumps(error).encode()], fds)
        os._exit(0)


def _make(count: int, store_port: int, backlog: int) -> list[int]:
    user = _separate()
    bridge = _open_namespace("net")
    network, uts, store = [], [], []
    with Netlink() as on_bridge:
        on_bridge.add_bridge(_BRIDGE)
        for node in range(count):
            _call(_libc.unshare, _CLONE_NEWNET | _CLONE_NEWUTS, making="a node")
            network.append(_open_namespace("net"))
            uts.append(_open_namespace("uts"))
            socket.sethostname(node_name(node))
            with Netlink() as on_node:
                on_node.switch_on("lo")
                on_node.add_pair(INTERFACE, port_name(node), bridge)
                on_node.add_address(INTERFACE, node_address(node), _NETWORK_BITS)
            if node == 0 and store_port:
                store.append(socket.create_server((node_address(0), store_port), backlog=backlog).detach())
        _call(_libc.setns, bridge, 0)
        for node in range(count):
            on_bridge.add_port(port_name(node), _BRIDGE)
    return [bridge, *network, *uts, *([] if user is None else [user]), *store]


def _separate() -> int | None:
    """Leave the machine's network. Return a descriptor of the user namespace if that needed one."""
    uid, gid = os.getuid(), os.getgid()
    with contextlib.suppress(OSError):
        _call(_libc.unshare, _CLONE_NEWNET)
        # CAP_SYS_ADMIN alone can make it, and not change it; and faults need packet sockets.
        with Netlink() as own:
            own.switch_on("lo")
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
        return None
    _call(_libc.unshare, _CLONE_NEWUSER | _CLONE_NEWNET, making="a user namespace")
    # The user keeps the own number: a rank sees the same owners of files as the runner.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    return _open_namespace("user")


def _open_namespace(kind: str) -> int:
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def _call(function: Any, *arguments: int | bytes | None, making: str = "") -> None:
    if function(*(ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments)):
        number = ctypes.get_errno()
        text = os.strerror(number)
        raise OSError(number, f"the kernel does not let this user make {making}: {text}" if making else text)
