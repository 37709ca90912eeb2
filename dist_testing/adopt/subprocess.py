"""A plugin of pytest for suites that start torchrun or accelerate: `pytest -p dist_testing.adopt.subprocess`.

`subprocess` and `asyncio` start such a command as before, with the same arguments, environment, folder and streams. But
its process is forked from one that has torch loaded, and its ranks run on the engine, with a verdict over all of them.

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
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import pytest

from dist_testing.core.process.lifetime import fork

_INI = "dist_preload"
_ACCELERATE = "accelerate.commands.accelerate_cli"
# A command's name -> the module whose main program it is.
_COMMANDS = {
    "torchrun": "torch.distributed.run",
    "accelerate": _ACCELERATE,
    "accelerate-launch": "accelerate.commands.launch",
}
_MODULES = (*_COMMANDS.values(), "torch.distributed.launch")
# Flags of the interpreter that change nothing for ranks: their output has no buffer in any case.
_FLAGS = ("-u",)
# Arguments of Popen that the proxy cannot follow; the command then starts as without the adapter.
_UNFIT = ("preexec_fn", "pass_fds", "shell", "gids", "startupinfo")
_STATUS_BYTES = 4
# A shell's way to tell that a command could not be started.
_NO_STATUS = 1

_host: dict[str, Any] = {}
_preloaded: list[str] = []
_original = subprocess.Popen
_signature = inspect.signature(_original._execute_child)  # type: ignore[attr-defined]  # not in typeshed


class Launch(NamedTuple):
    """A command that launches ranks: the module of the launcher, and its `sys.argv`."""

    module: str
    arguments: tuple[str, ...]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini option with the modules that all launched scripts import."""
    parser.addini(_INI, "modules that the process imports from which launched ranks are forked", type="args")


def pytest_configure(config: pytest.Config) -> None:
    """Replace `subprocess.Popen`, before tests are collected."""
    _preloaded[:] = config.getini(_INI)
    subprocess.Popen = _Popen  # type: ignore[misc]  # a class of the same kind


def pytest_unconfigure() -> None:
    """Restore `subprocess.Popen`, and end the process from which the launched ranks were forked."""
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
        begun, begins = os.pipe()
        self.pid = fork()
        if self.pid == 0:
            _be_proxy(channel, us, launch, given, streams)
        internal: Any = self
        internal._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        internal._close_pipe_fds(*(given[name] for name in names))
        # The proxy closes the other end when it is in its group, which the test may signal at once.
        os.close(begins)
        os.read(begun, 1)
        os.close(begun)


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
        here = [entry for entry in sys.path if isinstance(entry, str)]
        code = (
            f"import sys; own = sys.path[:]; sys.path[:] = [*filter(None, own), *{here!r}]; "
            f"from dist_testing.adopt import launch_host; launch_host.main({theirs.fileno()}, {_preloaded!r}, own)"
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
        if (group := given.get("process_group", -1)) != -1:
            os.setpgid(0, group)
        life, theirs = socket.socketpair()
        request = os.memfd_create("dist-testing-launch")
        cwd = os.getcwd() if given["cwd"] is None else os.fsdecode(given["cwd"])
        content = {"module": launch.module, "arguments": launch.arguments, "env": _env(given), "cwd": cwd}
        content["umask"] = given.get("umask", -1)
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


def launch_in(command: Sequence[str], env: Mapping[str, str]) -> Launch | None:
    """Return the launch that a command line means; None for any other command. The PATH of `env` finds programs."""
    if not command:
        return None
    program, *rest = command
    name = os.path.basename(program)
    module, arguments = _COMMANDS.get(name, ""), (program, *rest)
    if name.startswith("python"):
        while rest and rest[0] in _FLAGS:
            rest = rest[1:]
        if len(rest) > 1 and rest[0] == "-m":
            module, arguments = rest[1], tuple(rest[1:])
    # The launcher of another installation would run another Python.
    if module not in _MODULES or not _is_beside_this_python(program, env):
        return None
    if module == _ACCELERATE and arguments[1:2] != ("launch",):
        return None
    return Launch(module, arguments)


def _is_beside_this_python(program: str, env: Mapping[str, str]) -> bool:
    """Return whether a program belongs to the Python installation or the virtual environment of this process."""
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        return False
    # Not resolved: the Python of a virtual environment is a link to one outside.
    return os.path.abspath(os.path.dirname(found)) == os.path.dirname(os.path.abspath(sys.executable))
