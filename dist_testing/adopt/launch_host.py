"""The host: a fresh interpreter with torch loaded, from which the runners of launched commands are forked.

A runner runs the launcher's own main program. Only torchrun's agent, after it has read its arguments, is replaced: by
the engine.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import Case, CaseBody
from dist_testing.core.ground.errors import InterruptedRunError
from dist_testing.core.ground.outcomes import Status
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK
from dist_testing.core.process.launcher_messages import RankStart
from dist_testing.core.process.lifetime import fork
from dist_testing.core.rank.capture import flush_streams, own_streams
from dist_testing.core.rank.reporter import Reporter
from dist_testing.programs.program import NO_LIMIT_S, Program
from dist_testing.programs.program_rank import ProgramRankContext, ProgramRankFrontEnd, program_loader

# Options of torchrun that ask its agent for something that only it does.
_OF_AGENT = ("--log-dir", "--log_dir", "--redirects", "-r", "--tee", "-t", "--local-ranks-filter", "--no-python")
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
    if request["umask"] >= 0:
        os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [os.getcwd(), *given, *search_path]
    sys.argv[:] = request["arguments"]
    with _launched_by(sys.argv, [*given, *search_path]):
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


class _Streaming(ProgramRankContext, ProgramRankFrontEnd):
    """A launched script on a rank: its output goes where the launcher's goes, both streams apart."""

    def __init__(self, streams: Sequence[int]) -> None:
        super().__init__()
        self._streams = streams

    def front_end(self, body: CaseBody) -> ProgramRankFrontEnd:
        """Return itself, because the world has one case."""
        return self

    def open(self, start: RankStart, reporter: Reporter) -> None:
        super().open(start, reporter)
        for number, fd in enumerate(self._streams, 1):
            os.dup2(fd, number)


def _launched_by(command: Sequence[str], search_path: Sequence[str]) -> contextlib.AbstractContextManager[object]:
    """Have torchrun's main program, which runs in the block, start its ranks on the engine.

    `search_path`: `sys.path` of the ranks, after the folder of their script.
    """
    import torch.distributed.run

    torchrun: Any = torch.distributed.run
    if any(part.partition("=")[0] in _OF_AGENT for part in command):
        return contextlib.nullcontext()
    original = torchrun.elastic_launch

    def elastic_launch(config: Any, entrypoint: Any) -> Callable[..., Any]:
        def launch(*arguments: Any) -> Any:
            script = _script(entrypoint, arguments)
            # The engine makes the ranks, if it can make them as torch would.
            if script is None or (config.min_nodes, config.max_nodes, config.max_restarts) != (1, 1, 0):
                return original(config=config, entrypoint=entrypoint)(*arguments)
            name, *rest = script
            path = os.path.abspath(name)
            folder = os.path.dirname(os.path.realpath(path))
            _run_program(Program(path, name, tuple(rest), (folder, *search_path)), config.nproc_per_node)
            return {}

        return launch

    return mock.patch.object(torchrun, "elastic_launch", elastic_launch)


def _script(entrypoint: object, arguments: Sequence[object]) -> list[str] | None:
    """Return a script and its arguments, if they are what the agent would start; None for anything else."""
    given = [part for part in arguments if isinstance(part, str)]
    if not isinstance(entrypoint, str) or len(given) != len(arguments):
        return None
    if os.path.basename(entrypoint) != os.path.basename(os.environ.get("PYTHON_EXEC", sys.executable)):
        return None
    if given[:1] == ["-u"]:
        given = given[1:]
    return given if given and not given[0].startswith("-") else None


def _run_program(program: Program, world_size: int) -> None:
    """Run the program on the engine. If a rank failed, raise SystemExit; the report is on standard error."""
    backend = default_backend()
    streams = [os.dup(1), os.dup(2)]
    # The process is a fork of one that only has torch loaded. What the launcher has added does no harm.
    engine = Engine(
        Spec("", backend, (world_size,), FORK.name),
        Budget(),
        _Streaming(streams),
        program_loader(),
        keeps_state=True,
    )
    try:
        result = engine.run(
            Case(
                name=program.name,
                world_size=world_size,
                body=program.body(strict_calls=False),
                timeout_s=NO_LIMIT_S,
                isolation=FORK.name,
                init=False,
                exit_0_passes=True,
            )
        )
    finally:
        engine.close()
        for fd in streams:
            os.close(fd)
    if result.verdict.status is Status.PASSED:
        return
    if result.verdict.status is Status.SKIPPED:
        # torchrun knows no skips: to it, these are exit codes above 0.
        print(f"{program.name}: all ranks have skipped: {result.verdict.reason}", file=sys.stderr, flush=True)
    else:
        print(failure_report(result), file=sys.stderr, flush=True)
    raise SystemExit(_FAILED)
