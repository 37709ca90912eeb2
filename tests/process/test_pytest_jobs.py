"""Worlds side by side: with `--dist-jobs` the worlds of the next tests run beside the one that is awaited."""

from __future__ import annotations

import signal
import textwrap
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dist_testing.gpus.gpu import NODES_VARIABLE, NVML_VARIABLE
from dist_testing.report.run_files import read_streams
from tests.support.children import Ended, Target, run_pytest, start_pytest, write_file
from tests.support.gpu_nodes import make_nodes
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
    import time
    import warnings
    import pytest
    import dist_testing
    from meeting import meet

    PIDS = os.environ["PIDS"]

    @pytest.fixture(scope="module")
    def of_the_module():
        with open(PIDS, "a") as file:
            file.write(f"{os.getpid()}\\n")

    def test_plain_before(of_the_module): ...

    @pytest.mark.distributed(world_size=2)
    def test_slow(world):
        meet("slow", "quick")
        meet("slow", "quick_is_over")

    @pytest.mark.distributed(world_size=2)
    def test_quick_fails(world):
        begin = time.monotonic()
        meet("quick", "slow")
        if world.rank == 1:
            time.sleep(0.3)
            with open(f"{PIDS}.seconds", "w") as file:
                file.write(str(time.monotonic() - begin))
            raise RuntimeError("planted")

    @pytest.mark.distributed(world_size=1)
    def test_is_third(world):
        while not os.path.exists(f"{PIDS}.seconds"):
            time.sleep(0.02)
        # By then the second world has ended.
        time.sleep(1)
        meet("quick_is_over", "slow")

    def test_plain_between(of_the_module):
        print("between")
        raise ValueError("plain")

    @pytest.mark.distributed(world_size=1)
    @pytest.mark.skip(reason="not today")
    def test_skipped(world): ...

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

    class OfUnittest(dist_testing.MultiProcessTestCase):
        world_size = 2

        def test_method(self):
            assert self.rank < 2
"""


def _run(starter: Starter, folder: Path, source: str, *options: str, **env: str) -> Ended:
    write_file(folder, "meeting.py", _MEET)
    write_file(folder, "test_cases.py", source)
    (folder / "met").mkdir()
    known = {"MEETING": str(folder / "met"), "PIDS": str(folder / "pids"), **env}
    return run_pytest(starter, folder, "-rA", *options, "test_cases.py", env=known)


def test_a_session_reports_as_one_world_at_a_time_does(starter: Starter, tmp_path: Path) -> None:
    """Same order, outcomes, XML, times, warnings and events; three worlds run at once, plain tests run alone."""
    ended = _run(starter, tmp_path, _MIXED, "-v", "--dist-jobs=3", "--junitxml=out.xml", "--dist-events=events.jsonl")
    assert ended.code == 1, ended.log
    shown = [line.split()[:2] for line in ended.log.splitlines() if line.endswith("%]")]
    names = ["plain_before", "slow", "quick_fails", "is_third", "plain_between", "skipped", "expected", "warns"]
    names = [*(f"test_{name}" for name in names), "test_pool[0]", "test_pool[1]", "test_method"]
    assert [name.rpartition("::")[2] for name, _ in shown] == names, ended.log
    words = ["PASSED", "PASSED", "FAILED", "PASSED", "FAILED", "SKIPPED", "XFAIL", *["PASSED"] * 4]
    assert [word for _, word in shown] == words, ended.log
    assert "2 failed, 7 passed, 1 skipped, 1 xfailed, 1 warning" in ended.log
    assert "UserWarning: odd [ranks 0, 1]" in ended.log
    assert "rank 1 raised RuntimeError: planted in call" in ended.log.partition("= FAILURES =")[2]

    # One process sets the fixture up for both plain tests, and the tests of a worker pool share it.
    assert len((tmp_path / "pids").read_text().split()) == 1
    assert len(set((tmp_path / "pids.pool").read_text().split())) == 1

    cases = list(ElementTree.parse(tmp_path / "out.xml").getroot().iter("testcase"))
    found = {case.attrib["name"]: {element.tag for element in case if element.tag != "system-out"} for case in cases}
    assert list(found) == names
    assert found["test_quick_fails"] == {"failure", "properties"}
    assert found["test_skipped"] == found["test_expected"] - {"properties"} == {"skipped"}

    # The runner has not waited for the second world, which ended during the first; its time is that of its ranks.
    times = {case.attrib["name"]: float(case.attrib["time"]) for case in cases}
    assert times["test_quick_fails"] >= float((tmp_path / "pids.seconds").read_text())
    record = read_streams([tmp_path / "events.jsonl"], "events")
    assert [case.culprit for case in record.cases.values() if case.status == "failed"] == [1, None]
    assert not record.problems
    slow, quick = (record.cases[f"test_cases.py::test_{name}"] for name in ("slow", "quick_fails"))
    assert (quick.began_at_s or 0) < (slow.began_at_s or 0) + (slow.duration_s or 0)


_STOPS = """
    import os
    import pytest
    from meeting import meet

    pytestmark = pytest.mark.distributed(world_size=2)

    def test_fails(world):
        meet("fails", "hangs")
        meet("fails", "hangs_too")
        assert world.rank

    @pytest.mark.parametrize("name", ["hangs", "hangs_too"])
    def test_hangs(world, name):
        meet(name, "fails")
        meet("hangs_on", "never")

    def test_never_begins(world):
        meet("never", "never")
"""


def test_the_first_failure_stops_the_other_worlds(starter: Starter, tmp_path: Path) -> None:
    """With -x the worlds that were started ahead are killed, and no later case is reported."""
    ended = _run(starter, tmp_path, _STOPS, "-x", "-v", "--dist-jobs=3")
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

    pytestmark = pytest.mark.distributed(world_size=2)

    @pytest.mark.parametrize("name", ["first", "second"])
    def test_waits(world, name):
        meet(name, "never")

    def test_ends(world):
        {body}
"""


def _wait_for(*paths: Path) -> None:
    until_s = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until_s, paths
        time.sleep(0.02)


@pytest.mark.parametrize("victim", ["group", "killed"])
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
    child.send_group_signal(signal.SIGINT)
    assert child.wait() == 2, child.log
    assert "KeyboardInterrupt" in child.log
    for name in ("first", "second"):
        assert f"test_cases.py::test_waits[{name}] (world of 2): " in child.log
    assert "never started" not in child.log


_FAILURES = """
    import os
    import signal
    import subprocess
    import time
    import pytest
    from meeting import meet

    pytestmark = pytest.mark.distributed(world_size=2)

    MET = os.environ["MEETING"]

    def wait_gone(name):
        meet("first", name)
        pid = ""
        while not pid:
            pid = open(os.path.join(MET, name)).read()
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.02)

    def note_pid(name):
        with open(os.path.join(MET, name), "w") as file:
            file.write(str(os.getpid()))

    @pytest.mark.distributed(world_size=1)
    def test_first(world):
        # While the runner waits for this one, the others end, each at its moment.
        wait_gone("killed")
        wait_gone("hung")
        meet("first", "orphaned")
        meet("first", "passed")

    def test_is_killed(world):
        if world.rank == 1:
            note_pid("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        world.barrier()

    @pytest.mark.distributed(timeout=3)
    def test_hangs(world):
        if world.rank == 1:
            note_pid("hung")
            while True:
                time.sleep(0.01)

    @pytest.mark.distributed(world_size=1)
    def test_kills_its_fork_server(world):
        subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
        note_pid("orphaned")
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    @pytest.mark.parametrize("n", range(3))
    def test_passes(world, n):
        meet("passed", "first")

    @pytest.mark.distributed(world_size=None, expected_exits={5: 0})
    def test_cannot_start(world): ...

    @pytest.mark.distributed(world_size=1)
    def test_last(world): ...
"""


def test_each_world_fails_alone(starter: Starter, tmp_path: Path) -> None:
    """A crash, a hang, a dead fork server and a world that cannot start cost no other world, at their moment."""
    ended = _run(starter, tmp_path, _FAILURES, "--dist-jobs=4")
    ended.check(
        failed="test_is_killed test_hangs test_kills_its_fork_server test_cannot_start",
        passed="test_first test_passes[0] test_passes[1] test_passes[2] test_last",
    )
    texts = ended.failures()
    assert "rank 1 was killed by SIGKILL (9)" in texts["test_is_killed"]
    assert "rank 1 " in texts["test_hangs"]
    assert "The fork server (pid " in texts["test_kills_its_fork_server"]
    assert "It names a rank that does not exist" in texts["test_cannot_start"]


_NO_ROOM = """
    import resource
    import pytest

    # Room for one world that starts, beside one or two that run.
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

    @pytest.mark.distributed(world_size=8, init=False)
    @pytest.mark.parametrize("n", range(4))
    def test_passes(n): ...
"""


def test_a_world_without_room_starts_in_its_turn(starter: Starter, tmp_path: Path) -> None:
    """Too few open files for all worlds at once: no test fails for it."""
    ended = _run(starter, tmp_path, _NO_ROOM, "--dist-jobs=4")
    ended.check(passed="test_passes[0] test_passes[1] test_passes[2] test_passes[3]")


_LATE = """
    import os
    import pytest
    from meeting import meet

    pytestmark = pytest.mark.distributed(world_size=1)

    def test_first(world):
        meet("first", "skipped")
        meet("first", "removed")

    @pytest.mark.parametrize("name", ["skipped", "removed"])
    def test_unwanted(world, name):
        meet(name, "never")

    def test_last(world):
        with open(os.environ["PIDS"], "a") as file:
            file.write("ran ")
"""
_LATE_CONFTEST = """
    import os
    import pytest

    def pytest_runtest_setup(item):
        if item.name == "test_unwanted[skipped]" and "RANK" not in os.environ:
            pytest.skip("late")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item, nextitem):
        result = yield
        if item.name == "test_first":
            del item.session.items[2]
        return result
"""


def test_a_world_that_is_not_wanted_any_more_is_cancelled(starter: Starter, tmp_path: Path) -> None:
    """Another plugin has skipped or removed the tests after their worlds had started. The next test runs once."""
    write_file(tmp_path, "conftest.py", _LATE_CONFTEST)
    ended = _run(starter, tmp_path, _LATE, "--dist-jobs=3")
    ended.check(passed="test_first test_last", log=[" 1 skipped", "late"])
    assert (tmp_path / "pids").read_text() == "ran "


_ON_GPUS = """
    import os
    import pytest
    import torch
    from meeting import meet

    # The GPUs are files, and torch may be a build without CUDA.
    torch.cuda.set_device = lambda device: None
    pytestmark = pytest.mark.distributed(world_size=2, init=False)

    def test_one():
        meet("one", "two")
        print("one on", os.environ["CUDA_VISIBLE_DEVICES"])

    def test_two():
        meet("two", "one")
        print("two on", os.environ["CUDA_VISIBLE_DEVICES"])

    def test_three(): ...
"""


def test_no_more_worlds_run_at_once_than_there_are_gpus_for(starter: Starter, tmp_path: Path) -> None:
    """The others run afterwards, and the log says why. With -s, lines of ranks come in the turn of their test."""
    nodes = make_nodes(tmp_path / "nodes", range(5))
    env = {NODES_VARIABLE: str(nodes), NVML_VARIABLE: "/no/such/library"}
    ended = _run(starter, tmp_path, _ON_GPUS, "-s", "--dist-jobs=4", "--dist-backend=cuda_gloo", **env)
    ended.check(passed="test_one test_two test_three")
    why = "because a world of 2 ranks needs 2 of 5 GPU(s)"
    assert f"dist_testing: --dist-jobs=4: 2 world(s) at a time, {why}" in ended.log
    found = {}
    for name in ("one", "two"):
        prefix = f"[rank 1] {name} on "
        (line,) = [line for line in ended.log.splitlines() if line.startswith(prefix)]
        found[name] = set(line.removeprefix(prefix).split(","))
    assert len(found["one"] | found["two"]) == 4


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
