"""Bugs of add-ons, in a package that was installed. `e2e/add_on` has one without bugs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.children import Ended, run_pytest, write_file
from tests.support.starter import Starter

# Each part breaks where it is told to.
_DECLARED = """
    from dist_testing.ext import AddOn

    ADD_ON = AddOn(
        name="answers",
        ext_version=1,
        resource="answers_parts:Server",
        watcher="answers_parts:Limit",
        rank_service="answers_parts:Service",
        explainer="answers_parts:explain",
    )
"""
_PARTS = """
    import os
    import subprocess
    import sys

    from dist_testing.ext import HeldResource, RankService, WorldResource, WorldWatcher

    BREAKS = os.environ.get("BREAKS")


    def breaks(where):
        if BREAKS == where:
            raise RuntimeError(f"planted in {where}")


    class Server(WorldResource):
        def acquire(self, wish):
            breaks("acquire")
            return Held(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))


    class Held(HeldResource):
        def __init__(self, process):
            self.process = process
            self.env = {"ANSWERS_PID": str(process.pid)}

        def check(self, *, are_ranks_gone):
            breaks("check")
            return ["an answer"] if BREAKS == "left" else []

        def release(self, *, are_ranks_gone):
            self.process.communicate(b"")
            breaks("release")


    class Limit(WorldWatcher):
        def __init__(self, world):
            breaks("watcher")
            self.world = world

        def on_message(self, rank, payload):
            breaks("message")
            self.world.records[rank].answer("answers", payload.upper())

        def poll(self, now_s):
            breaks("poll")


    class Service(RankService):
        def __init__(self, rank):
            breaks("service")
            self.rank = rank

        def case_begin(self, body):
            breaks("case_begin")
            os.environ["ANSWER"] = self.rank.reporter.runner.ask("answers", "yes", "answers")

        def case_end(self, body):
            breaks("case_end")

        def close(self):
            breaks("close")


    def explain(result):
        breaks("explain")
        return result
"""
_CASES = """
    import os

    import pytest


    @pytest.mark.distributed(world_size=2)
    def test_answers(world):
        os.kill(int(os.environ["ANSWERS_PID"]), 0)
        assert os.environ["ANSWER"] == "YES"
"""


def _run(starter: Starter, folder: Path, **env: str) -> Ended:
    write_file(folder, "answers_declared.py", _DECLARED)
    write_file(folder, "answers_parts.py", _PARTS)
    write_file(folder, "answers-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: answers\nVersion: 1.0\n")
    write_file(folder, "answers-1.0.dist-info/entry_points.txt", "[dist_testing]\nanswers = answers_declared:ADD_ON\n")
    write_file(folder, "test_cases.py", _CASES)
    # Entry points are looked for on the path of a new program.
    env = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]), **env}
    return run_pytest(starter, folder, "-rA", "-s", "test_cases.py", env=env, fresh=True)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("acquire", "its resource"),
        ("check", "the check of its resource"),
        ("release", "the release of its resource"),
        ("watcher", "its watcher"),
        ("message", "its watcher"),
        ("poll", "its watcher"),
        ("service", "its rank service"),
        ("case_begin", "its rank service"),
        ("case_end", "its rank service"),
        ("close", "its rank service"),
        ("explain", "its explainer"),
    ],
)
def test_a_part_that_raises_fails_the_case_and_is_named(
    starter: Starter, tmp_path: Path, where: str, said: str
) -> None:
    """If this fails, a bug of an add-on passes a case, or looks like a bug of the test."""
    ended = _run(starter, tmp_path, BREAKS=where)
    assert ended.code != 0, ended.log
    assert f"Add-on 'answers': {said} raised RuntimeError: planted in {where}" in ended.log, ended.log


def test_what_ranks_leave_in_a_resource_fails_the_case(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a case that leaves a server full of data passes, and the next one fails."""
    ended = _run(starter, tmp_path, BREAKS="left")
    assert ended.outcomes() == {"test_answers": "FAILED"}
    assert "an answer" in ended.log
