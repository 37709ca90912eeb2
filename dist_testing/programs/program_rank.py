"""Runs a program on a rank, and reports its exit as the rank's outcome."""

from __future__ import annotations

import importlib
import json
import os
from typing import NoReturn

from dist_testing.core.ground.case import CaseBody
from dist_testing.core.launch.fresh import ThenBe
from dist_testing.core.process.launcher_messages import Loader, RankStart
from dist_testing.core.rank.bootstrap import RankContext
from dist_testing.core.rank.capture import flush_streams
from dist_testing.core.rank.rank_world import RankWorld
from dist_testing.core.rank.reporter import Reporter
from dist_testing.programs.main_module import end_as_main, exit_status, print_end, run_as_main

# $DIST_TESTING_BACKEND (library): in programs: torch's name of the backend, such as nccl, for `init_process_group`.
BACKEND_VARIABLE = "DIST_TESTING_BACKEND"
# What pytest tells its tests; a program is none.
_OF_PYTEST = ("PYTEST_CURRENT_TEST", "PYTEST_VERSION")


class ProgramRankContext(RankContext):
    """The rank context of programs: a rank needs nothing but the case."""

    def prepare(self) -> None:
        """Load torch, so that each rank need not."""
        importlib.import_module("torch.distributed")

    def front_end(self, body: CaseBody) -> ProgramRankFrontEnd:
        """Return the only front end there is."""
        return ProgramRankFrontEnd()


def program_loader() -> Loader:
    """Return the loader of the fork server and of ranks that are fresh interpreters: there are no tests to find."""
    return Loader(__name__, "")


def load(state: str, then: ThenBe, test: str | None) -> NoReturn:
    """Be the rank or the fork server at once."""
    then(ProgramRankContext())


class ProgramRankFrontEnd:
    """Runs one program, in a process that ends with it."""

    _world: RankWorld | None = None

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Serve the store of the world, and set the rest of torchrun's variables."""
        reporter.phase("init")
        self._world = RankWorld.of(start, runner=reporter.runner)
        if start.store_fd is not None:
            # `init_process_group` of another rank may need it first; on this rank it finds the same one.
            _ = self._world.store
        for name in _OF_PYTEST:
            os.environ.pop(name, None)
        # $ROLE_NAME, $ROLE_RANK, $ROLE_WORLD_SIZE, $TORCHELASTIC_MAX_RESTARTS, $TORCHELASTIC_RUN_ID (library): in
        # programs: as torchrun sets them.
        os.environ |= {
            "ROLE_NAME": "default",
            "ROLE_RANK": str(start.rank),
            "ROLE_WORLD_SIZE": str(start.request.size),
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": f"dist_testing-{start.request.world}",
            BACKEND_VARIABLE: start.request.settings.backend.torch_backend,
        }

    def run(self, body: CaseBody, reporter: Reporter) -> None:
        """Run the program, wait for its threads, and run its exit handlers."""
        reporter.phase("call")
        error = run_as_main(*json.loads(body.content))
        status = exit_status(error)
        if error is not None:
            if status:
                # Before the exit handlers, which may wait for other ranks.
                reporter.ended_by(error)
            print_end(error, always=reporter.is_forked)
        reporter.phase("teardown")
        end_as_main()
        if reporter.is_forked:
            # A child that the program has forked, and that ran to the end of the program, as its parent does.
            flush_streams()
            os._exit(status)

    def finish(self) -> None:
        """Destroy the groups that do not end with the process."""
        assert self._world is not None
        self._world.finish()
