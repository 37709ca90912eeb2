"""Leases: no GPU for two processes at once, no wait for ever, and no lease that outlives its processes."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
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
from dist_testing.gpus.lease import Place, find_holders, is_locked, lease_gpus
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
    # In the order of the machine, not in which they became free: rank 0 has the first GPU in every run.
    with lease_gpus(_GPUS, pool, limit_s=_LIMIT_S, on_wait=lambda _: holder.kill()) as lease:
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


def test_a_released_lease_is_free_also_for_a_process_that_inherited_it(pool: tuple[Gpu, ...]) -> None:
    """A daemon that a test leaves behind must not keep the GPU."""
    lease = lease_gpus(1, pool[:1], limit_s=_LIMIT_S)
    copy = os.dup(lease.fds[0])
    lease.release()
    lease_gpus(1, pool[:1], limit_s=_LIMIT_S).release()
    os.close(copy)


@pytest.mark.parametrize(
    ("missing", "count", "said", "way_out"),
    [
        ("", 9, r"9 GPU\(s\) were asked for, and this process may use 8", "Ask for fewer"),
        ("nvidiactl", 1, "nvidiactl: No such file or directory", "the driver's control node included"),
        ("nvidia0", 8, r"nvidia0. cannot be used: No such file or directory", "Mount all of them"),
    ],
)
def test_what_no_wait_can_give_is_an_error_at_once(
    pool: tuple[Gpu, ...], nodes: Path, missing: str, count: int, said: str, way_out: str
) -> None:
    """If this fails, a wait for a GPU that does not exist, or for a node that a container lacks, takes the limit."""
    if missing:
        (nodes / missing).unlink()
    with pytest.raises(GpuError, match=said) as error:
        lease_gpus(count, pool, limit_s=_LIMIT_S)
    assert way_out in str(error.value)


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
        "from dist_testing.gpus.__main__ import listing\n"
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


def test_a_hidden_holder_of_another_user_is_told_as_such() -> None:
    """If this fails, a user of a machine with hidepid reads that the process has ended, and looks for another one."""
    mount = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    hidden = ["unshare", "--pid", "--fork", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c"]
    leave = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)"
    if shutil.which("unshare") is None or subprocess.run([*hidden, leave], check=False, timeout=60).returncode:
        pytest.skip("only where root may mount /proc and become another user")
    load = "import subprocess; from dist_testing.gpus.lease import _holder"
    script = f"{load}; pid = subprocess.Popen(['sleep', '999']).pid; {leave}; print(_holder(pid))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.check_output([*hidden, script], text=True, timeout=_LIMIT_S, env=env)
    assert re.fullmatch(r"process \d+ \(of another user\)\n", told)


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
