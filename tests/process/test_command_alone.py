"""The command in a report runs the case alone, and gives the same verdict."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.children import Ended, Target, run_pytest, write_file
from tests.support.starter import Starter

_MARKED = """
    import os
    import warnings
    import pytest
    import torch
    import torch.distributed as dist
    import dist_testing

    _IMPORTED_BY = os.getpid()
    marked = pytest.mark.distributed(world_size=2)

    @marked
    def test_raises(world):
        assert world.rank != 1

    @marked
    @pytest.mark.parametrize("text", ["a b", "it's"])
    def test_words(world, text):
        assert world.rank != 1 or text != "it's"

    class TestIt:
        @marked
        def test_method(self, world):
            if world.rank == 1:
                raise ValueError("planted")

    @marked
    def test_strict(world):
        dist.broadcast(torch.ones(4 if world.rank == 1 else 3), 0)

    @pytest.mark.distributed
    def test_size(world):
        assert world.rank != 1 or world.size != 3

    @marked
    def test_import(world):
        assert world.rank != 1 or os.getpid() != _IMPORTED_BY, "planted"

    @pytest.mark.distributed
    def test_backend(world):
        assert world.rank != 1 or world.backend != "threaded"

    @marked
    def test_warns(world):
        if world.rank == 1:
            warnings.warn("planted", UserWarning)

    class TestPool:
        @pytest.mark.distributed(world_size=2, isolation="pool")
        @pytest.mark.parametrize("number", range(3))
        def test_pool(self, world, number):
            assert world.rank != 1 or number != 1

    class TestUnittest(dist_testing.MultiProcessTestCase):
        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_class(self):
            self.assertNotEqual(self.rank, 1)
"""
_SLOW = """
    import pytest
    import torch

    @pytest.mark.distributed(world_size=2)
    def test_slow(world):
        while world.rank == 0:
            torch.ones(3).sum()
"""
_OWN_MARKER = """
    import pytest

    @pytest.mark.ranks(world_size=2)
    def test_own(world):
        assert world.rank == 0
"""
_OF_TORCH = """
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class TorchTest(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_torch(self):
            self.assertEqual(self.rank, 0)
"""
_SPAWNS = """
    import torch.multiprocessing as mp

    def body(rank):
        assert rank == 0

    def test_spawns():
        mp.spawn(body, nprocs=2)
"""
_WITH_OPTION = """
    import pytest

    @pytest.mark.distributed(world_size=2)
    def test_option(world, request):
        assert world.rank != 1 or request.config.getoption("--limit") != "5"

    def test_passes():
        pass
"""
# --dist has a value in pytest-xdist. pytest reads arguments from a file, one in each line.
_CONFTEST = {
    "conftest.py": """
        def pytest_addoption(parser):
            parser.addoption("--limit")
            parser.addoption("--dist", action="store_true")
    """,
    "arguments": "-v\n--dist\n--limit\n5\ntest_cases.py::test_passes\n",
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """Failures, by the names of their tests, and how the session is started in which they happen."""

    name: str
    options: tuple[str, ...] = ()
    source: str = _MARKED
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    test: str = ""


_KINDS = (
    _Kind("no option", test="test_raises test_words[it's] test_method test_pool[1] test_class"),
    _Kind("other tests fail first", ("-q", "-k", "raises or method", "--maxfail=2", "--tb=short"), test="test_method"),
    _Kind("joined flags", ("-xvs", "-vrA", "-k", "class"), test="test_class"),
    _Kind("strict calls", ("--dist-strict-collectives", "-k", "strict"), test="test_strict"),
    _Kind("limit as two words", ("--dist-timeout", "2"), _SLOW, test="test_slow"),
    _Kind("world size", ("--dist-world-size=3", "-k", "size"), test="test_size"),
    _Kind("world sizes", ("--dist-world-size=2,3", "-k", "size"), test="test_size[world_size=3]"),
    _Kind("isolation", ("--dist-isolation=spawn", "-k", "import"), test="test_import"),
    _Kind("backend", ("--dist-backend=threaded", "-k", "backend"), test="test_backend"),
    _Kind("warnings as errors", ("-W", "error::UserWarning", "-k", "warns"), test="test_warns"),
    _Kind("import mode", ("--import-mode=importlib", "-k", "raises"), test="test_raises"),
    _Kind("side by side", ("--dist-jobs=2", "-x", "-k", "raises"), test="test_raises"),
    _Kind("own marker", ("-o", "dist_marker=ranks"), _OWN_MARKER, test="test_own"),
    _Kind(
        "other settings",
        ("-c", "other.ini"),
        _OWN_MARKER,
        {"other.ini": "[pytest]\naddopts = -p dist_testing.core.pytest.plugin\ndist_marker = ranks\n"},
        test="test_own",
    ),
    _Kind("options of a conftest, in a file", ("@arguments",), _WITH_OPTION, _CONFTEST, test="test_option"),
    _Kind(
        "options in the environment",
        (),
        _OWN_MARKER,
        env={"PYTEST_ADDOPTS": "-o dist_marker=ranks", "NCCL_VERSION": "of an image", "NCCL_DEBUG": "WARN"},
        test="test_own",
    ),
    _Kind("torch's class", ("-p", "dist_testing.compat.pytest_install"), _OF_TORCH, test="test_torch"),
    _Kind("adapter", ("-p", "dist_testing.adopt.spawn"), _SPAWNS, test="body"),
)


def _said(ended: Ended, test: str) -> tuple[str, str]:
    """What the report of a test says first, without the time; and the command."""
    found = re.search(
        rf"^(?:.*, case )?\S*{re.escape(test)} \(world of \d+\): (.*?)(?:; first seen after .*)?\n"
        r"(?:.*\n)*?This case alone: (.*)$",
        ended.log,
        re.MULTILINE,
    )
    assert found, ended.log
    return found[1], found[2]


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.name)
def test_command_gives_the_same_verdict(starter: Starter, tmp_path: Path, kind: _Kind) -> None:
    """If this fails, the command copied from a report passes, or fails by something else."""
    for name, text in kind.files.items():
        write_file(tmp_path, name, text)
    write_file(tmp_path, "test_cases.py", kind.source)
    ended = run_pytest(starter, tmp_path, *kind.options, "test_cases.py", env=kind.env)
    for test in kind.test.split():
        reason, command = _said(ended, test)
        words = shlex.split(command)
        program = words.index("pytest")
        assert words[program - 2 : program] == ["python", "-m"]
        env = dict(word.split("=", 1) for word in words[: program - 2])
        # A fact of NVIDIA's images sets nothing.
        assert env == {name: value for name, value in kind.env.items() if name != "NCCL_VERSION"}
        again = run_pytest(starter, tmp_path, *words[program + 1 :], env=env)
        assert _said(again, test) == (reason, command)
        assert "1 failed in" in again.log


def test_files_outside_of_the_root_folder(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the test of one file runs twice, and never that of the other, or the command names no file.

    The name of a test then begins at an argument, so both have the same. The command begins where it was started.
    """
    write_file(tmp_path, "first/test_cases.py", _OWN_MARKER)
    write_file(tmp_path, "second/test_cases.py", _OWN_MARKER.replace("== 0", ">= 0"))
    (tmp_path / "below").mkdir()
    options = ("-p", "dist_testing.core.pytest.plugin", "-o", "dist_marker=ranks", "--import-mode=importlib")
    ended = run_pytest(starter, tmp_path / "below", *options, "--rootdir=.", "../first", "../second")
    assert "1 failed, 1 passed" in ended.log, ended.log
    assert _said(ended, "test_own")[1].endswith(" ../first/test_cases.py::test_own")


def test_command_of_a_target(starter: Starter, tmp_path: Path) -> None:
    """Arguments of Bazel's command line can decide about a case, too."""
    target = Target(tmp_path, {"test_cases.py": _MARKED})
    ended = target.run(starter, "--dist-strict-collectives", "-v", env={"TESTBRIDGE_TEST_ONLY": "test_strict"})
    reason, command = _said(ended, "test_strict")
    assert command == ("bazel test //pkg:cases_gloo --test_filter=test_strict --test_arg=--dist-strict-collectives")
    assert "disagree" in reason
