"""Cases that a quarantine file names: what decides about the run, and where each outcome is told."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dist_testing.report.facts import ended
from dist_testing.report.gather import gather
from tests.support.bell import Bell
from tests.support.children import Ended, Target, run_pytest, start_pytest, write_file
from tests.support.starter import Starter

_CASES = """
    import os
    import signal
    import unittest
    import pytest
    import torch.distributed as dist
    import dist_testing

    @pytest.mark.distributed(world_size=2)
    class TestRanks:
        def test_passes(self, world): ...

        def test_raises(self, world):
            assert world.rank != 1, "rank 1 is wrong"

        def test_dies(self, world):
            if world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()

        @pytest.mark.distributed(world_size=2, isolation="spawn")
        def test_fresh(self, world):
            assert False, "wrong"

        @pytest.mark.parametrize("number", [1, 2])
        def test_number(self, world, number):
            assert number == 2

        def test_hangs_the_machine(self, world):
            assert False, "was called"

        @pytest.mark.xfail(reason="known")
        def test_expected(self, world):
            assert False

    class TestUnittest(dist_testing.MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def test_method(self):
            assert self.rank == 0

    class TestParts(unittest.TestCase):
        def test_parts(self):
            for number in range(3):
                with self.subTest(number=number):
                    self.assertNotEqual(number, 1, "a part is wrong")

    def test_plain():
        assert False, "plain is wrong"

    @pytest.fixture
    def broken():
        raise ValueError("the fixture is wrong")

    def test_with_fixture(broken): ...
"""

# Failures that no row takes out of the verdict.
_GATING = """
    import pytest
    from dist_testing.ext import LaunchError

    @pytest.mark.distributed(world_size=2)
    def test_expired(world):
        assert False

    @pytest.mark.distributed(world_size=2)
    def test_on_nccl(world):
        assert False

    @pytest.mark.distributed(world_size=2)
    @pytest.mark.parametrize("number", [1, 2])
    def test_parameter(world, number):
        assert False

    def test_machine():
        raise LaunchError("the machine is broken")

    @pytest.fixture(scope="module")
    def shared():
        yield
        raise ValueError("another case has left something behind")

    def test_uses_it(shared): ...

    def test_last_with_it(shared): ...
"""


def _row(cases: str, *more: str, mode: str = "run", expires: str = "2999-01-31") -> str:
    lines = (f"cases = [{cases}]", f'mode = "{mode}"', f"expires = {expires}", *more)
    return "\n".join(["", "[[row]]", *lines, 'reason = "breaks"', 'link = "bug/1"', 'owner = "comms"', ""])


def _quarantine(*rows: str) -> str:
    return "schema = 1\n" + "".join(rows)


def _statuses(ended_run: Ended) -> dict[str, str]:
    """Read the list at the end of the log: last part of each case's name, to how it ended."""
    section = ended_run.log.partition("= quarantined cases =")[2].partition("\n===")[0]
    found = re.findall(r"^(\w[\w ]*): ([^\s:]+::\S+?)(?:: .*)?$", section, re.MULTILINE)
    return {nodeid.rpartition("::")[2]: status for status, nodeid in found}


_EXPECTED = {
    **dict.fromkeys(("test_passes", "test_number[2]"), "passed"),
    **dict.fromkeys(
        ("test_raises", "test_dies", "test_fresh", "test_number[1]", "test_method", "test_plain", "test_parts"),
        "failed",
    ),
    "test_with_fixture": "failed",
    "test_hangs_the_machine": "skipped",
    "test_expected": "failed as expected",
}


def _all_of(file: str) -> str:
    ranks = f"{file}::TestRanks::"
    return _quarantine(
        _row(f'"{ranks}test_pas*", "{ranks}test_raises", "{ranks}test_number"'),
        _row(f'"{ranks}test_dies", "{ranks}test_fresh"', 'torch = ">=2.0"', "world_size = 2"),
        _row(f'"{ranks}test_hangs_the_machine"', mode="skip"),
        _row(f'"{ranks}test_expected"', 'backend = "gloo"', "nodes = 1"),
        # It applies to one of the two.
        _row(f'"{file}::TestUnittest", "{file}::test_plain"', "world_size = 2"),
        _row(f'"{file}::test_plain", "{file}::test_with*", "{file}::TestParts"'),
    )


def test_failures_of_quarantined_cases_are_told_and_do_not_decide(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a known failure reddens every run, or a failure is shown as a pass."""
    write_file(tmp_path, "test_cases.py", _CASES)
    (tmp_path / "quarantine.toml").write_text(_all_of("test_cases.py"), encoding="utf-8")
    options = ("--dist-quarantine=quarantine.toml", "--junitxml=junit.xml", "--dist-events=events.jsonl")
    run = run_pytest(starter, tmp_path, *options, "test_cases.py")
    assert run.code == pytest.ExitCode.OK, run.log
    # Since pytest 9, a sub-test counts.
    assert re.search("2 passed, 1 skipped, 1 xfailed, [89] quarantined in", run.log), run.log
    assert _statuses(run) == _EXPECTED
    listed = run.log.partition("= quarantined cases =")[2]
    assert len(re.findall("^(?:passed|failed|skipped).*::test_parts", listed, re.MULTILINE)) == 1
    failures = run.log.partition("= QUARANTINED FAILURES =")[2].partition("= quarantined cases =")[0]
    for told in ("rank 1 is wrong", "was killed by SIGKILL", "plain is wrong", "fixture is wrong", "a part is wrong"):
        assert told in failures
    assert "breaks (owner comms, bug/1, until 2999-01-31)" in run.log
    assert "does not apply" not in run.log
    failed = {name for name, status in _EXPECTED.items() if status == "failed"}
    # pytest's own XML.
    cases = {str(case.get("name")): case for case in ElementTree.parse(tmp_path / "junit.xml").iter("testcase")}
    for name, case in cases.items():
        is_skipped = case.find("skipped[@message='quarantined: breaks']") is not None
        assert is_skipped == (name in failed or name == "test_hangs_the_machine")
        properties = {item.get("name"): item.get("value") for item in case.iter("property")}
        assert len(properties) == len(list(case.iter("property")))
        assert properties["quarantine"] == _EXPECTED[name]
        assert properties["quarantine_owner"] == "comms"
        assert ("quarantine_failure" in properties) == (name in failed)
    # The records: reports count each as a failure of its case.
    (recorded,) = gather([tmp_path / "events.jsonl"]).runs
    assert {case.nodeid.rpartition("::")[2] for case in recorded.cases if ended(case) == "failed"} == failed
    assert not recorded.is_bad


def test_it_hides_nothing_else(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a row takes more out of the verdict than its cases, or stays in force for ever."""
    write_file(tmp_path, "test_cases.py", _GATING)
    rows = (
        _row('"test_cases.py::test_expired"', expires="2020-01-31"),
        _row('"test_cases.py::test_on_nccl"', 'backend = "nccl"'),
        _row('"test_cases.py::test_parameter[1]"'),
        _row('"test_cases.py::test_machine", "test_cases.py::test_last_with_it"'),
        _row('"test_cases.py::test_gone", "test_c*.py::test_gone_too", "test_removed.py"'),
        # Of a file that this session does not collect.
        _row('"test_other.py::test_gone"'),
    )
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "quarantine.toml").write_text(_quarantine(*rows), encoding="utf-8")
    write_file(tmp_path, "test_other.py", "def test_other():\n    pass\n")
    options = ("-rA", "-o", "dist_quarantine=rows/quarantine.toml", "test_cases.py")
    run = run_pytest(starter, tmp_path, *options)
    assert run.code == pytest.ExitCode.TESTS_FAILED, run.log
    failed = ("test_expired", "test_on_nccl", "test_parameter[2]", "test_machine", "row 1", "row 5")
    others = {"test_uses_it": "PASSED", "test_last_with_it": "ERROR"}
    assert run.outcomes() == {**dict.fromkeys(failed, "FAILED"), **others}
    failures = run.failures()
    expired, stale = failures["toml::row 1"].strip().splitlines(), failures["toml::row 5"].strip().splitlines()
    assert expired[0].endswith("has expired on 2020-01-31: breaks; owner comms, bug/1.")
    assert "names no case: 'test_cases.py::test_gone', 'test_removed.py'; owner comms, bug/1." in stale[0]
    assert len(expired) == len(stale) == 3
    assert _statuses(run) == {"test_parameter[1]": "failed", "test_last_with_it": "passed"}
    assert "does not apply: quarantine.toml: row 2 (test_cases.py::test_on_nccl): backend is gloo" in run.log


def test_only_files_that_were_collected_as_a_whole_are_judged(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a run of some tests fails because of rows of others, or no run sees that a row is stale."""
    write_file(tmp_path, "test_a.py", "def test_one():\n    pass\n\n\ndef test_two():\n    pass\n")
    write_file(tmp_path, "test_b.py", "def test_three():\n    pass\n")
    rows = (
        _row('"test_a.py::test_one", "test_a.py::test_two"'),
        _row('"test_b.py::test_gone", "test_?.py::test_gone"'),
    )
    (tmp_path / "quarantine.toml").write_text(_quarantine(*rows), encoding="utf-8")
    given = ("-rA", "--dist-quarantine=quarantine.toml")
    for tests in (["test_a.py::test_one"], ["test_a.py", "-k", "one"], ["test_a.py"], ["test_b.py::test_three"]):
        run = run_pytest(starter, tmp_path, *given, *tests)
        assert run.code == pytest.ExitCode.OK, run.log
    for chosen, stale in {
        "test_b.py": "'test_b.py::test_gone';",
        f"../{tmp_path.name}": "'test_b.py::test_gone', 'test_?.py::test_gone';",
    }.items():
        run = run_pytest(starter, tmp_path, *given, chosen)
        assert run.code == pytest.ExitCode.TESTS_FAILED, run.log
        assert stale in run.failures()["toml::row 2"]
    # A job without GPUs leaves their folder out.
    (tmp_path / "gpu" / "__pycache__").mkdir(parents=True)
    write_file(tmp_path, "gpu/test_c.py", "def test_four():\n    assert False\n")
    of_gpus = (_row('"gpu/*"'), _row('"gpu/test_?.py::test_four"', 'torch = "<1"'), _row('"*::test_gone"'))
    (tmp_path / "quarantine.toml").write_text(_quarantine(*of_gpus), encoding="utf-8")
    for left_out in ("gpu", "gpu/test_c.py"):
        run = run_pytest(starter, tmp_path, *given, f"--ignore={left_out}")
        assert run.code == pytest.ExitCode.OK, run.log
    run = run_pytest(starter, tmp_path, *given, "-o", "norecursedirs=other")
    assert list(run.failures()) == ["toml::row 3"]
    # A path of the ini file is no argument for other folders.
    of_folders = (_row('"gpu/*"'), _row('"other/*"'), _row('"*::test_gone"'))
    (tmp_path / "quarantine.toml").write_text(_quarantine(*of_folders), encoding="utf-8")
    assert list(run_pytest(starter, tmp_path, *given, "-o", "testpaths=gpu").failures()) == ["toml::row 3"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "quarantine.toml cannot be read: [Errno 2]"),
        (_quarantine(_row('"test_a.py"'), _row('"test_*"')), "rows 1 and 2 are both for test_a.py::test_one"),
    ],
)
def test_a_wrong_file_ends_the_session(starter: Starter, tmp_path: Path, text: str | None, told: str) -> None:
    """If this fails, a typing error in the file makes a traceback, or a run without the quarantine."""
    write_file(tmp_path, "test_a.py", "def test_one():\n    pass\n")
    # A run without Bazel does not have this package.
    write_file(tmp_path, "runfiles.py", "raise ModuleNotFoundError\n")
    if text is not None:
        (tmp_path / "quarantine.toml").write_text(text, encoding="utf-8")
    run = run_pytest(starter, tmp_path, "--dist-quarantine=quarantine.toml")
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert told in run.log
    assert "Traceback" not in run.log


def test_an_interrupted_run_stays_interrupted(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a run that a signal has ended inside a quarantined case looks like a pass."""
    source = """
        import threading
        import pytest
        from tests.support.bell import ring

        @pytest.mark.distributed(world_size=2)
        def test_hangs(world):
            ring("hangs")
            threading.Event().wait()
    """
    write_file(tmp_path, "test_cases.py", source)
    (tmp_path / "quarantine.toml").write_text(_quarantine(_row('"test_cases.py"')), encoding="utf-8")
    with Bell(tmp_path) as bell:
        child = start_pytest(starter, tmp_path, "--dist-quarantine=quarantine.toml", env=bell.env)
        bell.wait(2, child)
    child.send_signal(signal.SIGTERM)
    assert child.wait() == pytest.ExitCode.INTERRUPTED, child.log


def test_under_bazel(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a target is red for a known failure, or its test.xml has a failure as a pass."""
    target = Target(tmp_path, {"test_cases.py": _CASES})
    write_file(target.package, "quarantine.toml", _all_of("pkg/test_cases.py"))
    run = target.run(starter, "--dist-quarantine=_main/pkg/quarantine.toml")
    assert run.code == pytest.ExitCode.OK, run.log
    for name, result in target.xml().items():
        status = _EXPECTED[name]
        assert result.properties["quarantine"] == status
        assert result.outcome == ("passed" if status == "passed" else "skipped")
        if status == "failed":
            assert result.message == "xfail: quarantined: breaks"
            assert result.properties["quarantine_failure"]
    assert "rank 1 was killed by SIGKILL" in run.log.partition("= QUARANTINED FAILURES =")[2]
    # An expired row fails the target, and has its case in the XML.
    text = (target.package / "quarantine.toml").read_text(encoding="utf-8").replace("2999", "2020", 1)
    (target.package / "quarantine.toml").write_text(text, encoding="utf-8")
    # The flag of the workspace puts the file beside the library; that is another place here.
    conftest = """
        from pathlib import Path
        from dist_testing import built_in

        built_in.QUARANTINE_FILE = Path(__file__).with_name("quarantine.toml")
    """
    write_file(target.package, "conftest.py", conftest)
    run = target.run(starter, env={"TESTBRIDGE_TEST_ONLY": "test_plain"})
    assert run.code == pytest.ExitCode.TESTS_FAILED, run.log
    results = {name: result.outcome for name, result in target.xml().items()}
    assert results == {"test_plain": "skipped", "row 1": "failure"}


def test_a_test_in_the_runner_that_hangs_under_bazel_is_quarantined(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the limit of the target makes a known hang a failure that decides."""
    target = Target(
        tmp_path, {"test_cases.py": "import threading\n\ndef test_hangs():\n    threading.Event().wait()\n"}
    )
    write_file(target.package, "quarantine.toml", _quarantine(_row('"pkg/test_cases.py"')))
    run = target.run(starter, "--dist-quarantine=_main/pkg/quarantine.toml", env={"TEST_TIMEOUT": "20"})
    assert run.code == pytest.ExitCode.OK, run.log
    (result,) = target.xml().values()
    assert "its call had not ended after" in result.properties["quarantine_failure"]
