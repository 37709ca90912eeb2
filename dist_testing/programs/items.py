"""Makes a program a test of pytest, one item for each world size: then it is limited and reported as any test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import EXIT_CODES
from dist_testing.core.ground.spec import MAX_WORLD_SIZE, Spec, not_of_build
from dist_testing.core.launch.isolation import isolation_named
from dist_testing.core.pytest.marked_items import CASE_KEY, RANK_SIDE_KEY, RUN_KEY, RUN_SPEC_KEY
from dist_testing.core.session.session import current_session
from dist_testing.programs.program import NO_LIMIT_S, Program, check_isolation_of_program, check_program
from dist_testing.programs.program_rank import ProgramRankContext, program_loader

_PROGRAM_KEY = pytest.StashKey[Program]()
# Pairs of a rank and of how it ends.
_EXITS = tuple[tuple[Annotated[int, range(MAX_WORLD_SIZE)], Annotated[int, EXIT_CODES]], ...]
# $PYTEST_ADDOPTS (user): options of pytest. Programs that are tests ignore it, and their ranks inherit it.
_ADDOPTS = "PYTEST_ADDOPTS"


def command_line(path: str) -> list[str]:
    """Return pytest's command line for a program: its output is shown, and no file of a project configures pytest."""
    return [
        path,
        *("-p", "no:cacheprovider"),
        "--capture=no",
        "--no-header",
        "--noconftest",
        f"--config-file={os.devnull}",
    ]


class ProgramPlugin:
    """A plugin of pytest that makes a program the only test of the session. Register it before the library's plugin."""

    def __init__(self, program: Program) -> None:
        """Make the plugin. Until pytest has read its command line, hide the options for the user's test sessions."""
        self._program = program
        self._options = os.environ.pop(_ADDOPTS, None)

    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Pass on the program before any plugin is configured."""
        early_config.stash[_PROGRAM_KEY] = self._program
        early_config.stash[RANK_SIDE_KEY] = ProgramRankContext(), program_loader()
        if self._options is not None:
            os.environ[_ADDOPTS] = self._options

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> Iterator[None]:
        """Collect the program instead of the tests that its file may contain."""
        yield
        return [_ProgramFile.from_parent(parent, path=file_path)]  # type: ignore[return-value]  # a wrapper's result


@dataclass(frozen=True, slots=True)
class OneProgram:
    """What a target asks for that runs a program: how the processes of some ranks must end, as in `subprocess`."""

    expected_exits: Mapping[int, int]

    def __str__(self) -> str:
        return f"1, expected_exits = {self.expected_exits}" if self.expected_exits else "1"


def of_target(spec: Spec, section: object) -> OneProgram:
    """Read what the build rules wrote; a SpecError says that it is damaged."""
    try:
        return OneProgram(dict(shape_of(_EXITS).read(section)))
    except WrongValueError as error:
        raise not_of_build(f"{spec.target}: programs: {error}") from None


def target_session(spec: Spec, file: str, arguments: Sequence[str]) -> tuple[list[str], ProgramPlugin]:
    """Return the command line and the plugin of a session of pytest for a target of Bazel that runs the program."""
    # The folder as the runfiles show it: its links lead to the source tree, with files that are not declared.
    search_path = (os.path.dirname(file), *sys.path)
    program = Program(file, file, tuple(arguments), search_path, spec.settings["programs"].expected_exits)
    return command_line(file), ProgramPlugin(program)


class _ProgramItem(pytest.Item):
    """One run of the program, on a world of one size."""

    def runtest(self) -> None:
        """Run it on ranks."""
        self.config.stash[RUN_KEY](self)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return its place. pytest reports a skip there, and ends with an internal error if an item has no line."""
        return self.path, 0, self.name

    def command(self, result: CaseResult, spec: Spec) -> str:
        """Return the command that runs the program again."""
        return self.config.stash[_PROGRAM_KEY].command(result.case, spec)


class _ProgramFile(pytest.File):
    def collect(self) -> Iterator[_ProgramItem]:
        program, spec = self.config.stash[_PROGRAM_KEY], self.config.stash[RUN_SPEC_KEY]
        try:
            check_isolation_of_program(program.name, isolation_named(spec.isolation))
            check_program(program.path)
        except UsageError as error:
            raise self.CollectError(str(error)) from None
        session = current_session()
        assert session is not None
        for size in spec.world_sizes:
            name = f"program[world_size={size}]" if len(spec.world_sizes) > 1 else "program"
            item = _ProgramItem.from_parent(self, name=name)
            item.stash[CASE_KEY] = Case(
                name=item.nodeid,
                world_size=size,
                body=program.body(strict_calls=session.strict_collectives),
                timeout_s=session.timeout_s if program.has_limit else NO_LIMIT_S,
                isolation=spec.isolation,
                init=False,
                expected_exits=program.expected_exits,
                settings={**spec.settings, **program.settings},
                exit_0_passes=True,
            )
            yield item
