"""A repository's own backend: declared once in a .bzl file, found by plain pytest, carried by the spec under Bazel."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from dist_testing.backend_files import read_backend_file
from tests.support.children import Ended, Target, run_pytest, write_file
from tests.support.starter import Starter

_DECLARATION = """\
load("@dist_testing//dist_testing:backends.bzl", "declare_backend")

LOOP = declare_backend(
    name = "loop",
    torch_backend = "loop",
    device = "cpu",
    features = ["moves_data"],
    register_module = "loop_group",
    timeout_s = 60,
    env = {"LOOP_GREETING": "hello"},
)
"""

_CONFTEST = """\
from pathlib import Path

def pytest_dist_backends():
    return Path(__file__).parent / "backend.bzl"
"""

# Gives each rank the sum of what all ranks have put into the store.
_PLUGIN = """\
import pickle

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

class LoopGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.store, self.own_rank, self.count, self.timeout, self.calls = store, rank, size, timeout, 0

    def getBackendName(self):
        return "loop"

    def allreduce(self, tensors, opts=None):
        self.calls += 1
        keys = [f"{self.calls}/{rank}" for rank in range(self.count)]
        self.store.set(keys[self.own_rank], pickle.dumps(tensors[0]))
        self.store.wait(keys, self.timeout)
        tensors[0].copy_(sum(pickle.loads(self.store.get(key)) for key in keys))
        future = torch.futures.Future()
        future.set_result(tensors)
        return _create_work_from_future(future)

dist.Backend.register_backend("loop", LoopGroup, devices=["cpu"])
"""

_CASES = """\
import os

import pytest
import torch
import torch.distributed as dist

@pytest.mark.distributed(backends=["loop"])
def test_loop(world):
    assert (dist.get_backend(), os.environ["LOOP_GREETING"]) == ("loop", "hello")
    total = torch.tensor([world.rank + 1.0])
    dist.all_reduce(total)
    assert total.item() == world.size * (world.size + 1) / 2

@pytest.mark.distributed(features=["monitored_barrier"])
def test_needs_more(world):
    dist.monitored_barrier()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a declaration, a plug-in, a conftest.py and tests."""
    for name, text in (
        ("backend.bzl", _DECLARATION),
        ("loop_group.py", _PLUGIN),
        ("conftest.py", _CONFTEST),
        ("test_loop.py", _CASES),
    ):
        write_file(tmp_path, name, text)
    return tmp_path


def run(starter: Starter, folder: Path, *options: str) -> Ended:
    """Plain pytest in the repository, whose folder it puts on the path of modules."""
    return run_pytest(starter, folder, "-rA", *options, "test_loop.py")


_LOOP = ("--dist-backend=loop", "--dist-world-size=3")


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        *(((*_LOOP, f"--dist-isolation={isolation}"), "test_loop") for isolation in ("fork", "spawn", "pool")),
        # The name of a backend in a marker is no mistake where another backend runs.
        (("--dist-world-size=2",), "test_needs_more"),
    ],
)
def test_plain_pytest_runs_tests_with_a_declared_backend(
    starter: Starter, project: Path, options: tuple[str, ...], ran: str
) -> None:
    """Tests that only Bazel can run are not run before the push. A test may need a feature that a backend lacks."""
    ended = run(starter, project, *options)
    assert ended.code == 0, ended.log
    assert ended.outcomes() == {ran: "PASSED"}
    assert "1 deselected" in ended.log


def test_a_wrong_declaration_is_an_error_of_the_run(starter: Starter, project: Path) -> None:
    """Not a traceback, and no test that silently runs with another backend.

    tests/unit/test_backend_files.py has every wrong file.
    """
    twice = _DECLARATION + _DECLARATION.replace("60", "61")
    (project / "backend.bzl").write_text(twice, encoding="utf-8")
    ended = run(starter, project, "--dist-backend=loop")
    assert ended.code == pytest.ExitCode.USAGE_ERROR
    assert "Backend 'loop' is declared twice: by " in ended.log
    assert "Traceback" not in ended.log


_ENTRY_POINTS = "[torch.distributed.backends]\nloop-fast = loop_group:register\n"
# Since torch 2.14 there is such a group; before it, an entry point means nothing.
_HAS_ENTRY_POINTS = torch.__version__ >= "2.14"


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_an_installed_package_brings_its_backend(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, a plug-in that torch knows needs a declaration, too."""
    registrar = "def register():\n    dist.Backend.register_backend('loop-fast', LoopGroup, devices=['cpu'])\n"
    write_file(tmp_path, "loop_group.py", _PLUGIN.partition("dist.Backend")[0] + registrar)
    write_file(tmp_path, "loop-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: loop\nVersion: 1.0\n")
    write_file(tmp_path, "loop-1.0.dist-info/entry_points.txt", _ENTRY_POINTS)
    cases = _CASES.replace('["loop"]', '["loop_fast"]').replace('("loop", "hello")', '("loop-fast", "hello")')
    write_file(tmp_path, "test_loop.py", cases)

    def run_here() -> Ended:
        options = ["-rA", "--dist-backend=loop_fast", f"--dist-isolation={isolation}"]
        env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "LOOP_GREETING": "hello"}
        return run_pytest(starter, tmp_path, *options, "test_loop.py", env=env, fresh=True)

    ended = run_here()
    if not _HAS_ENTRY_POINTS:
        assert "Backend 'loop_fast' is not declared." in ended.log
        return
    assert ended.outcomes() == {"test_loop": "PASSED"}, ended.log
    write_file(tmp_path, "loop_group.py", "def register():\n    raise OSError('no cable')\n")
    broken = run_here()
    assert broken.code == pytest.ExitCode.USAGE_ERROR
    assert "its entry point loop-fast of 'torch.distributed.backends' failed: no cable" in broken.log
    assert "Traceback" not in broken.log


def test_a_plug_in_that_is_not_installed_is_a_skip_that_says_what_to_do(starter: Starter, project: Path) -> None:
    """Without its name the reader would look for a backend that torch was built without."""
    (project / "loop_group.py").unlink()
    ended = run(starter, project, "--dist-backend=loop", "-k", "test_loop")
    assert ended.code == 0, ended.log
    assert "backend loop needs module loop_group: No module named 'loop_group'" in ended.log
    assert "Install loop_group, or add the library that holds it to the deps" in ended.log
    strict = run(starter, project, "--dist-backend=loop", "-k", "test_loop", "--dist-on-missing=fail")
    assert strict.code == pytest.ExitCode.TESTS_FAILED
    assert "loop_group" in strict.log


def test_under_bazel_the_spec_carries_the_declaration(starter: Starter, project: Path, tmp_path: Path) -> None:
    """The runner has no table with the backend, and reads no .bzl file."""
    (backend,) = read_backend_file(project / "backend.bzl")
    declared = {field.name: getattr(backend, field.name) for field in fields(backend)}
    declared |= {"env": dict(backend.env), "features": list(backend.features)}
    (tmp_path / "bazel").mkdir()
    spec = {"backend": declared, "backends": ["gloo", "loop"], "target": "//pkg:cases_loop"}
    target = Target(tmp_path / "bazel", {"test_loop.py": _CASES}, spec=spec)
    # As the deps of the backend do it.
    env = {"PYTHONPATH": os.pathsep.join([str(project), *sys.path])}
    ended = target.run(starter, env=env, fresh=True)
    assert ended.code == 0, ended.log
    target.check(passed="test_loop")
    # And of its siblings the names, which a marker may mention.
    spec["backend"] = {**declared, "name": "other"}
    (tmp_path / "sibling").mkdir()
    sibling = Target(tmp_path / "sibling", {"test_loop.py": _CASES + _SIBLING}, spec=spec)
    ended = sibling.run(starter, env=env, fresh=True)
    assert ended.code == 0, ended.log
    sibling.check(passed="test_always")


_SIBLING = """

@pytest.mark.distributed
def test_always(world): ...
"""
