"""What asks for an add-on that is missing: the error names it. `test_core_alone.py` runs this file without add-ons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dist_testing
from tests.support.children import Target, run_cases
from tests.support.starter import Starter

_CASE = """
    import pytest


    @pytest.mark.distributed({arguments})
    def test_it(world):
        pass
"""
_ATTRIBUTE = """
    import pytest


    @pytest.mark.distributed
    def test_it(world):
        world.faults.kill(0)
"""
_END = "Install the package that brings it, or do without."


@pytest.fixture(scope="module")
def starters() -> Iterator[Starter]:
    """The process from which all children are forked."""
    with Starter() as starter:
        yield starter


@pytest.fixture
def starter(starters: Starter) -> Iterator[Starter]:
    """Starts children; at the end of the test none of their processes may be running."""
    yield starters
    starters.wait_nothing_left(limit_s=15)


@pytest.mark.parametrize(
    ("source", "options", "subject", "add_on"),
    [
        (_CASE.format(arguments=""), ["--dist-backend=cuda_gloo"], "test_it with backend cuda_gloo", "gpus"),
        (_CASE.format(arguments=""), ["--dist-watch"], "--dist-watch", "watch"),
        (_CASE.format(arguments=""), ["--dist-jobs=2"], "--dist-jobs=2", "jobs"),
    ],
    ids=["gpus", "watch", "jobs"],
)
def test_who_asks_for_it_learns_its_name(
    starter: Starter, tmp_path: Path, source: str, options: list[str], subject: str, add_on: str
) -> None:
    """If this fails, a run without the add-on ends in a traceback, or passes without what it asked for."""
    ended = run_cases(starter, tmp_path, source, *options)
    assert ended.code != 0, ended.log
    said = rf"{re.escape(subject)}: the add-on '{add_on}' is missing\.\n.*This dist_testing has no add-ons\.\n.*{_END}"
    assert re.search(said, ended.log), ended.log


@pytest.mark.parametrize(
    ("arguments", "option", "subject"),
    [
        ("", "--dist-backend=threaded", "Backend 'threaded' connects threads of one process"),
        ("", "--dist-isolation=thread", "--dist-isolation=thread: expected one of fork, spawn, pool"),
        ('isolation="thread"', "--dist-backend=gloo", "isolation = 'thread'"),
    ],
    ids=["backend", "option", "marker"],
)
def test_ranks_that_are_threads(starter: Starter, tmp_path: Path, arguments: str, option: str, subject: str) -> None:
    """If this fails, a run without the add-on that makes threads ends in a traceback, or makes processes."""
    ended = run_cases(starter, tmp_path, _CASE.format(arguments=arguments), option)
    assert ended.code != 0, ended.log
    assert subject in ended.log, ended.log
    assert "fork, spawn, pool" in ended.log, ended.log


def test_a_setting_of_a_test(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test that asks for two nodes passes on one."""
    ended = run_cases(starter, tmp_path, _CASE.format(arguments="nodes=2, world_size=2"))
    assert ended.code != 0, ended.log
    assert "@pytest.mark.distributed with nodes = 2." in ended.log
    assert "install the add-on 'nodes' if it is a setting of one" in ended.log


def test_a_setting_of_the_command_line(starter: Starter, tmp_path: Path) -> None:
    """If this fails, tests of a command line that asks for two nodes pass on one."""
    ended = run_cases(starter, tmp_path, _CASE.format(arguments=""), "--dist-nodes=2", "--dist-world-size=2")
    assert ended.code != 0, ended.log
    assert "unrecognized arguments: --dist-nodes=2" in ended.log


@pytest.mark.parametrize(
    ("name", "setting"), [("nodes", 2), ("gpus", {"archs": [], "per_rank": 1, "ranks_per_gpu": 1})]
)
def test_a_setting_of_a_target(starter: Starter, tmp_path: Path, name: str, setting: object) -> None:
    """If this fails, a target that asks for two nodes passes on one, and one for GPUs takes those of others."""
    target = Target(tmp_path, {"test_cases.py": _CASE.format(arguments="")}, spec={"settings": {name: setting}})
    ended = target.run(starter)
    assert ended.code != 0, ended.log
    assert f"DIST_TESTING_SPEC with {name} = {setting}: the add-on '{name}' is missing." in ended.log
    assert _END in ended.log


def test_an_attribute_of_a_world_that_an_add_on_makes(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test without the add-on gets an error that says nothing of add-ons."""
    ended = run_cases(starter, tmp_path, _ATTRIBUTE, "--dist-world-size=1")
    assert ended.code == 1, ended.log
    assert "world.faults: a world has no attribute of this name." in ended.log
    assert "Add-ons give it these: none." in ended.log


def test_a_target_of_bazel_with_a_program(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a program is collected as a file of tests."""
    fields: dict[str, Any] = {"settings": {"programs": []}, "srcs": ["//pkg:train.py"]}
    ended = Target(tmp_path, {"train.py": "print()\n"}, spec=fields).run(starter)
    assert ended.code != 0, ended.log
    assert "DIST_TESTING_SPEC with programs = []: the add-on 'programs' is missing." in ended.log
    assert _END in ended.log


def test_bazel_coverage_is_a_warning(starter: Starter, tmp_path: Path) -> None:
    """If this fails, tests that pass fail without the add-on, or nothing says why there is no coverage."""
    target = Target(tmp_path, {"test_cases.py": _CASE.format(arguments="")})
    manifest = tmp_path / "manifest"
    manifest.write_text("pkg/test_cases.py\n", encoding="utf-8")
    ended = target.run(starter, env={"COVERAGE_DIR": str(tmp_path), "COVERAGE_MANIFEST": str(manifest)})
    assert ended.code == 0, ended.log
    assert "`bazel coverage`: the add-on 'coverage' is missing." in target.warnings_file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["run", "MultiThreadedTestCase", "requires_nccl", "SaveForwardInputsModel"])
def test_a_public_name_of_an_add_on(name: str) -> None:
    """If this fails, the error sends the user to look for a typing mistake."""
    with pytest.raises(AttributeError) as caught:
        getattr(dist_testing, name)
    first, cause, way_out = str(caught.value).splitlines()
    assert first == f"dist_testing.{name}: this installation has no such name."
    home = {"run": "functions.run", "MultiThreadedTestCase": "threaded.thread_case", "requires_nccl": "compat.names"}
    assert f"It would be in dist_testing.{home.get(name, 'compat.helpers.models')};" in cause
    assert way_out.startswith("Correct the name, or install")
    assert name not in dist_testing.__all__
    assert "MultiProcessTestCase" in dist_testing.__all__
