"""Runs what torchrun would start: replaces its agent, after it has read its arguments, by the engine."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import Case, CaseBody
from dist_testing.core.ground.outcomes import Status
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK
from dist_testing.core.process.launcher_messages import RankStart
from dist_testing.core.rank.reporter import Reporter
from dist_testing.programs.program import NO_LIMIT_S, Program
from dist_testing.programs.program_rank import ProgramRankContext, ProgramRankFrontEnd, program_loader

# Options of torchrun that ask its agent for something that only it does.
_OF_AGENT = ("--log-dir", "--log_dir", "--redirects", "-r", "--tee", "-t", "--local-ranks-filter", "--no-python")
_FAILED = 1


class _Streaming(ProgramRankContext, ProgramRankFrontEnd):
    """A launched script on a rank: its output goes where the launcher's goes, both streams apart."""

    def __init__(self, streams: Sequence[int]) -> None:
        super().__init__()
        self._streams = streams

    def front_end(self, body: CaseBody) -> ProgramRankFrontEnd:
        """Return itself, because the world has one case."""
        return self

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Give the rank the streams of the command."""
        super().open(start, reporter)
        for number, fd in enumerate(self._streams, 1):
            os.dup2(fd, number)


class _Launch:
    """Takes the place of torch's `elastic_launch`: the engine makes the ranks, if it can make them as torch would."""

    def __init__(self, original: Any, search_path: Sequence[str], config: Any, entrypoint: Any) -> None:
        self._original = original
        self._search_path = search_path
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *arguments: Any) -> dict[int, Any]:
        script = _script(self._entrypoint, arguments)
        config = self._config
        if script is None or (config.min_nodes, config.max_nodes, config.max_restarts) != (1, 1, 0):
            result: dict[int, Any] = self._original(config=config, entrypoint=self._entrypoint)(*arguments)
            return result
        name, *rest = script
        path = os.path.abspath(name)
        program = Program(
            path=path,
            name=name,
            arguments=tuple(rest),
            search_path=(os.path.dirname(os.path.realpath(path)), *self._search_path),
        )
        _run(program, config.nproc_per_node)
        return {}


@contextlib.contextmanager
def launched_by(command: Sequence[str], search_path: Sequence[str]) -> Iterator[None]:
    """Have torchrun's main program, which runs in the block, start its ranks on the engine.

    `search_path`: `sys.path` of the ranks, after the folder of their script.
    """
    import torch.distributed.run

    torchrun: Any = torch.distributed.run

    if any(part.partition("=")[0] in _OF_AGENT for part in command):
        yield
        return
    original = torchrun.elastic_launch

    def launch(config: Any, entrypoint: Any) -> _Launch:
        return _Launch(original, search_path, config, entrypoint)

    with mock.patch.object(torchrun, "elastic_launch", launch):
        yield


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


def _run(program: Program, world_size: int) -> None:
    """Run the program on the engine. If a rank failed, raise SystemExit; the report is on standard error."""
    backend = default_backend()
    streams = [os.dup(1), os.dup(2)]
    # The process is a fork of one that only has torch loaded. What the launcher has added does no harm.
    engine = Engine(
        Spec("", backend, (world_size,), backend.gpus_per_rank, FORK.name),
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
