"""Runs on a worker and examines it. Standard library only."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

# Ranks of a large world on one machine.
_PROCESSES = 32
# With less, NCCL's ranks do not have enough shared memory. Bytes; containers often have 64 MB.
_SHARED_BYTES = 1 << 30
_OPEN_FILES = 1024
# Limit for an answer on the loopback interface or from a child. Seconds.
_ANSWER_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one property of the pool."""

    name: str  # the property
    verdict: str  # "ok"; "FAILED" if the library needs it; "note" if only some tests need it
    text: str  # what was observed


def table(findings: Sequence[Finding]) -> str:
    """Return the findings as a Markdown table."""
    rows = ["| property | verdict | seen |", "|---|---|---|"]
    rows += [f"| {one.name} | {one.verdict} | {one.text.replace('|', '/')} |" for one in findings]
    return "\n".join(rows) + "\n"


class Missing(Exception):
    """The pool lacks a feature that the library needs."""


class Noted(Exception):
    """The pool lacks a feature that only some tests need."""


def check_protocol() -> str:
    """Bazel's variables: without them there is no deadline and no report."""
    names = ("TEST_TMPDIR", "TEST_SRCDIR", "TEST_TIMEOUT", "XML_OUTPUT_FILE", "TEST_UNDECLARED_OUTPUTS_DIR")
    if missing := [name for name in names if not os.environ.get(name)]:
        raise Missing(f"not set: {', '.join(missing)}")
    return f"TEST_TIMEOUT={os.environ['TEST_TIMEOUT']}"


def check_outputs() -> str:
    """Undeclared outputs: the logs of ranks go there."""
    folder = Path(os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR", "/nonexistent"))
    _write(folder / "written.txt")
    return "can be written"


def check_tmp() -> str:
    """Scratch space: per test, and /tmp for sockets, whose paths must be short."""
    for folder in (os.environ.get("TEST_TMPDIR", "/nonexistent"), tempfile.gettempdir()):
        _write(Path(folder) / f"pool-check-{os.getpid()}", remove=True)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "locked"
        with path.open("w") as one, path.open("w") as other:
            fcntl.flock(one, fcntl.LOCK_EX)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                raise Missing("a file below /tmp can be locked twice, so flock does not work there")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/socket")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    return f"can be written, locks and sockets work, {free / 1e9:.1f} GB free"


def check_shared_memory() -> str:
    """/dev/shm: NCCL and torch's data loaders exchange data there."""
    try:
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            file.write(b"x")
        size = shutil.disk_usage("/dev/shm").total
    except OSError as error:
        raise Noted(f"/dev/shm: {error.strerror}; NCCL and data loaders need it") from error
    if size < _SHARED_BYTES:
        raise Noted(f"{size / 1e6:.0f} MB; NCCL and data loaders may need more (docker: --shm-size)")
    return f"{size / 1e9:.1f} GB"


def check_loopback() -> str:
    """The loopback interface: ranks connect to each other there."""
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client.settimeout(_ANSWER_LIMIT_S)
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server:
            server.sendall(b"x")
            if client.recv(1) != b"x":
                raise Missing("what is sent to 127.0.0.1 does not arrive")
    return "127.0.0.1 works"


def check_host_name() -> str:
    """The host's own name: gloo resolves it unless an interface is given."""
    name = socket.gethostname()
    try:
        return f"{name} is {socket.gethostbyname(name)}"
    except OSError as error:
        raise Noted(
            f"the host name '{name}' cannot be resolved ({error.strerror}); the library does not need it"
        ) from error


def check_processes() -> str:
    """Processes: one for each rank, all at once, watched and ended by number."""
    children: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(_PROCESSES):
            children.append(subprocess.Popen(["sleep", "60"]))
        if ended := sum(child.poll() is not None for child in children):
            raise Missing(f"{ended} of {_PROCESSES} processes have ended, so they did not run at once")
        for child in children:
            pidfd = os.pidfd_open(child.pid)
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                if not select.select([pidfd], [], [], _ANSWER_LIMIT_S)[0]:
                    raise Missing(f"process {child.pid} does not end after SIGKILL")
            finally:
                os.close(pidfd)
    except OSError as error:
        raise Missing(f"{len(children)} of {_PROCESSES} processes could be started and watched: {error}") from error
    finally:
        for child in children:
            child.kill()
            child.wait()
    return f"{_PROCESSES} at once, watched and ended by pidfd"


def check_proc() -> str:
    """/proc: the library finds leftover processes there."""
    try:
        mine = Path(f"/proc/{os.getpid()}/stat").read_text(encoding="utf-8")
        Path("/proc/self/environ").read_bytes()
    except OSError as error:
        raise Missing(f"/proc cannot be read: {error}") from error
    if not mine.startswith(f"{os.getpid()} "):
        raise Missing("/proc belongs to another process namespace")
    return "exists, and belongs to this process namespace"


def check_cpus() -> str:
    """CPUs: the ranks share them."""
    limit, _, period = _cgroup("cpu.max").partition(" ")
    quota = f", of which the container may use {int(limit) / int(period):.1f}" if limit.isdecimal() else ""
    return f"{len(os.sched_getaffinity(0))}{quota}"


def check_memory() -> str:
    """Memory: every rank loads torch."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup("memory.max")
    quota = f", of which the container may use {int(limit) / 1e9:.1f} GB" if limit.isdecimal() else ""
    return f"{total / 1e9:.1f} GB{quota}"


def _cgroup(name: str) -> str:
    with contextlib.suppress(OSError):
        return Path("/sys/fs/cgroup", name).read_text(encoding="utf-8").strip()
    return ""


def check_files() -> str:
    """Open files: a pipe and a socket for each pair of ranks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _OPEN_FILES:
        raise Noted(f"{soft} (up to {hard}); worlds of many ranks need more")
    return f"{soft} (up to {hard})"


def check_user() -> str:
    """The user: some programs refuse to run as root, or as a user without a name."""
    return f"{os.getuid()}, home {os.environ.get('HOME', 'not set')}"


def check_network_namespaces() -> str:
    """Network namespaces: simulated nodes need one each."""
    command = ["unshare", "--user", "--map-root-user", "--net", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Noted("no program `unshare`; simulated nodes need it") from error
    if done.returncode:
        raise Noted(f"{done.stderr.strip() or 'refused'}; simulated nodes need them")
    return "can be created"


def check_environment() -> str:
    """The worker's own variables: they may differ between workers, and the cache key does not have them."""
    ours = re.compile(r"TEST_|BAZEL|RUNFILES|JAVA_|PYTHON|GTEST_|XML_|COVERAGE|EXPERIMENTAL_|BASH_FUNC|RUN_UNDER")
    usual = {"PATH", "PWD", "OLDPWD", "SHLVL", "TZ", "USER", "LOGNAME", "_", "HOME", "LC_ALL", "LANG", "TMPDIR"}
    foreign = sorted(name for name in os.environ if name not in usual and not ours.match(name))
    if foreign:
        raise Noted(f"tests see these variables of the worker: {', '.join(foreign)}")
    return "tests see no variable of the worker"


def check_gpus(wanted: int) -> str:
    """GPUs: as many as the pool declares."""
    # The same way as dist_testing/gpus, whose import needs torch.
    folder = os.environ.get("DIST_TESTING_GPU_NODES")
    nodes = [name for name in os.listdir(folder or "/dev") if re.fullmatch(r"nvidia[0-9]+", name)]
    kind = "simulated GPU(s)" if folder else "GPU(s)"
    if len(nodes) < wanted:
        raise Missing(f"{len(nodes)} {kind}, and {wanted} are declared: the pool breaks its promise")
    return f"{len(nodes)} {kind}, {wanted} declared"


def look_around(gpus: int) -> Iterator[Finding]:
    """Check all properties of a pool that declares a number of GPUs."""
    checks: dict[str, Callable[[], str]] = {
        "test protocol": check_protocol,
        "undeclared outputs": check_outputs,
        "writable tmp": check_tmp,
        "loopback network": check_loopback,
        "processes": check_processes,
        "/proc": check_proc,
        "gpus": lambda: check_gpus(gpus),
        "/dev/shm": check_shared_memory,
        "host name": check_host_name,
        "cpus": check_cpus,
        "memory": check_memory,
        "open files": check_files,
        "user": check_user,
        "network namespaces": check_network_namespaces,
        "environment": check_environment,
    }
    for name, check in checks.items():
        try:
            yield Finding(name, "ok", check())
        except Missing as reason:
            yield Finding(name, "FAILED", str(reason))
        except Noted as reason:
            yield Finding(name, "note", str(reason))
        except OSError as error:
            yield Finding(name, "FAILED", f"{type(error).__name__}: {error}")


def report(findings: Sequence[Finding]) -> int:
    """Write the table, for people and for programs, and Bazel's test.xml; return the exit status of the test."""
    sys.stdout.write(table(findings))
    with contextlib.suppress(OSError):
        # If the folder cannot be written, the table says so.
        folder = Path(os.environ["TEST_UNDECLARED_OUTPUTS_DIR"])
        (folder / "pool.md").write_text(table(findings), encoding="utf-8")
        (folder / "pool.json").write_text(json.dumps([asdict(one) for one in findings], indent=2), encoding="utf-8")
    failed = sum(one.verdict == "FAILED" for one in findings)
    suite = ElementTree.Element("testsuite", name="pool_check", tests=str(len(findings)), failures=str(failed))
    for one in findings:
        case = ElementTree.SubElement(suite, "testcase", classname="pool_check", name=one.name)
        if one.verdict == "FAILED":
            ElementTree.SubElement(case, "failure", message=one.text)
        else:
            ElementTree.SubElement(case, "system-out").text = one.text
    if xml := os.environ.get("XML_OUTPUT_FILE"):
        ElementTree.ElementTree(suite).write(xml, encoding="utf-8", xml_declaration=True)
    if failed:
        sys.stdout.write(
            f"{failed} of {len(findings)} properties that the library needs are missing (FAILED above).\n"
            "The workers of this pool are not set up for the tests.\n"
            "Change them, or send the tests to another pool (docs/remote.md).\n"
        )
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine this worker, or tell which worker has taken a test that none should take."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("what", choices=("inside", "no_worker"))
    parser.add_argument("--gpus", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.what == "inside":
        return report(list(look_around(options.gpus)))
    # On a cluster of tools/rbe, which has several workers on one host, also the worker.
    sys.stdout.write(
        f"This test requires a property with a value that no worker has, and it ran on {socket.gethostname()} "
        f"{os.environ.get('DIST_TESTING_RBE_WORKER', '')}.\n"
        "The executor ignores the property, so tests for GPUs would go to any worker.\n"
        "Make its scheduler match the property (docs/remote.md).\n"
    )
    return 1


def _write(path: Path, *, remove: bool = False) -> None:
    try:
        path.write_text("x", encoding="utf-8")
        if remove:
            path.unlink()
    except OSError as error:
        raise Missing(f"'{path.parent}' cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
