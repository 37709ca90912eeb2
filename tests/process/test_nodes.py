"""Worlds whose ranks are on simulated nodes: real namespaces, real connections between them."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from dist_testing.core.ground.record import LinkEnds
from dist_testing.core.process import wire
from dist_testing.core.process.refusal import refusal
from dist_testing.nodes.faults import LINK_ANSWERS, LINK_ORDERS, LinkFault
from dist_testing.nodes.links import CUT
from dist_testing.nodes.namespaces import Nodes, make_nodes
from dist_testing.nodes.place import start_link_process
from tests.support.children import run_cases, start_pytest, write_file
from tests.support.cluster import needs_nodes
from tests.support.starter import LIMIT_S, Starter, wait_ended

_WORLDS = """
    import os
    import socket
    import subprocess
    import sys
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed(world_size=4, nodes=2, isolation="{isolation}")

    def test_places(world):
        assert (world.node, world.local_rank) == divmod(world.rank, 2)
        assert socket.gethostname() == f"node{{world.node}}"
        assert [name for _, name in socket.if_nameindex()] == ["lo", "eth0"]
        found = [os.environ[name] for name in ("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        assert found == [str(world.node), "2", str(world.local_rank), "2"]
        assert os.environ["MASTER_ADDR"] == "10.0.0.1"

    def test_names_have_addresses(world):
        assert [socket.gethostbyname(f"node{{node}}") for node in range(2)] == ["10.0.0.1", "10.0.0.2"]
        assert socket.gethostbyname(socket.gethostname()) == f"10.0.0.{{world.node + 1}}"
        # A program that the rank starts; and the names that the machine knows are still known.
        code = "import socket; print(socket.gethostbyname('node1'), socket.gethostbyname('localhost'))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["10.0.0.2", "127.0.0.1"]

    def test_nodes_reach_each_other(world):
        if world.rank == 0 and "{isolation}" != "pool":
            world.faults.wire(loss=0.01)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4
        names = [None] * world.size
        dist.all_gather_object(names, socket.gethostname())
        assert names == ["node0", "node0", "node1", "node1"]

    def test_loopback_belongs_to_the_node(world):
        if world.rank == 0:
            server = socket.create_server(("127.0.0.1", 4321))
        world.barrier()
        if world.node == 0:
            socket.create_connection(("127.0.0.1", 4321), timeout=60).close()
        else:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", 4321), timeout=60)
        world.barrier()
        if world.rank == 0:
            server.close()
"""


@needs_nodes
@pytest.mark.parametrize("isolation", ["fork", "pool", "spawn"])
def test_ranks_are_on_their_nodes(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, code that mixes up RANK and LOCAL_RANK, or needs the loopback of another node, passes here."""
    # Fresh interpreters take seconds each.
    only = ["-k", "reach"] if isolation == "spawn" else []
    ended = run_cases(starter, tmp_path, _WORLDS.format(isolation=isolation), *only)
    assert set(ended.outcomes().values()) == {"PASSED"}, ended.log
    assert len(ended.outcomes()) == (1 if only else 4), ended.log


_FAULTS = """
    import os
    import signal
    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed(world_size=4, nodes=2, timeout=100)

    def test_killed(world):
        if world.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    @pytest.mark.distributed(nodes=1)
    def test_without_nodes(world):
        assert (world.node, world.local_rank) == (0, world.rank)
"""


@needs_nodes
def test_a_fault_on_a_node_has_the_same_verdict(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a fault on a node costs the deadline, or the report names another rank."""
    ended = run_cases(starter, tmp_path, _FAULTS)
    ended.check(failed="test_killed", passed="test_without_nodes")
    assert "rank 3 was killed by SIGKILL (9)" in ended.log


_USER = """
    import ctypes

    # From here on, this process and its children have only these capabilities, also as root after an exec.
    # Linux demands one of root, and of root alone, for a user namespace: CAP_SETFCAP.
    held = int(next(line for line in open("/proc/self/status") if line.startswith("CapPrm:")).split()[1], 16)
    numbers = [number for number in [31, {more}] if held >> number & 1]
    kept = sum(1 << number for number in numbers)
    libc = ctypes.CDLL(None, use_errno=True)
    if kept:
        assert libc.prctl(28, 3, 0, 0, 0) == 0  # PR_SET_SECUREBITS: SECBIT_NOROOT, locked
    assert libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(kept, kept, kept)) == 0
    for number in numbers:
        assert libc.prctl(47, 2, number, 0, 0) == 0  # PR_CAP_AMBIENT_RAISE
"""
_ONE = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed(world_size=2, nodes=2)
    def test_one(world):
        dist.barrier()
        if world.rank == 0:
            world.faults.wire(delay_ms=1)
        dist.barrier()
"""


@needs_nodes
@pytest.mark.parametrize("more", ["", "21", "12, 21"], ids=["none", "SYS_ADMIN", "NET_ADMIN and SYS_ADMIN"])
def test_a_user_without_privileges_has_nodes(starter: Starter, tmp_path: Path, more: str) -> None:
    """If this fails, only root can test more than one node, and root in a container cannot."""
    write_file(tmp_path, "conftest.py", _USER.format(more=more))
    ended = run_cases(starter, tmp_path, _ONE)
    assert ended.outcomes() == {"test_one": "PASSED"}, ended.log


_FORBIDDEN = """
    import ctypes
    import platform
    import struct

    # A filter of system calls for this process and its children: unshare() fails with EPERM.
    number = {"x86_64": 272, "aarch64": 97}[platform.machine()]
    instructions = [
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x15, 0, 1, number),  # the next line if it is equal, else the one after it
        (0x06, 0, 0, 0x00050001),  # fail with error 1
        (0x06, 0, 0, 0x7FFF0000),  # allow
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in instructions))
    program = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP, with a filter
"""


@pytest.mark.parametrize(("option", "outcome"), [("skip", "skipped"), ("fail", "failed")])
def test_without_permission_the_reason_is_told(starter: Starter, tmp_path: Path, option: str, outcome: str) -> None:
    """If this fails, a container without namespaces gives a failure without a cause, or a run that tested nothing."""
    write_file(tmp_path, "conftest.py", _FORBIDDEN)
    ended = run_cases(starter, tmp_path, _ONE, f"--dist-on-missing={option}")
    assert f"1 {outcome}" in ended.log, ended.log
    assert "Need network namespaces for simulated nodes" in ended.log, ended.log
    assert "the kernel does not let this user make" in ended.log, ended.log


_NO_PACKET_SOCKETS = _FORBIDDEN.replace('{"x86_64": 272, "aarch64": 97}', '{"x86_64": 41, "aarch64": 198}').replace(
    """(0x15, 0, 1, number),  # the next line if it is equal, else the one after it
""",
    """(0x15, 0, 3, number),  # socket()
        (0x20, 0, 0, 16),  # load its first argument
        (0x15, 0, 1, 17),  # AF_PACKET
""",
)
_REFUSED = """
    import pytest
    import torch.distributed as dist
    from dist_testing.core.ground.errors import UsageError

    @pytest.mark.distributed(world_size=2, nodes=2)
    def test_one(world):
        if world.rank == 0:
            with pytest.raises(UsageError) as caught:
                world.faults.partition(0)
            first, cause, way_out = str(caught.value).splitlines()
            assert "the network cannot be changed: [Errno 1]" in first
            assert "CAP_NET_RAW" in cause
            assert "cap-add" in way_out
        dist.barrier()
"""


@needs_nodes
def test_without_packet_sockets_the_network_stays_whole(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a container that forbids packet sockets cuts the nodes off for good, or gives no reason."""
    write_file(tmp_path, "conftest.py", _NO_PACKET_SOCKETS)
    ended = run_cases(starter, tmp_path, _REFUSED)
    assert ended.outcomes() == {"test_one": "PASSED"}, ended.log


_CASES = int(os.environ.get("DIST_TESTING_STRESS_CASES", "12"))
_MANY = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed(world_size=2, nodes=2)
    @pytest.mark.parametrize("number", range({count}))
    def test_one(world, number):
        dist.barrier()
        if number == 0 and world.rank == 0:
            world.faults.partition(0)
"""
# In a user namespace, the kernel counts its networks, also those that no process and no name holds any more.
_COUNTED = """
    import ctypes
    import os
    import sys
    import time

    libc = ctypes.CDLL(None, use_errno=True)
    user, network = 0x10000000, 0x40000000
    uid, gid = os.getuid(), os.getgid()
    assert libc.unshare(user) == 0, os.strerror(ctypes.get_errno())
    for name, text in (("setgroups", "deny"), ("uid_map", f"{{uid}} {{uid}} 1"), ("gid_map", f"{{gid}} {{gid}} 1")):
        with open(f"/proc/self/{{name}}", "w") as file:
            file.write(text)

    import pytest

    code = pytest.main(["-q", "-p", "dist_testing.core.pytest.plugin", "test_many.py"])
    with open("/proc/sys/user/max_net_namespaces", "w") as file:
        file.write("1")
    until_s = time.monotonic() + {limit_s}
    # The kernel removes a network some time after the last process has left it. While a connection of it repeats what
    # no node gets, it keeps the network: for 100 s and more.
    while libc.unshare(network):
        assert time.monotonic() < until_s, "a network is left: " + os.strerror(ctypes.get_errno())
        time.sleep(0.05)
    sys.exit(code)
"""


@needs_nodes
def test_many_worlds_leave_no_network(starter: Starter, tmp_path: Path) -> None:
    """If this fails, each case with nodes leaves a network in the kernel, until it refuses new ones."""
    devices = socket.if_nameindex()
    write_file(tmp_path, "test_many.py", _MANY.format(count=_CASES))
    write_file(tmp_path, "counted.py", _COUNTED.format(limit_s=LIMIT_S / 2))
    child = starter.start(["counted.py"], tmp_path)
    assert child.wait(LIMIT_S + _CASES) == 0, child.log
    assert f"{_CASES} passed" in child.log
    assert socket.if_nameindex() == devices


_WAITING = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed(world_size=2, nodes=2, timeout=300)
    def test_waits(world):
        if world.rank == 0:
            world.faults.wire(delay_ms=1)
            print("the wire is there", flush=True)
        world.store.get("never")
"""


@needs_nodes
@pytest.mark.parametrize("killed", ["runner", "fork server"])
def test_nothing_of_a_wire_outlives_what_dies(starter: Starter, tmp_path: Path, killed: str) -> None:
    """If this fails, a process that carries packets, and with it a network, is left on the machine."""
    write_file(tmp_path, "test_cases.py", _WAITING)
    child = start_pytest(starter, tmp_path, "-s", "test_cases.py")
    until_s = time.monotonic() + LIMIT_S
    while "the wire is there" not in child.log:
        assert time.monotonic() < until_s, child.log
        time.sleep(0.05)
    below = psutil.Process(child.pid).children(recursive=True)
    # The fork server, two ranks, and the process that carries the packets.
    assert len(below) == 4, below
    victim = child.pid if killed == "runner" else next(one.pid for one in below if one.ppid() == child.pid)
    os.kill(victim, signal.SIGKILL)
    child.wait()
    assert wait_ended([one.pid for one in below], LIMIT_S)


@needs_nodes
def test_a_limit_of_open_files_is_told_as_such() -> None:
    """If this fails, who needs `ulimit -n` reads of an interface that is missing, or of permissions."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    nodes: Nodes | None = None
    told: list[str] = []
    try:
        while nodes is None or told[-1]:
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(told) + 3, limits[1]))
            try:
                # With so many, the process that carries the packets needs more than this one.
                nodes = nodes or make_nodes(16, 4711, 1)
                told.append(_refusal_of_a_cut(nodes))
            except OSError as error:
                told.append(refusal(error))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in nodes.fds if nodes else ():
            os.close(fd)
    # The first lines: of the nodes, and of their links.
    assert {text.partition("\n")[0].rpartition(": ")[2] for text in told[:-1]} == {"[Errno 24] Too many open files."}
    assert all("Raise the limit with `ulimit -n`" in text for text in told[:-1])
    assert "world.faults: the network cannot be changed" in told[-2]


def _refusal_of_a_cut(nodes: Nodes) -> str:
    """Let a process carry the packets of nodes, and return why it cannot; "" if it can."""
    pid, control = start_link_process(nodes)
    with control:
        wire.send(control, LINK_ORDERS, LinkFault((LinkEnds(0, 1),), CUT))
        received = wire.receive(control, LINK_ANSWERS)
    os.waitpid(pid, 0)
    assert received is not None
    return received[0].refusal
