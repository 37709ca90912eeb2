"""Starts recognised commands in a test's process: `subprocess.Popen` with a child that hands the command to the host.

    test  --- fork --->  proxy  --- request, streams --->  host  --- fork --->  runner  --->  fork server  --->  ranks
                         proxy  <------------- exit status ----------------------

The proxy is a true child of the test, so that waits, signals, pipes and asyncio work as ever. Its end, by a signal or
with the test's process, ends the runner. The host is a fresh interpreter that has torch loaded (`launch_host`).
"""

from __future__ import annotations

import inspect
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from dist_testing.adopt.launch_commands import Launch, launch_in
from dist_testing.core.process.lifetime import fork

# Arguments of Popen that the proxy cannot follow; the command then starts as without the adapter.
_UNFIT = ("preexec_fn", "pass_fds", "shell", "gids", "startupinfo")
_STATUS_BYTES = 4
# A shell's way to tell that a command could not be started.
_NO_STATUS = 1

_host: dict[str, Any] = {}
_preloaded: list[str] = []
_original = subprocess.Popen
_signature = inspect.signature(_original._execute_child)  # type: ignore[attr-defined]  # not in typeshed


def preload(modules: Sequence[str]) -> None:
    """Have the host import these modules, so that no launched rank has to."""
    _preloaded[:] = modules


def install_popen() -> None:
    """Replace `subprocess.Popen` for this process."""
    subprocess.Popen = _Popen  # type: ignore[misc]  # a class of the same kind


def close_host() -> None:
    """Restore `subprocess.Popen`, and end the host, if there is one."""
    subprocess.Popen = _original  # type: ignore[misc]
    if (host := _host.pop("process", None)) is not None:
        _host.pop("channel").close()
        host.wait()


class _Popen(_original):  # type: ignore[type-arg]  # generic only for typing
    """Hands commands that launch ranks to the host, and starts all others as ever."""

    def _execute_child(self, *arguments: Any) -> None:
        given = _signature.bind(self, *arguments).arguments
        launch = None if any(given.get(name) for name in _UNFIT) else _launch(given)
        if launch is None or given.get("uid", -1) not in (-1, None) or given.get("gid", -1) not in (-1, None):
            super()._execute_child(*arguments)  # type: ignore[misc]  # not in typeshed
            return
        channel = _channel()
        us = os.getpid()
        fds = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        streams = [fd if fd != -1 else number for number, fd in enumerate(fds)]
        self.pid = fork()
        if self.pid == 0:
            _be_proxy(channel, us, launch, given, streams)
        internal: Any = self
        internal._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        internal._close_pipe_fds(*(given[name] for name in names))


def _launch(given: dict[str, Any]) -> Launch | None:
    args, executable = given["args"], given["executable"]
    if isinstance(args, str | bytes | os.PathLike):
        args = [args]
    command = [os.fsdecode(part) for part in args]
    if executable is not None and command:
        command[0] = os.fsdecode(executable)
    return launch_in(command, _env(given))


def _env(given: dict[str, Any]) -> dict[str, str]:
    env = os.environ if given["env"] is None else given["env"]
    return {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}


def _channel() -> socket.socket:
    """Return the connection to the host; start the host first, if there is none."""
    process = _host.get("process")
    if process is None or process.poll() is not None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The host finds what this process finds, also where that is not the interpreter's own path.
        code = (
            f"import sys; own = sys.path[:]; sys.path += {sys.path!r}; from dist_testing.adopt import launch_host; "
            f"launch_host.main({theirs.fileno()}, {_preloaded!r}, own)"
        )
        with theirs:
            _host["process"] = _original(
                [sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        _host["channel"] = ours
    channel: socket.socket = _host["channel"]
    return channel


def _be_proxy(
    channel: socket.socket, parent: int, launch: Launch, given: dict[str, Any], streams: Sequence[int]
) -> NoReturn:
    status = _NO_STATUS
    try:
        watch = os.pidfd_open(parent)
        if os.getppid() != parent:
            os._exit(status)
        if given.get("start_new_session"):
            os.setsid()
        life, theirs = socket.socketpair()
        request = os.memfd_create("dist-testing-launch")
        cwd = os.getcwd() if given["cwd"] is None else os.fsdecode(given["cwd"])
        content = {"module": launch.module, "arguments": launch.arguments, "env": _env(given), "cwd": cwd}
        os.write(request, json.dumps(content).encode())
        socket.send_fds(channel, [b"launch"], [request, *streams, theirs.fileno()])
        # The other ends of the command's pipes must not stay open here.
        kept = sorted((watch, life.fileno()))
        for low, high in zip([-1, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(low + 1, high)
        ready, _, _ = select.select(kept, [], [])
        if life.fileno() in ready and len(data := life.recv(_STATUS_BYTES)) == _STATUS_BYTES:
            status = int.from_bytes(data, "big")
    except OSError as error:
        # The host is gone, or there is no room for the request.
        print(f"dist_testing: the command cannot be launched: {error}", file=sys.__stderr__)
    finally:
        os._exit(status)
