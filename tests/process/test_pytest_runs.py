"""Ways to run marked tests: beside plain ones, after an unclean import, with the package installed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import pytest

import dist_testing
from tests.support.children import Ended, run_cases, run_pytest, write_file
from tests.support.starter import Starter


def test_fixtures_of_a_file_with_plain_and_marked_tests(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a module's fixture is set up in the wrong process, or stays for the next file."""
    note = """
        def note(text):
            with open("events", "a") as file:
                file.write(text + "\\n")
    """
    write_file(tmp_path, "noted.py", note)
    source = """
        import pytest
        from noted import note

        @pytest.fixture(scope="module", autouse=True)
        def of_the_module():
            note("setup")
            yield
            note("teardown")

        def test_plain_before():
            note("plain before")

        @pytest.mark.distributed(world_size=1)
        def test_marked(world):
            note("marked")

        def test_plain_after():
            note("plain after")

        @pytest.mark.distributed(world_size=1)
        def test_last(world):
            note("last")
    """
    write_file(tmp_path, "test_first.py", source)
    write_file(tmp_path, "test_second.py", "from noted import note\n\ndef test_next():\n    note('next')\n")
    ended = run_pytest(starter, tmp_path, "test_first.py", "test_second.py")
    assert ended.code == 0, ended.log
    assert (tmp_path / "events").read_text().splitlines() == [
        *("setup", "plain before"),
        *("setup", "marked", "teardown"),
        "plain after",
        *("setup", "last", "teardown"),
        *("teardown", "next"),
    ]


def test_reports_for_other_programs(starter: Starter, tmp_path: Path) -> None:
    """If this fails, `--junitxml`, `--durations` or `--tb=line` lack the one-line reason or the report.

    Or the XML file lacks the number of the test in the project's system for test cases.
    """
    conftest = """
        def pytest_collection_modifyitems(items):
            items[0].user_properties.append(("test_id", 1501))
    """
    write_file(tmp_path, "conftest.py", conftest)
    source = """
        import pytest

        @pytest.mark.distributed(world_size=2)
        def test_fails(world):
            left = [1, world.rank]
            if world.rank == 1:
                assert left == [1, 2]
            world.barrier()
    """
    xml = tmp_path / "out.xml"
    ended = run_cases(starter, tmp_path, source, f"--junitxml={xml}", "--durations=0", "-vv")
    assert "s call     test_cases.py::test_fails" in ended.log
    said = "rank 1 raised AssertionError: assert [1, 1] == [1, 2] in call"
    assert f"FAILED test_cases.py::test_fails - {said}" in ended.log.replace("\n", " "), ended.log
    (case,) = ElementTree.parse(xml).iter("testcase")
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message", "").startswith(said)
    assert ">           assert left == [1, 2]" in (failure.text or ""), failure.text
    assert "At index 1 diff: 1 != 2" in (failure.text or "")
    assert "rank 1 of 2 failed first" in (failure.text or "")
    properties = {item.get("name"): item.get("value") for item in case.iter("property")}
    assert properties["culprit"] == "1"
    assert properties["test_id"] == "1501"
    assert f"test_cases.py:4: {said}" in run_cases(starter, tmp_path, source, "--tb=line").log


def test_sub_tests_of_pytest(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a failure does not name its sub-test or lacks its output, or the skip of one hides the test."""
    pytest.importorskip("_pytest.subtests", reason="sub-tests need pytest 9")
    source = """
        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)

        def test_skips_one(world, subtests):
            with subtests.test(number=1):
                pytest.skip("planted")
            with subtests.test(number=2):
                pass

        def test_fails(world, subtests):
            for number in range(4):
                with subtests.test(number=number):
                    print(f"planted output {number}")
                    assert number % 2 == 0

        def test_fails_after_it(world, subtests):
            with subtests.test(number=1):
                pass
            raise ValueError("after the sub-test")
    """
    ended = run_cases(starter, tmp_path, source)
    ended.check(
        passed="test_skips_one",
        failed="test_fails test_fails_after_it",
        log=["(number=1)", "(number=3)", "raised ValueError: after the sub-test", "\nplanted output 2\n"],
    )


def test_exit_ends_the_session_and_is_reported_at_the_line_of_the_test(starter: Starter, tmp_path: Path) -> None:
    """If this fails, later tests run after `pytest.exit`, or its report shows frames that say nothing."""
    source = """
        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)

        def test_leaves(world):
            if world.rank == 1:
                pytest.exit("planted reason")
            world.barrier()

        def test_never(world): ...
    """
    ended = run_cases(starter, tmp_path, source)
    assert ended.code == pytest.ExitCode.INTERRUPTED
    ended.check(failed="test_leaves", log=['pytest.exit("planted reason")', "Interrupted: planted reason"])
    assert "pluggy" not in ended.log.partition("= FAILURES =")[2], ended.log


def test_ranks_of_an_unclean_runner_come_from_a_fresh_interpreter(starter: Starter, tmp_path: Path) -> None:
    """If this fails, ranks inherit locks in any state, because fork copies them, or the log lacks the reason.

    tests/unit/test_clean.py has every reason.
    """
    source = """
        import os
        import threading
        import pytest
        import torch
        import torch.distributed as dist

        if os.getpid() == int(os.environ.setdefault("RUNNER", str(os.getpid()))):
            threading.Thread(target=threading.Event().wait, name="of the import", daemon=True).start()
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            torch.set_num_threads(2)
            torch.ones(1 << 20).exp_()

        @pytest.mark.distributed(world_size=2)
        def test_sums(world):
            total = torch.ones(1 << 20)
            dist.all_reduce(total)
            assert total.exp().max() > 7
    """
    ended = run_cases(starter, tmp_path, source)
    said = ("of the import", "a process group is initialised", "thread(s) of native code are running")
    ended.check(passed="test_sums", log=["ranks are forked from a fresh interpreter and not from this one", *said])


@pytest.mark.parametrize("unclean", ["", "threading.Thread(target=threading.Event().wait, daemon=True).start()"])
def test_torch_is_loaded_once_even_if_no_test_imports_it(starter: Starter, tmp_path: Path, unclean: str) -> None:
    """If this fails, every rank of every case loads torch: 2 s of every core instead of 0.1 s."""
    source = f"""
        import os
        import sys
        import threading
        import pytest

        if os.getpid() == int(os.environ.setdefault("RUNNER", str(os.getpid()))):
            assert "torch" not in sys.modules
            {unclean}
        os.register_at_fork(
            after_in_child=lambda: os.write(2, f"forked, torch is loaded: {{'torch' in sys.modules}}\\n".encode())
        )

        @pytest.mark.distributed(world_size=2)
        def test_meets(world):
            world.barrier()
    """
    write_file(tmp_path, "test_cases.py", source)
    ended = run_pytest(starter, tmp_path, "-s", "test_cases.py", fresh=True)
    assert ended.code == 0, ended.log
    assert "forked, torch is loaded: True" in ended.log
    assert "forked, torch is loaded: False" not in ended.log


def test_installed_package_registers_itself(starter: Starter, tmp_path: Path) -> None:
    """If this fails, `pip install` on a machine without Bazel is not enough, and users need options or a conftest."""
    if _major_version("setuptools") < 77 or _major_version("pip") < 21:
        pytest.skip("building the package takes pip 21 and setuptools 77 in this environment")
    source = Path(dist_testing.__file__).parents[1]
    if not (source / "pyproject.toml").exists():
        pytest.skip("the sources here are not the whole project: pyproject.toml is missing")
    copy = tmp_path / "source"
    shutil.copytree(source / "dist_testing", copy / "dist_testing", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(source / name, copy / name)
    installed = tmp_path / "installed"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", f"--target={installed}"]
    child = starter.start(["-m", "pip", "install", *options, str(copy)], tmp_path, fresh=True)
    assert child.wait() == 0, child.log

    project = tmp_path / "project"
    write_file(
        project,
        "test_cases.py",
        "import pytest\n\n@pytest.mark.distributed(world_size=2)\ndef test_marked(world):\n    pass\n",
    )
    write_file(project, "pytest.ini", "[pytest]\n")
    others = [path for path in sys.path if path and Path(path).resolve() != source.resolve()]
    env = {"PYTHONPATH": os.pathsep.join([str(installed), *others]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": None}
    child = starter.start(["-m", "pytest", "-rA", "test_cases.py"], project, env=env, fresh=True)
    assert child.wait() == 0, child.log
    assert "plugins: " in child.log
    assert "dist_testing-" in child.log
    assert Ended(0, child.log).outcomes() == {"test_marked": "PASSED"}


def _major_version(package: str) -> int:
    """Return the major version of an installed package, without importing it; 0 if it is missing."""
    try:
        return int(metadata.version(package).partition(".")[0])
    except metadata.PackageNotFoundError:
        return 0


# One rank: each costs the start of an interpreter.
_SPAWN = """
import pytest

pytestmark = pytest.mark.distributed(world_size=1, isolation="spawn", init=False)

def test_fails(world):
    assert world.rank != 0

def test_passes(world): ...
"""


# As pytest-reportlog does.
_REPORT_LOG = """
    def pytest_addoption(parser):
        parser.addoption("--report-log", dest="report_log", default=None)

    def pytest_configure(config):
        if config.option.report_log:
            config.pluginmanager.register(Log(config.option.report_log))

    class Log:
        def __init__(self, path):
            self.file = open(path, "w", buffering=1)

        def pytest_runtest_logreport(self, report):
            if report.when == "call":
                print(report.nodeid, report.outcome, file=self.file)
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--lf", "--nf", "--sw"), {"test_fails": "FAILED"}),
        (("--ff", "--sw-skip", "--cache-clear"), {"test_fails": "FAILED", "test_passes": "PASSED"}),
    ],
)
def test_the_cache_and_the_report_log_belong_to_the_runner(
    starter: Starter, tmp_path: Path, options: tuple[str, ...], expected: dict[str, str]
) -> None:
    """If this fails, no fresh interpreter knows the options of the cache, or each empties the log of the session."""
    write_file(tmp_path, ".pytest_cache/v/cache/lastfailed", '{"test_cases.py::test_fails": true}\n')
    write_file(tmp_path, "conftest.py", _REPORT_LOG)
    ended = run_cases(starter, tmp_path, _SPAWN, *options, "--report-log=log.txt")
    assert ended.outcomes() == expected, ended.log
    assert "rank 0 raised AssertionError: assert 0 != 0" in ended.log, ended.log
    cached = (tmp_path / ".pytest_cache/v/cache/lastfailed").read_text(encoding="utf-8")
    assert json.loads(cached) == {"test_cases.py::test_fails": True}
    reported = (tmp_path / "log.txt").read_text(encoding="utf-8").split()[1::2]
    assert reported == [outcome.lower() for outcome in expected.values()]
