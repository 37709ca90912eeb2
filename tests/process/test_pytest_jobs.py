"""Worlds side by side: `--dist-jobs` runs several cases at once, and nothing else changes."""

from __future__ import annotations

import json
import signal
import textwrap
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dist_testing.gpus.gpu import NODES_VARIABLE, NVML_VARIABLE
from dist_testing.report.streams import read_streams
from tests.support.children import Ended, Target, run_pytest, start_pytest, write_file
from tests.support.starter import Starter

# In the runner and on ranks: waits until another case is in the same place, which one world at a time could not be.
_MEET = """
    import os
    import time


    def meet(me, other, folder=os.environ.get("MEETING", "")):
        open(os.path.join(folder, me), "w").close()
        end = time.monotonic() + 60
        while not os.path.exists(os.path.join(folder, other)):
            assert time.monotonic() < end, f"{other} did not come while {me} ran"
            time.sleep(0.02)
"""
_MIXED = """
    import os
    import warnings

    import pytest

    from meeting import meet

    PIDS = os.environ["PIDS"]


    @pytest.fixture(scope="module")
    def of_the_module():
        with open(PIDS, "a") as file:
            file.write(f"{os.getpid()}\\n")


    def test_plain_before(of_the_module):
        pass


    @pytest.mark.distributed(world_size=2)
    def test_slow(world):
        meet("slow", "quick")
        meet("slow", "quick_ended")


    @pytest.mark.distributed(world_size=2)
    def test_quick_fails(world):
        meet("quick", "slow")
        if world.rank == 1:
            meet("quick_ended", "slow")
            raise RuntimeError("planted")


    def test_plain_between(of_the_module):
        print("between")
        raise ValueError("plain")


    @pytest.mark.distributed(world_size=1)
    @pytest.mark.skip(reason="not today")
    def test_skipped(world):
        pass


    @pytest.mark.distributed(world_size=1)
    @pytest.mark.xfail(reason="known")
    def test_expected(world):
        raise ValueError


    @pytest.mark.distributed(world_size=2)
    def test_warns(world):
        warnings.warn("odd")


    @pytest.mark.distributed(world_size=1, isolation="pool")
    @pytest.mark.parametrize("n", [0, 1])
    def test_pool(world, n):
        with open(f"{PIDS}.pool", "a") as file:
            file.write(f"{os.getpid()}\\n")
"""


def _run(starter: Starter, folder: Path, source: str, *options: str, **env: str) -> Ended:
    write_file(folder, "meeting.py", _MEET)
    write_file(folder, "test_cases.py", source)
    (folder / "met").mkdir()
    known = {"MEETING": str(folder / "met"), "PIDS": str(folder / "pids"), **env}
    return run_pytest(starter, folder, "-rA", *options, "test_cases.py", env=known)


def test_a_session_reports_as_one_world_at_a_time_does(starter: Starter, tmp_path: Path) -> None:
    """Same order, outcomes, XML, warnings and events; two worlds run at once, plain tests run in the runner."""
    ended = _run(starter, tmp_path, _MIXED, "-v", "--dist-jobs=2", "--junitxml=out.xml", "--dist-events=events.jsonl")
    assert ended.code == 1, ended.log
    shown = [line.split()[:2] for line in ended.log.splitlines() if line.endswith("%]")]
    names = [
        ("plain_before", "PASSED"),
        ("slow", "PASSED"),
        ("quick_fails", "FAILED"),
        ("plain_between", "FAILED"),
        ("skipped", "SKIPPED"),
        ("expected", "XFAIL"),
        ("warns", "PASSED"),
        ("pool[0]", "PASSED"),
        ("pool[1]", "PASSED"),
    ]
    assert shown == [[f"test_cases.py::test_{name}", word] for name, word in names]
    assert "2 failed, 5 passed, 1 skipped, 1 xfailed, 1 warning" in ended.log
    assert "UserWarning: odd [ranks 0, 1]" in ended.log
    assert "rank 1 raised RuntimeError: planted in call" in ended.log.partition("= FAILURES =")[2]

    # One process sets the fixture up for both plain tests, and the tests of a worker pool share it.
    assert len((tmp_path / "pids").read_text().split()) == 1
    assert len(set((tmp_path / "pids.pool").read_text().split())) == 1

    cases = ElementTree.parse(tmp_path / "out.xml").getroot().iter("testcase")
    found = {case.attrib["name"]: {element.tag for element in case if element.tag != "system-out"} for case in cases}
    assert list(found) == [f"test_{name}" for name, _ in names]
    assert found["test_quick_fails"] == {"failure", "properties"}
    assert found["test_skipped"] == found["test_expected"] - {"properties"} == {"skipped"}

    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    times: dict[str, dict[str, float]] = {name: {} for name, _ in names}
    for event in events:
        if event["event"] in ("case_started", "case_ended"):
            times[event["nodeid"].partition("::test_")[2]][event["event"]] = event["at_s"]
    assert times["quick_fails"]["case_started"] < times["slow"]["case_ended"]
    record = read_streams([(tmp_path / "events.jsonl", "events")])
    assert [case.culprit for case in record.cases.values() if case.status == "failed"] == [1, None]
    assert not record.problems


_CLASSES = """
    import os

    import dist_testing
    from meeting import meet


    def note(text):
        with open(os.environ["PIDS"], "a") as file:
            file.write(f"{text} {os.getpid()}\\n")


    class Base(dist_testing.MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            note(f"{self.id().rpartition('.')[2]} setUp")

        def tearDown(self):
            super().tearDown()
            note(f"{self.id().rpartition('.')[2]} tearDown")


    class TogetherTest(Base):
        @classmethod
        def setUpClass(cls):
            super().setUpClass()
            note("setUpClass")

        @classmethod
        def tearDownClass(cls):
            super().tearDownClass()
            note("tearDownClass")

        def test_a(self):
            meet("a", "one")

        def test_b(self):
            if self.rank == 1:
                raise RuntimeError("planted")


    class ApartTest(Base):
        def test_one(self):
            meet("one", "two")

        def test_two(self):
            meet("two", "one")
"""


def test_methods_of_a_class_run_together_if_the_class_has_a_set_up(starter: Starter, tmp_path: Path) -> None:
    """One process then runs its setUpClass, methods and tearDownClass in order. Methods of other classes are spread."""
    ended = _run(starter, tmp_path, _CLASSES, "--dist-jobs=3", "--dist-events=events.jsonl")
    outcomes = {"test_a": "PASSED", "test_b": "FAILED", "test_one": "PASSED", "test_two": "PASSED"}
    assert ended.outcomes() == outcomes, ended.log
    assert "rank 1 raised RuntimeError: planted" in ended.log
    by_pid: dict[str, list[str]] = {}
    for line in (tmp_path / "pids").read_text().splitlines():
        text, _, pid = line.rpartition(" ")
        by_pid.setdefault(pid, []).append(text)
    together = ["setUpClass", "test_a setUp", "test_a tearDown", "test_b setUp", "test_b tearDown", "tearDownClass"]
    apart = [[f"test_{name} setUp", f"test_{name} tearDown"] for name in ("one", "two")]
    assert sorted(by_pid.values()) == sorted([together, *apart])
    # A unittest case has another name than its test; the reader still knows which test asked for which ranks.
    record = read_streams([(tmp_path / "events.jsonl", "events")])
    assert {case.name.rpartition(".")[2]: case.culprit for case in record.cases.values()} == {
        "test_a": None,
        "test_b": 1,
        "test_one": None,
        "test_two": None,
    }
    assert all(len(case.ranks) == 2 for case in record.cases.values())


_STOPS = """
    import os
    import pytest
    from meeting import meet


    @pytest.mark.distributed(world_size=2)
    def test_fails(world):
        meet("fails", "hangs")
        assert world.rank


    @pytest.mark.distributed(world_size=2)
    def test_hangs(world):
        meet("hangs", "fails")
        meet("hangs_on", "never")


    @pytest.mark.distributed(world_size=2)
    def test_never_begins(world):
        meet("never", "never")
"""


def test_the_first_failure_stops_the_other_worlds(starter: Starter, tmp_path: Path) -> None:
    """With -x a world that runs is killed, and no later case is reported."""
    ended = _run(starter, tmp_path, _STOPS, "-x", "-v", "--dist-jobs=2")
    assert ended.code == 1, ended.log
    assert ended.outcomes() == {"test_fails": "FAILED"}
    assert "stopping after 1 failures" in ended.log
    assert "test_hangs" not in ended.log
    assert not (tmp_path / "met" / "never").exists()


_WAITS = """
    import os
    import sys
    import pytest

    sys.path.insert(0, os.path.dirname(__file__))
    from meeting import meet


    @pytest.mark.distributed(world_size=2)
    @pytest.mark.parametrize("name", ["first", "second"])
    def test_waits(world, name):
        meet(name, "never")


    @pytest.mark.distributed(world_size=2)
    def test_ends(world):
        {body}
"""


def _wait_for(*paths: Path) -> None:
    until_s = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until_s, paths
        time.sleep(0.02)


@pytest.mark.parametrize("victim", ["runner", "group", "killed"])
def test_an_interrupted_run_leaves_nothing(starter: Starter, tmp_path: Path, victim: str) -> None:
    """Ctrl-C reports what every world was doing, and what has ended; SIGKILL of the runner leaves no process."""
    write_file(tmp_path, "meeting.py", _MEET)
    write_file(tmp_path, "test_cases.py", _WAITS.format(body="meet('third', 'first')"))
    met = tmp_path / "met"
    met.mkdir()
    child = start_pytest(starter, tmp_path, "--dist-jobs=3", "-rA", "test_cases.py", env={"MEETING": str(met)})
    _wait_for(met / "first", met / "second", met / "third")
    if victim == "killed":
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        # The fork servers notice it, kill their ranks and remove their folders.
        until_s = time.monotonic() + 60
        while list((tmp_path / "tmp").glob("dist-*")):
            assert time.monotonic() < until_s, "a folder is left"
            time.sleep(0.02)
        return
    (child.send_group_signal if victim == "group" else child.send_signal)(signal.SIGINT)
    assert child.wait() == 2, child.log
    assert "KeyboardInterrupt" in child.log
    for name in ("first", "second"):
        assert f"test_cases.py::test_waits[{name}] (world of 2): " in child.log
    assert "never started" not in child.log


_KILLS = """
    import os
    import signal
    import subprocess
    import pytest


    @pytest.mark.distributed(world_size=1)
    def test_kills(world):
        subprocess.Popen(["sleep", "600"], start_new_session=True, env={{}})
        fork_server = os.getppid()
        runner = int(open(f"/proc/{{fork_server}}/stat").read().rpartition(")")[2].split()[1])
        os.kill(runner, signal.SIGKILL)
        if {both}:
            os.kill(fork_server, signal.SIGKILL)
        signal.pause()


    @pytest.mark.distributed(world_size=1)
    @pytest.mark.parametrize("n", range(3))
    def test_passes(world, n):
        pass
"""


@pytest.mark.parametrize("both", [False, True], ids=["sub_runner", "fork_server_too"])
def test_a_sub_runner_that_dies_fails_its_case(starter: Starter, tmp_path: Path, both: bool) -> None:
    """The report says so, the other sub-runner runs all other cases, and no process of the dead one is left."""
    ended = _run(starter, tmp_path, _KILLS.format(both=both), "--dist-jobs=2")
    passed = {f"test_passes[{n}]": "PASSED" for n in range(3)}
    assert ended.outcomes() == {"test_kills": "FAILED", **passed}, ended.log
    assert "test_kills: it had begun, and its sub-runner (pid " in ended.log
    assert "ended before it: SIGKILL (9)" in ended.log


@pytest.mark.parametrize(
    ("options", "env", "text"),
    [
        (["--dist-jobs=0"], {}, "--dist-jobs=0: expected a number from 1 to 64, or auto."),
        (["--dist-jobs=many"], {}, "--dist-jobs=many: expected a number"),
        (["--dist-jobs=2", "-p", "xdist", "-n2"], {}, "--dist-jobs=2 with -n (pytest-xdist)."),
        (["--dist-jobs=auto", "--pdb"], {}, "--dist-jobs=auto with --pdb."),
        (["--dist-jobs=2", "--dist-debug-rank=0", "--pdb"], {}, "--dist-jobs=2 with --dist-debug-rank."),
        (
            ["--dist-jobs=2"],
            {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
            "--dist-jobs=2 in a process that is rank 0 of 1 (RANK is set).",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(
    starter: Starter, tmp_path: Path, options: list[str], env: dict[str, str], text: str
) -> None:
    """At the start, with the way out."""
    if "xdist" in options:
        pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    ended = _run(starter, tmp_path, "def test_plain():\n    pass\n", *options, **env)
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
    assert text in ended.log
    assert "Traceback" not in ended.log


_ON_GPUS = """
    import os
    import dist_testing
    from meeting import meet


    class GpuTest(dist_testing.MultiProcessTestCase):
        world_size = 2

        def test_one(self):
            meet("one", {one!r})
            print("one on", os.environ["CUDA_VISIBLE_DEVICES"])

        def test_two(self):
            meet("two", {two!r})
            print("two on", os.environ["CUDA_VISIBLE_DEVICES"])

        def test_three(self):
            pass
"""


@pytest.mark.parametrize(("gpus", "jobs"), [(5, 2), (3, 1)])
def test_no_more_worlds_run_at_once_than_there_are_gpus_for(
    starter: Starter, tmp_path: Path, gpus: int, jobs: int
) -> None:
    """The others run afterwards, and the log says why. With -s each line names its case, if several run."""
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    for name in ("nvidiactl", *(f"nvidia{minor}" for minor in range(gpus))):
        (nodes / name).touch()
    source = _ON_GPUS.format(one="two", two="one") if jobs > 1 else _ON_GPUS.format(one="one", two="two")
    env = {NODES_VARIABLE: str(nodes), NVML_VARIABLE: "/no/such/library"}
    ended = _run(starter, tmp_path, source, "-s", "--dist-jobs=4", "--dist-backend=cuda_gloo", **env)
    assert ended.outcomes() == dict.fromkeys(["test_one", "test_two", "test_three"], "PASSED"), ended.log
    why = f"because a world of 2 ranks needs 2 of {gpus} GPU(s)"
    assert f"dist_testing: --dist-jobs=4: {jobs} world(s) at a time, {why}" in ended.log
    found = {}
    for name in ("one", "two"):
        prefix = f"[{f'GpuTest::test_{name}, ' if jobs > 1 else ''}rank 1] {name} on "
        (line,) = [line for line in ended.log.splitlines() if line.startswith(prefix)]
        found[name] = set(line.removeprefix(prefix).split(","))
    assert len(found["one"] | found["two"]) == 2 * jobs


_UNDER_BAZEL = """
    import time
    import pytest
    import dist_testing
    from threading import Event


    @pytest.mark.distributed(world_size=2)
    def test_before(world):
        pass


    class StuckTest(dist_testing.MultiProcessTestCase):
        def setUp(self):
            super().setUp()
            Event().wait()

        def test_stuck(self):
            pass


    @pytest.mark.distributed(world_size=2)
    @pytest.mark.parametrize("n", [0, 1])
    def test_hangs(world, n):
        if world.rank == n:
            while True:
                time.sleep(0.01)


    @pytest.mark.distributed(world_size=2)
    def test_after(world):
        pass
"""


def test_bazels_time_limit_ends_what_hangs(starter: Starter, tmp_path: Path) -> None:
    """On ranks and in a sub-runner: each case has its own failure in the XML, before Bazel's timeout."""
    target = Target(tmp_path, {"test_cases.py": _UNDER_BAZEL})
    ended = target.run(starter, "--dist-jobs=3", "--dist-timeout=4", env={"TEST_TIMEOUT": "20"}, limit_s=40)
    assert ended.code == 1, ended.log
    cases = target.xml()
    assert {name: case.outcome for name, case in cases.items()} == {
        "test_before": "passed",
        "test_stuck": "failure",
        "test_hangs[0]": "failure",
        "test_hangs[1]": "failure",
        "test_after": "passed",
    }, ended.log
    for n in (0, 1):
        assert f"rank {n} " in cases[f"test_hangs[{n}]"].message
    assert "it had begun, and its sub-runner was killed: the target's time was over." in cases["test_stuck"].text
    assert "Event().wait()" in cases["test_stuck"].text or "in setUp" in cases["test_stuck"].text


def test_a_signal_of_bazel_names_all_running_cases(starter: Starter, tmp_path: Path) -> None:
    """The XML has each of them as an error, and what had ended as it was."""
    target = Target(tmp_path, {"test_cases.py": textwrap.dedent(_WAITS.format(body="pass"))})
    write_file(target.package, "meeting.py", _MEET)
    met = tmp_path / "met"
    met.mkdir()
    child = target.start(starter, "--dist-jobs=2", env={"MEETING": str(met)})
    _wait_for(met / "first", met / "second")
    child.send_group_signal(signal.SIGTERM)
    assert child.wait() != 0
    outcomes = {name: case.outcome for name, case in target.xml().items()}
    assert outcomes.pop("test_waits[first]") == outcomes.pop("test_waits[second]") == "error", child.log
    assert set(outcomes) <= {"test_ends", "//pkg:cases_gloo"}
    assert "SIGTERM" in child.log


_LATE = """
    import pytest
    import dist_testing


    @pytest.fixture(scope="session")
    def late():
        yield
        raise ValueError("late trouble")


    @pytest.mark.usefixtures("late")
    class LateTest(dist_testing.MultiProcessTestCase):
        world_size = 1

        def test_one(self):
            pass


    @pytest.mark.distributed(world_size=1)
    def test_two(world):
        pass
"""


def test_the_clean_up_of_a_sub_runner_can_fail_the_session(starter: Starter, tmp_path: Path) -> None:
    """A fixture of the session is torn down at the end of the process that has set it up."""
    ended = _run(starter, tmp_path, _LATE, "--dist-jobs=2")
    assert ended.code == 1, ended.log
    assert "2 passed, 1 error" in ended.log
    assert "after the last test, the teardown of a fixture failed.\n" in ended.log
    assert "E       ValueError: late trouble" in ended.log
