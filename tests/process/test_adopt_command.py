"""`python -m dist_testing.adopt`: finds the harnesses of a suite, and compares them with the adapters that it names."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dist_testing.adopt.__main__ import addopts_lines
from dist_testing.adopt.suite import choose
from tests.support.children import write_file
from tests.support.starter import Starter

# Without the cache, its options are unknown ones.
_PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error::pytest.PytestConfigWarning")
_BODY = """
    import torch
    import torch.distributed as dist


    def body(rank, size, path):
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == size
        dist.destroy_process_group()


    def on_ranks(test):
        from torch.distributed import launcher

        def run():
            config = launcher.LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="run",
                                           max_restarts=0, start_method="fork")
            launcher.elastic_launch(config, entrypoint=test)()

        return run


    if __name__ == "__main__":
        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()
"""
# Each file is in the style of one kind of suites.
_KINDS = {
    "test_spawn.py": """
        import os
        import sys

        import torch.multiprocessing as mp
        from helpers_of_tests import body


        def lost(rank):
            os._exit(0)


        def test_spawn(tmp_path):
            with open("seen.txt", "a") as file:
                print(*(name for name in sys.modules if name.startswith("dist_testing")), file=file)
            # As vLLM's decorators do.
            os.setpgrp()
            mp.spawn(body, args=(2, tmp_path / "store"), nprocs=2)


        def test_lost():
            mp.spawn(lost, nprocs=2)
    """,
    "test_process.py": """
        import multiprocessing

        from helpers_of_tests import body


        def test_process(tmp_path):
            context = multiprocessing.get_context("spawn")
            ranks = [context.Process(target=body, args=(rank, 2, tmp_path / "store")) for rank in range(2)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            assert [rank.exitcode for rank in ranks] == [0, 0]
    """,
    "test_elastic.py": """
        from helpers_of_tests import on_ranks


        @on_ranks
        def test_elastic():
            import torch.distributed as dist

            dist.init_process_group("gloo")
            dist.barrier()
            dist.destroy_process_group()
    """,
    "test_launched.py": """
        import subprocess
        import sys
        import unittest


        class Launched(unittest.TestCase):
            def setUp(self):
                self.command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]

            def test_launched(self):
                subprocess.run([*self.command, "helpers_of_tests.py"], check=True)
    """,
    "test_classes.py": """
        from torch.testing._internal.common_distributed import MultiProcessTestCase


        class Classes(MultiProcessTestCase):
            world_size = 2

            def setUp(self):
                super().setUp()
                self._spawn_processes()

            def test_classes(self):
                assert self.rank < 2
    """,
    "test_plain.py": """
        import multiprocessing


        def test_plain():
            assert multiprocessing.cpu_count()
    """,
}


@dataclass(frozen=True)
class _Adopted:
    """An end of the command: its exit status, its output, and what it has found."""

    status: int
    log: str
    found: dict[str, Any]

    @property
    def harnesses(self) -> dict[str, dict[str, Any]]:
        """The harnesses by name."""
        return {harness["name"]: harness for harness in self.found["harnesses"]}

    @property
    def outcomes(self) -> dict[str, tuple[str, str]]:
        """The outcomes of each test: under its own harness, and with the adapters."""
        tests = self.found["compared"]["tests"]
        names = [test["id"].rpartition("::")[2] for test in tests]
        return {
            name: (test["own"]["outcome"], test["ours"]["outcome"]) for name, test in zip(names, tests, strict=True)
        }


def _adopt(starter: Starter, folder: Path, *words: str) -> _Adopted:
    """Run the command as a user does."""
    found = folder / "found.json"
    child = starter.start(["-m", "dist_testing.adopt", f"--json={found}", *words], folder)
    # It starts some ten sessions, each of which loads torch in its ranks.
    status = child.wait(600.0)
    return _Adopted(status, child.log, json.loads(found.read_text(encoding="utf-8")) if found.exists() else {})


@pytest.fixture(scope="module")
def kinds(starters: Starter, tmp_path_factory: pytest.TempPathFactory) -> tuple[_Adopted, Path]:
    """Run the command once on a suite of all kinds."""
    folder = tmp_path_factory.mktemp("kinds")
    for name, source in {"helpers_of_tests.py": _BODY, **_KINDS}.items():
        write_file(folder, name, source)
    adopted = _adopt(starters, folder, "--", *_PYTEST)
    starters.wait_nothing_left(10.0)
    return adopted, folder


@pytest.mark.parametrize(
    ("harness", "plugin", "code", "tests"),
    [
        ("torch.multiprocessing.spawn", "adopt.spawn", "mp.spawn(body", ["test_spawn", "test_lost"]),
        ("multiprocessing.Process", "adopt.spawn", "context.Process(", ["test_process"]),
        ("torchrun's agent in a test", "adopt.elastic", "elastic_launch(", ["test_elastic"]),
        ("torchrun or accelerate as a subprocess", "adopt.subprocess", "torch.distributed.run", ["test_launched"]),
        ("torch's test classes", "compat.pytest_install", "class Classes", ["test_classes"]),
    ],
)
def test_each_kind_is_found(
    kinds: tuple[_Adopted, Path], harness: str, plugin: str, code: str, tests: list[str]
) -> None:
    """If this fails, a user of this harness gets a wrong line, or no line of his suite as evidence."""
    adopted, folder = kinds
    found = adopted.harnesses[harness]
    assert f"dist_testing.{plugin}" == found["plugin"], adopted.log
    assert tests == [test.rpartition("::")[2] for test in found["tests"]]
    file, _, line = found["sites"][0][0].partition(":")
    assert code in (folder / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert found["traced"]["calls"] == (2 if harness == "multiprocessing.Process" else 1), adopted.log
    if harness != "torch's test classes":
        assert (found["traced"]["world_size"], found["traced"]["backend"]) == (2, "gloo")
        assert found["traced"]["processes"] == 2


def test_both_harnesses_are_compared(kinds: tuple[_Adopted, Path]) -> None:
    """If this fails, a user trusts a line that changes outcomes, or does not learn what its own harness misses."""
    adopted, folder = kinds
    assert adopted.outcomes == {
        "test_spawn": ("passed", "passed"),
        "test_lost": ("passed", "failed"),
        "test_process": ("passed", "passed"),
        "test_elastic": ("passed", "passed"),
        "test_launched": ("passed", "passed"),
        "test_classes": ("passed", "passed"),
    }, adopted.log
    assert adopted.status == 1
    assert "DIFFERENT test_spawn.py::test_lost" in adopted.log
    assert "exited with code 0" in adopted.log
    assert "NOT CONFIRMED" not in adopted.log
    traced, own, ours = (folder / "seen.txt").read_text(encoding="utf-8").split("\n")[:3]
    assert (traced, own) == ("", ""), "the suite's own run must not have the library"
    assert "dist_testing.adopt.spawn" in ours.split()


def test_no_file_of_the_suite_is_changed(kinds: tuple[_Adopted, Path]) -> None:
    """If this fails, the command leaves files or settings in a user's repository."""
    _, folder = kinds
    own = {"helpers_of_tests.py", *_KINDS, "found.json", "seen.txt", "tmp"}
    # The log of the command, and what Python writes.
    names = {path.name for path in folder.iterdir()}
    assert {name for name in names if not re.fullmatch(r"__pycache__|log-\d+\.txt", name)} == own


@pytest.mark.parametrize(
    ("name", "content", "section", "words"),
    [
        ("pytest.ini", None, "[pytest] in pytest.ini (new)", "-p a -p b"),
        ("setup.cfg", "", "[tool:pytest] in setup.cfg", "-p a -p b"),
        ("pytest.toml", "", "[pytest] in pytest.toml", '"-p", "a", "-p", "b"'),
        ("pyproject.toml", "tool.pytest.x = 1", "[tool.pytest] in pyproject.toml", '"-p", "a", "-p", "b"'),
        ("pyproject.toml", "tool.pytest.ini_options.x = 1", "[tool.pytest.ini_options] in pyproject.toml", "-p a -p b"),
    ],
)
def test_the_line_fits_the_file_of_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | None, section: str, words: str
) -> None:
    """If this fails, pytest refuses the file after a user has added the line."""
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content, encoding="utf-8")
    assert list(addopts_lines(Path(name), ["a", "b"])) == [f"add to addopts of {section}:", f"  {words}"]


@pytest.mark.parametrize(
    ("count", "chosen"),
    [
        (2, ["a.py::f[1]", "b.py::h"]),
        (3, ["a.py::f[1]", "a.py::g", "b.py::h"]),
        (4, ["a.py::f[1]", "a.py::f[2]", "a.py::g", "b.py::h"]),
        (9, ["a.py::f[1]", "a.py::f[2]", "a.py::f[3]", "a.py::g", "b.py::h"]),
    ],
)
def test_the_chosen_tests_are_of_all_parts(count: int, chosen: list[str]) -> None:
    """If this fails, ten tests say little about a suite: they are one test with ten parameters, or all of one file."""
    tests = ["a.py::f[1]", "a.py::f[2]", "a.py::f[3]", "a.py::g", "b.py::h"]
    assert chosen == choose(tests, count)


def test_a_hang_ends_at_the_limit(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a suite that hangs in its own harness makes the command hang, or leaves its ranks behind."""
    write_file(
        tmp_path,
        "test_hang.py",
        """
        import torch
        import torch.distributed as dist
        import torch.multiprocessing as mp


        def body(rank, path, hangs):
            dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
            if hangs:
                dist.recv(torch.ones(1), 1 - rank)


        def test_first(tmp_path):
            mp.spawn(body, args=(tmp_path / "store", False), nprocs=2)


        def test_hang(tmp_path):
            mp.spawn(body, args=(tmp_path / "store", True), nprocs=2)


        def test_later(tmp_path):
            mp.spawn(body, args=(tmp_path / "store", False), nprocs=2)
        """,
    )
    adopted = _adopt(starter, tmp_path, "--timeout=25", "--", *_PYTEST)
    assert adopted.outcomes == {
        "test_first": ("passed", "passed"),
        "test_hang": ("not ended", "failed"),
        "test_later": ("not run", "passed"),
    }, adopted.log
    assert adopted.status == 1
    assert "the own run was ended after 25 s (--timeout)" in adopted.log
    assert adopted.found["compared"]["different"] == ["test_hang.py::test_hang"]


def test_ranks_of_torchrun_get_a_hook(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a suite in which each rank is a pytest gets an adapter that cannot run it, or no advice."""
    write_file(
        tmp_path,
        "test_ranks.py",
        """
        import torch.distributed as dist


        def test_ranks():
            dist.init_process_group("gloo")
        """,
    )
    write_file(tmp_path, "test_broken.py", "import no_such_module")
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "pytest")
    adopted = _adopt(starter, tmp_path, "--", *launcher, ".")
    assert adopted.status == 0, adopted.log
    assert adopted.harnesses["tests that are ranks of torchrun"]["sites"] == [["test_ranks.py:6", 1]]
    assert (
        f"add to {tmp_path}/conftest.py the hook that docs/adopt.md#all-ranks-of-torchrun-run-my-tests shows"
        in adopted.log
    )
    assert "1 file could not be collected" in adopted.log


@pytest.mark.parametrize(
    ("source", "words", "said"),
    [
        ("def test_plain(): pass", ("--", *_PYTEST), "no harness found in 1 test"),
        ("import no_such_module", ("--", *_PYTEST), "No module named 'no_such_module'"),
        ("def test_plain(): pass", ("--", "true"), "pytest collected no test (exit status 0)"),
        ("def test_plain(): pass", ("--", "/no/such/pytest"), "The command could not be started"),
        ("def test_plain(): pass", (), "no test command is given"),
        ("def test_plain(): pass", ("--tests=0", "--", *_PYTEST), "'0' is no number of tests from 1 to 9999"),
        ("def test_plain(): pass", ("--timeout=x", "--", *_PYTEST), "--timeout=x: expected a number of seconds"),
        ("def test_plain(): pass", ("--json=/no/such/file", "--", *_PYTEST), "/no/such/file: cannot be written"),
        (
            "import time; time.sleep(600)",
            ("--timeout=3", "--", *_PYTEST),
            "the collection has not ended after 3 s",
        ),
        (
            "def test_plain(): pass",
            ("--", *_PYTEST, "-p", "dist_testing.adopt.spawn"),
            "the suite has dist_testing.adopt.spawn already",
        ),
    ],
)
def test_what_cannot_be_adopted(
    starter: Starter, tmp_path: Path, source: str, words: tuple[str, ...], said: str
) -> None:
    """If this fails, bad input gives a traceback, a hang or a plan that means nothing."""
    write_file(tmp_path, "test_suite.py", source)
    adopted = _adopt(starter, tmp_path, *words)
    assert adopted.status == 2, adopted.log
    assert said in adopted.log
    assert "Traceback (most recent" not in adopted.log


def test_what_needs_a_session_of_its_own_does_not_run(starter: Starter, tmp_path: Path) -> None:
    """If this fails, ranks of Lightning's standalone tests start ranks until the machine has no memory left."""
    source = """
        from pathlib import Path

        import pytest

        alone = pytest.mark.skipif(condition=False, reason="", standalone=True)

        @alone
        def test_one(): Path("ran").touch()

        @alone
        def test_two(): Path("ran").touch()
    """
    write_file(tmp_path, "test_suite.py", source)
    adopted = _adopt(starter, tmp_path, "--", *_PYTEST)
    assert adopted.status == 0, adopted.log
    assert "Lightning's standalone tests: 2 tests; see docs/adopt_frameworks.md#lightning" in adopted.log
    assert "not run here: each of these tests needs a session of its own, and there is no adapter" in adopted.log
    assert "add to" not in adopted.log
    assert not (tmp_path / "ran").exists()
