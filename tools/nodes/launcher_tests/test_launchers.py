"""Attached worlds of real launchers: Slurm's srun, Open MPI's mpirun and MPICH's hydra, on two simulated nodes.

Needs root, and the private copy of the launchers: `./bazelw run //tools/nodes`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_prefix.prefix import existing_copy

from dist_testing.nodes.namespaces import Nodes, missing_permission, node_address
from launcher_tests.real import Real
from tests.support.attached import CASES, DOWN, assert_cases, assert_down
from tests.support.bell import Bell
from tests.support.children import Ended, write_file
from tests.support.cluster import PORT, cut, nodes_for_test
from tests.support.starter import LIMIT_S

_COPY = existing_copy()
pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="Needs root: Slurm's daemons start tasks for users"),
    pytest.mark.skipif(bool(missing_permission()), reason=f"Needs network namespaces: {missing_permission()}"),
    pytest.mark.skipif(_COPY is None, reason="No copy of the launchers: run `./bazelw run //tools/nodes` first"),
]
_NODES = 2


_Launcher = tuple[Real, list[str], dict[str, str], Nodes]


class _Launched:
    """The launcher and the ranks below it, with the output of both."""

    def __init__(self, real: Real, words: list[str], folder: Path, env: dict[str, str], *options: str) -> None:
        write_file(folder, "pytest.ini", "[pytest]\naddopts = -p dist_testing.core.pytest.plugin --color=no\n")
        self._log = folder / "launcher.log"
        ranks = [sys.executable, "-m", "pytest", "-rA", *options, "test_cases.py"]
        self.process: subprocess.Popen[bytes] = real.start(0, ["env", *_set(env), *words, *ranks], self._log)

    @property
    def pid(self) -> int:
        """The launcher."""
        return self.process.pid

    @property
    def log(self) -> str:
        """The output so far."""
        return self._log.read_text(errors="replace")

    def end(self) -> Ended:
        """Wait for the end."""
        return Ended(self.process.wait(LIMIT_S), self.log)


def _set(env: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


@pytest.fixture(params=["srun", "srun on one node", "mpirun", "hydra"])
def launched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Launcher]:
    """What starts four ranks on two nodes, with the environment that it needs; and the nodes."""
    assert _COPY is not None
    with nodes_for_test(_NODES) as nodes, contextlib.ExitStack() as daemons:
        real = Real(nodes, _NODES, _COPY, tmp_path)
        daemons.callback(real.end_all)
        # MPI's launchers do not tell the ranks where rank 0 is; srun does.
        env: dict[str, str] = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
        if request.param.startswith("srun"):
            words = daemons.enter_context(real.slurm())
            if request.param == "srun on one node":
                words += ["--nodes=1", "--overcommit"]
        else:
            env |= {"MASTER_ADDR": node_address(0), "MASTER_PORT": str(PORT)}
            words = real.mpirun(env) if request.param == "mpirun" else real.hydra(env)
        yield real, words, env, nodes


def test_every_cell(launched: _Launcher, tmp_path: Path) -> None:
    """If this fails, there are two reports, another verdict or culprit, or the launcher reports a success."""
    real, words, env, _ = launched
    write_file(tmp_path, "test_cases.py", CASES)
    ended = _Launched(real, words, tmp_path, env, "--junitxml=out.xml").end()
    assert ended.code != 0, ended.log
    assert_cases(ended.log, tmp_path / "out.xml")


def test_a_pass_is_a_success(launched: _Launcher, tmp_path: Path) -> None:
    """If this fails, the documented command does not work."""
    real, words, env, _ = launched
    write_file(tmp_path, "test_cases.py", CASES)
    ended = _Launched(real, words, tmp_path, env, "-k", "passes or skips or expected").end()
    assert ended.code == 0, ended.log


def test_node_down(launched: _Launcher, tmp_path: Path) -> None:
    """If this fails, the report does not name the node, or comes after the launcher has given up."""
    real, words, env, nodes = launched
    if "--nodes=1" in words:
        pytest.skip("There is one node")
    write_file(tmp_path, "test_cases.py", DOWN)
    with Bell(tmp_path) as bell:
        started = _Launched(real, words, tmp_path, {**env, **bell.env})
        try:
            bell.wait(4, started)
            cut(nodes, 1)
            end_s = time.monotonic() + LIMIT_S
            # The launcher itself may wait much longer for its daemon on the node.
            while " of 4 failed first" not in started.log:
                assert time.monotonic() < end_s, started.log
                time.sleep(0.2)
            assert_down(started.log)
        finally:
            real.end_all()
            started.process.wait()
