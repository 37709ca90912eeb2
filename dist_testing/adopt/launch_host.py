"""The host: a fresh interpreter with torch loaded, from which the runners of launched commands are forked."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dist_testing.adopt.launch_run import launched_by
from dist_testing.core.ground.errors import InterruptedRunError
from dist_testing.core.process.lifetime import fork
from dist_testing.core.rank.capture import flush_streams, own_streams

_PACKET_BYTES = 64
# The request, three streams, and the connection to the proxy.
_FD_COUNT = 5
_FAILED = 1


def main(channel_fd: int, preloaded: Sequence[str], own_path: Sequence[str]) -> NoReturn:
    """Serve until the test's process is gone."""
    search_path = _search_path(own_path)
    for module in ("torch.distributed.run", *preloaded):
        importlib.import_module(module)
    channel = socket.socket(fileno=channel_fd)
    # The kernel reaps the runners: their proxies get the statuses.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Ctrl-C is for the test's process, whose end ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        packet, fds, _, _ = socket.recv_fds(channel, _PACKET_BYTES, _FD_COUNT)
        if not packet:
            os._exit(0)
        if fork() == 0:
            channel.close()
            _be_runner(fds, search_path)
        for fd in fds:
            os.close(fd)


def _search_path(own_path: Sequence[str]) -> list[str]:
    """Return the search path of every program of this interpreter, without what PYTHONPATH and `-c` have added.

    This library is at its end: its part on the ranks imports some modules late.
    """
    added = {os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}
    found = [path for path in own_path if path and os.path.abspath(path) not in added]
    return [*found, str(Path(__file__).parents[2])]


def _be_runner(fds: Sequence[int], search_path: Sequence[str]) -> NoReturn:
    request_fd, *streams, life_fd = fds
    status = _FAILED
    life = socket.socket(fileno=life_fd)
    try:
        with open(request_fd, "rb") as file:
            file.seek(0)
            request = json.load(file)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
            os.close(fd)
        own_streams()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end_with(life)
        status = _run(request, search_path)
    except InterruptedRunError:
        # The engine has told which ranks it has ended.
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        flush_streams()
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            life.send(status.to_bytes(4, "big"))
        finally:
            os._exit(status)


def end_with(life: socket.socket) -> None:
    """Raise InterruptedRunError in the main thread when the proxy ends: the command was killed, or its time is over."""

    def interrupt(*_: Any) -> NoReturn:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        raise InterruptedRunError("the command was ended from outside")

    signal.signal(signal.SIGIO, interrupt)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    # No signal comes for an end before that. The proxy sends nothing, so there is something to read only at its end.
    if select.select([life], [], [], 0)[0]:
        interrupt()


def _run(request: Mapping[str, Any], search_path: Sequence[str]) -> int:
    """Run the launcher's own main program, which reads its arguments; only its last step is replaced."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [os.getcwd(), *given, *search_path]
    sys.argv[:] = request["arguments"]
    with launched_by(sys.argv, [*given, *search_path]):
        try:
            importlib.import_module(request["module"]).main()
        except SystemExit as error:
            if error.code is None:
                return 0
            if not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
                return _FAILED
            return error.code & 0xFF
    return 0
