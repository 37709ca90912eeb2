"""Bugs of add-ons, in a package that was installed. `e2e/add_on` has one without bugs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.children import Ended, Target, run_pytest, write_file
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
        setting="answers_parts:read",
        options={"--dist-answers": "what the watcher answers"},
        from_options="answers_parts:read_option",
    )
"""
_PARTS = """
    import os
    import subprocess
    import sys
    from dist_testing.ext import HeldResource, RankService, UsageError, WorldResource, WorldWatcher

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

        def begin_case(self, start):
            self.answer = start.case.settings.get("answers")
            if self.answer == "break":
                raise RuntimeError("planted in begin_case")

        def on_message(self, rank, payload):
            breaks("message")
            self.world.records[rank].answer("answers", self.answer or payload.upper())

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

    def read(subject, value):
        if not isinstance(value, str):
            raise UsageError(f"{subject}: answers = {value!r}. It is a text. Correct it.")
        return value

    def read_option(spec, given):
        return given["--dist-answers"]
"""
_CASES = """
    import os
    import pytest

    @pytest.mark.distributed(world_size=2)
    def test_answers(world):
        os.kill(int(os.environ["ANSWERS_PID"]), 0)
        assert os.environ["ANSWER"] == "YES"
"""


# Each test, and the answer that it finds: by its marker, its class, or else by the command line or the target.
_ASKING = """
    import os
    import unittest
    import pytest
    import dist_testing

    @pytest.mark.distributed(world_size=2, answers="of the test")
    def test_marked(world):
        assert os.environ["ANSWER"] == "of the test"

    @pytest.mark.distributed(world_size=2)
    def test_of_run(world):
        assert os.environ["ANSWER"] == "of the run"

    class TestAnswers(dist_testing.MultiProcessTestCase):
        world_size = 2
        answers = "of the class"

        def test_class(self):
            assert os.environ["ANSWER"] == "of the class"
"""


def _install(folder: Path) -> dict[str, str]:
    """Write the package, and return the variable by which new programs find it."""
    write_file(folder, "answers_declared.py", _DECLARED)
    write_file(folder, "answers_parts.py", _PARTS)
    write_file(folder, "answers-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: answers\nVersion: 1.0\n")
    write_file(folder, "answers-1.0.dist-info/entry_points.txt", "[dist_testing]\nanswers = answers_declared:ADD_ON\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}


def _run(starter: Starter, folder: Path, *options: str, source: str = _CASES, **env: str) -> Ended:
    env = _install(folder) | env
    write_file(folder, "test_cases.py", source)
    return run_pytest(starter, folder, "-rA", "-s", *options, "test_cases.py", env=env, fresh=True)


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
    assert ("; before: passed" in ended.log) == (where == "explain"), ended.log
    assert 'answers_parts.py", line ' in ended.log, ended.log


def test_a_watcher_that_raises_at_the_begin_of_a_case_ends_its_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the ranks of the case have no deadline, and the next case fails for them."""
    source = """
        import threading
        import pytest

        @pytest.mark.distributed(world_size=2, answers="break")
        def test_waits(world):
            threading.Event().wait()

        @pytest.mark.distributed(world_size=2)
        def test_next(world): ...
    """
    ended = _run(starter, tmp_path, source=source)
    assert ended.outcomes() == {"test_waits": "FAILED", "test_next": "PASSED"}, ended.log
    assert "raised RuntimeError: planted in begin_case" in ended.failures()["test_waits"]


def test_what_ranks_leave_in_a_resource_fails_the_case(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a case that leaves a server full of data passes, and the next one fails."""
    ended = _run(starter, tmp_path, BREAKS="left")
    assert ended.outcomes() == {"test_answers": "FAILED"}
    assert "an answer" in ended.log


def test_tests_and_the_command_line_have_settings_for_it(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a stranger's add-on cannot be told what a test needs."""
    ended = _run(starter, tmp_path, "--dist-answers=of the run", source=_ASKING)
    assert ended.outcomes() == dict.fromkeys(("test_marked", "test_of_run", "test_class"), "PASSED"), ended.log


def test_a_target_has_settings_for_it(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a stranger's add-on cannot be told what a target needs without a change of the library."""
    target = Target(tmp_path, {"test_cases.py": _ASKING}, spec={"settings": {"answers": "of the run"}})
    ended = target.run(starter, env=_install(tmp_path), fresh=True)
    assert ended.code == 0, ended.log
    outcomes = {name: case.outcome for name, case in target.xml().items()}
    assert outcomes == dict.fromkeys(("test_marked", "test_of_run", "test_class"), "passed")


def test_it_refuses_a_wrong_setting(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a mistyped setting is told as a bug of the add-on, or counts as none."""
    ended = _run(starter, tmp_path, source=_ASKING.replace('"of the test")\n', "3)\n", 1))
    assert ended.code != 0
    assert "test_marked: answers = 3. It is a text." in ended.log
