"""Leases: no GPU for two processes at once, no wait for ever, and no lease that outlives its processes."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from dist_testing.gpus.devices import gpus_present
from dist_testing.gpus.gpu import NODES_VARIABLE, Gpu, GpuError, LeaseTimeoutError
from dist_testing.gpus.holders import find_holders, is_locked
from dist_testing.gpus.lease import lease_gpus
from dist_testing.gpus.queue import Place
from tests.support.forks import forked
from tests.support.gpu_nodes import break_node, holder_of, make_nodes

_CROWD = 500
_GPUS = 8
# A limit for tests that hang; no test asserts times. Seconds.
_LIMIT_S = 120.0


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A simulated device folder."""
    folder = make_nodes(tmp_path / "nodes", range(_GPUS))
    monkeypatch.setenv(NODES_VARIABLE, str(folder))
    return folder


@pytest.fixture
def pool(nodes: Path) -> tuple[Gpu, ...]:
    """Its GPUs."""
    return gpus_present()


def test_a_crowd_that_crashes_at_random_is_served_in_order_and_leaves_all_gpus_free(
    nodes: Path, pool: tuple[Gpu, ...], tmp_path: Path
) -> None:
    """Two tests on one GPU make each other fail, and the machine loses a GPU that a dead test keeps."""
    log = tmp_path / "log"
    command = [sys.executable, "-m", "tests.support.gpu_crowd", str(_CROWD), str(time.time_ns()), str(log)]
    subprocess.run(
        command, check=True, timeout=_LIMIT_S + _CROWD, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )

    events: dict[str, dict[int, tuple[int, list[int]]]] = defaultdict(dict)
    for line in log.read_text().splitlines():
        event, number, stamp, *values = line.split()
        events[event][int(number)] = (int(stamp), [int(value) for value in values])
    assert len(events["asked"]) > _CROWD // 2
    assert events["got"]

    held: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for who, (at, gpus) in events["got"].items():
        assert len(gpus) == events["asked"][who][1][0], f"{who} got a part of what it asked for"
        for gpu in gpus:
            # The end is unknown if it was killed at a random moment; the start of the next owner is its upper bound.
            end = events["releases"].get(who, (at, []))[0]
            held[gpu].append((at, end, who))
    for gpu, spans in held.items():
        spans.sort()
        for (_, end, one), (begin, _, other) in itertools.pairwise(spans):
            assert end <= begin, f"GPU {gpu} was leased by {one} and {other} at once"

    served = {who: events["served"][who][0] for who in events["got"]}
    for who, (place_at, _) in events["queued"].items():
        passed_by = [
            other
            for other, served_at in served.items()
            if who in served and events["asked"][other][0] > place_at and served_at < served[who]
        ]
        assert not passed_by, f"{who} was in the queue before {passed_by} came, who were served first"

    assert not find_holders(pool)
    with lease_gpus(_GPUS, pool, limit_s=_LIMIT_S) as lease:
        assert lease.gpus == pool


def test_the_lease_of_a_killed_process_goes_on_while_a_child_has_it(pool: tuple[Gpu, ...]) -> None:
    """Ranks that outlive a killed runner for a moment still use its GPUs."""
    gone_read, gone_write = os.pipe()
    held_read, held_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        lease_gpus(1, pool[:1], limit_s=_LIMIT_S)
        if os.fork() == 0:
            os.write(held_write, str(os.getpid()).encode())
            os.close(gone_write)
            # Until the test closes the other end.
            os.read(gone_read, 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert os.read(held_read, 20)
    with pytest.raises(LeaseTimeoutError):
        lease_gpus(1, pool[:1], limit_s=0)
    os.close(gone_write)
    lease_gpus(1, pool[:1], limit_s=_LIMIT_S).release()
    os.close(gone_read)
    for fd in (held_read, held_write):
        os.close(fd)


@pytest.fixture
def holder(pool: tuple[Gpu, ...]) -> Iterator[subprocess.Popen[str]]:
    """Another process that keeps a lease on the first two GPUs."""
    with holder_of(2) as process:
        yield process


def test_a_holder_that_never_lets_go_is_named_at_the_deadline(
    pool: tuple[Gpu, ...], holder: subprocess.Popen[str]
) -> None:
    """With only "timed out", users would have to search the process list of a shared machine."""
    waits: list[str] = []
    with pytest.raises(LeaseTimeoutError) as error:
        lease_gpus(_GPUS, pool, limit_s=0.2, on_wait=waits.append)
    expected = f"GPU 0, 1: process {holder.pid} (//other:training_nccl)"
    assert expected in str(error.value)
    assert "8 GPU(s) could not be had within 1 s: 6 of them were free" in str(error.value)
    assert len(waits) == 1
    assert expected in waits[0]
    # The GPUs that it had taken meanwhile are free again, and so is the queue.
    with lease_gpus(_GPUS - 2, pool, limit_s=_LIMIT_S) as lease:
        assert [gpu.index for gpu in lease.gpus] == [2, 3, 4, 5, 6, 7]


def test_a_lease_that_waits_gets_the_gpus_when_their_holder_dies(
    pool: tuple[Gpu, ...], holder: subprocess.Popen[str]
) -> None:
    """The machine would be blocked until an administrator looks."""
    with lease_gpus(_GPUS, pool, limit_s=_LIMIT_S, on_wait=lambda _: holder.kill()) as lease:
        # In the order of the machine, not in which they became free: rank 0 has the first GPU in every run.
        assert lease.gpus == pool


def test_a_change_of_the_reason_to_wait_is_reported(pool: tuple[Gpu, ...], holder: subprocess.Popen[str]) -> None:
    """The first line names the processes before it; once they have left, users need the name of the holder."""
    before_us = Place.take(pool[0].control)
    steps = iter([before_us.leave, holder.kill])
    waits: list[str] = []

    def go_on(line: str) -> None:
        waits.append(line)
        next(steps)()

    with lease_gpus(1, pool[:1], limit_s=_LIMIT_S, on_wait=go_on):
        assert [line.partition(";")[0] for line in waits] == [
            "waiting for 1 of 1 GPU(s) behind other processes",
            "waiting for 1 of 1 GPU(s)",
        ]


def test_a_process_that_asks_for_all_is_not_overtaken(pool: tuple[Gpu, ...]) -> None:
    """On a busy machine a small test is always ready; the large one would wait for ever."""
    first = lease_gpus(1, pool, limit_s=_LIMIT_S)
    waiting_read, waiting_write = os.pipe()
    order_read, order_write = os.pipe()

    def start(count: int) -> int:
        pid = os.fork()
        if pid == 0:
            os.close(first.fds[0])
            lease = lease_gpus(count, pool, limit_s=_LIMIT_S, on_wait=lambda _: _tell(waiting_write, "w"))
            _tell(order_write, str(count))
            lease.release()
            os._exit(0)
        assert os.read(waiting_read, 1) == b"w"
        return pid

    pids = [start(_GPUS), start(1), start(2)]
    first.release()
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    assert os.read(order_read, 9) == b"812"
    for fd in (waiting_read, waiting_write, order_read, order_write):
        os.close(fd)


def _tell(fd: int, text: str) -> None:
    os.write(fd, text.encode())


def test_a_released_lease_is_free_also_for_a_process_that_inherited_it(pool: tuple[Gpu, ...]) -> None:
    """A daemon that a test leaves behind must not keep the GPU."""
    lease = lease_gpus(1, pool[:1], limit_s=_LIMIT_S)
    copy = os.dup(lease.fds[0])
    lease.release()
    lease_gpus(1, pool[:1], limit_s=_LIMIT_S).release()
    os.close(copy)


def test_a_request_for_more_gpus_than_the_pool_has_is_an_error_at_once(pool: tuple[Gpu, ...]) -> None:
    """A wait for a ninth GPU of eight would end at the test's timeout."""
    with pytest.raises(GpuError, match=r"9 GPU\(s\) were asked for, and this process may use 8"):
        lease_gpus(9, pool, limit_s=_LIMIT_S)


def test_a_missing_control_node_is_named(pool: tuple[Gpu, ...], nodes: Path) -> None:
    """Some containers have only half of the device nodes."""
    (nodes / "nvidiactl").unlink()
    with pytest.raises(GpuError, match="nvidiactl: No such file or directory") as error:
        lease_gpus(1, pool, limit_s=_LIMIT_S)
    assert "the driver's control node included" in str(error.value)


def test_a_broken_node_is_skipped_if_the_other_nodes_suffice(pool: tuple[Gpu, ...], nodes: Path) -> None:
    """One GPU off the bus would stop all tests of a machine with eight."""
    break_node(nodes / "nvidia0")
    with lease_gpus(_GPUS - 1, pool, limit_s=_LIMIT_S) as lease:
        assert lease.gpus == pool[1:]
        waits: list[str] = []
        with pytest.raises(LeaseTimeoutError, match=r"GPU 0 .*nvidia0. cannot be used: No such device or address"):
            lease_gpus(1, pool, limit_s=0, on_wait=waits.append)
        assert "nvidia0) cannot be used: No such device or address" in waits[0]
    with pytest.raises(GpuError, match=r"8 GPU\(s\) were asked for, and 7 of 8 can be leased") as error:
        lease_gpus(_GPUS, pool, limit_s=_LIMIT_S)
    assert "nvidia0) cannot be used" in str(error.value)
    assert "See the kernel's log" in str(error.value)


def test_missing_nodes_are_named_at_once(pool: tuple[Gpu, ...], nodes: Path) -> None:
    """A wait for a missing node would never end."""
    (nodes / "nvidia0").unlink()
    with pytest.raises(GpuError, match=r"nvidia0. cannot be used: No such file or directory") as error:
        lease_gpus(1, pool[:1], limit_s=_LIMIT_S)
    assert "Mount all of them" in str(error.value)


def test_waits_that_were_given_up_leave_nothing_behind(pool: tuple[Gpu, ...], holder: subprocess.Popen[str]) -> None:
    """A waiting thread would take the GPU after the case gave up, and a child forked later would keep it."""
    before = (threading.active_count(), len(os.listdir("/proc/self/fd")))
    for _ in range(3):
        with pytest.raises(LeaseTimeoutError):
            lease_gpus(2, pool[:2], limit_s=0.1)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
    with forked():
        holder.kill()
        holder.wait()
        lease_gpus(2, pool[:2], limit_s=_LIMIT_S).release()


def test_a_child_that_was_forked_during_a_wait_keeps_no_lock(
    pool: tuple[Gpu, ...], holder: subprocess.Popen[str]
) -> None:
    """It inherits the place in the queue and the GPUs taken so far, and would keep both."""
    pids: list[int] = []
    with contextlib.ExitStack() as children:
        with pytest.raises(LeaseTimeoutError):
            lease_gpus(3, pool[:3], limit_s=0.1, on_wait=lambda _: pids.append(children.enter_context(forked())))
        lease_gpus(1, pool[2:3], limit_s=_LIMIT_S).release()
        holder.kill()
        holder.wait()
        lease_gpus(3, pool[:3], limit_s=_LIMIT_S).release()


def test_a_holder_in_another_pid_namespace_is_seen_to_be_there(pool: tuple[Gpu, ...]) -> None:
    """Every sandboxed test of Bazel has its own namespace; "not leased" would be wrong."""
    isolated = ["unshare", "--pid", "--fork", "--user", "--map-root-user", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*isolated, "true"], check=False, timeout=60).returncode:
        pytest.skip("only where a user may make PID namespaces (unshare, kernel.unprivileged_userns_clone)")
    # The holder runs outside; the listing runs inside, as a test in a sandbox does.
    script = (
        "from dist_testing.gpus.listing import listing\n"
        "from dist_testing.gpus.devices import gpus_present\n"
        "from dist_testing.gpus.lease import lease_gpus\n"
        "print('\\n'.join(listing()))\n"
        "lease_gpus(1, gpus_present()[:1], limit_s=0)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with lease_gpus(1, pool[:1], limit_s=0):
        inside = subprocess.run(
            [*isolated, sys.executable, "-c", script],
            check=False,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env=env,
        )
    first, rest = inside.stdout.split("GPU 1:", 1)
    assert "leased by a process that cannot be seen from here (another PID namespace" in first, inside
    assert "free: not leased" in rest
    assert "GPU 0: a process that cannot be seen from here" in inside.stderr


def test_a_foreign_lock_counts_as_a_lease(pool: tuple[Gpu, ...]) -> None:
    """Other tools lock the nodes in the same way, such as `flock /dev/nvidia0 command`."""
    with pool[0].node.open("rb") as node:
        fcntl.flock(node, fcntl.LOCK_EX)
        with lease_gpus(1, pool, limit_s=_LIMIT_S) as lease:
            assert lease.gpus == (pool[1],)


def test_a_look_at_a_lease_takes_none(pool: tuple[Gpu, ...]) -> None:
    """All waiting processes look; each would name another as the holder, and leak descriptors in a long wait."""
    node = pool[0].node
    before = len(os.listdir("/proc/self/fd"))
    with node.open("rb") as another_look:
        fcntl.flock(another_look, fcntl.LOCK_SH)
        assert not is_locked(node)
        fcntl.flock(another_look, fcntl.LOCK_EX)
        assert is_locked(node)
    assert len(os.listdir("/proc/self/fd")) == before
