"""What asks for an add-on that is missing: the error names it. `test_core_alone.py` runs this file without add-ons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dist_testing
from tests.support.children import Target, run_cases
from tests.support.starter import Starter

_CASE = """
    import pytest


    @pytest.mark.distributed({})
    def test_it(world):
        {}
"""
_PLAIN = _CASE.format("", "pass")


def _missing(subject: str, add_on: str) -> str:
    """Return a pattern for the error about a missing add-on: three lines, which pytest may indent."""
    return (
        rf"{re.escape(subject)}: the add-on '{add_on}' is missing\.\n.*This dist_testing has no add-ons\.\n"
        r".*Install the package that brings it, or do without\."
    )


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
    ("source", "options", "said"),
    [
        (_PLAIN, ["--dist-backend=cuda_gloo"], _missing("test_it with backend cuda_gloo", "gpus")),
        (_PLAIN, ["--dist-watch"], _missing("--dist-watch", "watch")),
        (_PLAIN, ["--dist-jobs=2"], _missing("--dist-jobs=2", "jobs")),
        (
            _PLAIN,
            ["--dist-backend=threaded"],
            r"Backend 'threaded' connects threads(.|\n)*fork, spawn, pool",
        ),
        (_PLAIN, ["--dist-isolation=thread"], "--dist-isolation=thread: expected one of fork, spawn, pool"),
        (_CASE.format('isolation="thread"', "pass"), [], r"isolation = 'thread'(.|\n)*fork, spawn, pool"),
        (
            _CASE.format("nodes=2, world_size=2", "pass"),
            [],
            r"@pytest\.mark\.distributed with nodes = 2\.(.|\n)*install the add-on 'nodes' if it is a setting of one",
        ),
        (_PLAIN, ["--dist-nodes=2", "--dist-world-size=2"], "unrecognized arguments: --dist-nodes=2"),
        (
            _CASE.format("world_size=1", "world.faults.kill(0)"),
            [],
            r"world\.faults: a world has no attribute of this name\.\n.*Add-ons give it these: none\.",
        ),
    ],
    ids=["gpus", "watch", "jobs", "threads", "threads, option", "threads, marker", "nodes", "nodes, option", "faults"],
)
def test_who_asks_for_it_learns_its_name(
    starter: Starter, tmp_path: Path, source: str, options: list[str], said: str
) -> None:
    """If this fails, a run without the add-on ends in a traceback, or passes without what it asked for."""
    ended = run_cases(starter, tmp_path, source, *options)
    assert ended.code != 0, ended.log
    assert re.search(said, ended.log), ended.log


@pytest.mark.parametrize(
    ("name", "setting"),
    [("nodes", 2), ("gpus", {"archs": [], "per_rank": 1, "ranks_per_gpu": 1}), ("programs", [])],
)
def test_a_setting_of_a_target(starter: Starter, tmp_path: Path, name: str, setting: object) -> None:
    """If this fails, a target that asks for two nodes passes on one, or a program is collected as a file of tests."""
    ended = Target(tmp_path, {"test_cases.py": _PLAIN}, spec={"settings": {name: setting}}).run(starter)
    assert ended.code != 0, ended.log
    assert re.search(_missing(f"DIST_TESTING_SPEC with {name} = {setting}", name), ended.log), ended.log


def test_bazel_coverage_is_a_warning(starter: Starter, tmp_path: Path) -> None:
    """If this fails, tests that pass fail without the add-on, or nothing says why there is no coverage."""
    target = Target(tmp_path, {"test_cases.py": _PLAIN})
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
