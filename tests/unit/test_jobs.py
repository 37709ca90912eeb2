"""Worlds side by side: how many, which tests stay together, and who runs what."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.spec import Spec
from dist_testing.core.process.lifetime import fork
from dist_testing.jobs import count
from dist_testing.jobs.claims import Claims
from dist_testing.jobs.count import AUTO, affordable_jobs
from dist_testing.jobs.units import units_of

_SPEC = Spec("", default_backend(), (2,), 0, "fork")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight CPUs, and memory for everything."""
    monkeypatch.setattr(count, "cpu_count", lambda: 8)
    monkeypatch.setattr(count, "free_bytes", lambda: 1 << 40)


@pytest.mark.parametrize(
    ("asked", "units", "sizes", "jobs"),
    [(4, 10, [2], 4), (4, 3, [2], 3), (AUTO, 10, [2, 4], 2), (AUTO, 10, [16], 1), (AUTO, 1, [1], 1), (64, 64, [8], 64)],
)
def test_as_many_worlds_as_asked_or_as_cpus_allow(asked: int, units: int, sizes: list[int], jobs: int) -> None:
    """CPUs limit only `auto`: a user who gives a number may know that the cases wait."""
    assert affordable_jobs(asked, units, _SPEC, sizes, fresh=False) == (jobs, "")


def test_memory_limits_the_number_and_the_log_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh interpreter per rank takes more, so fewer worlds fit; one always runs."""
    monkeypatch.setattr(count, "free_bytes", lambda: 500 << 20)
    assert affordable_jobs(8, 9, _SPEC, [2], fresh=False) == (
        5,
        "500 MiB of memory are free, and a world of 2 ranks takes 100",
    )
    assert affordable_jobs(8, 9, _SPEC, [2], fresh=True)[0] == 1
    assert affordable_jobs(8, 9, _SPEC, [64], fresh=False)[0] == 1
    assert affordable_jobs(AUTO, 9, _SPEC, [1], fresh=False) == (6, "")


def test_each_unit_is_claimed_once_by_one_process() -> None:
    """Also by processes that claim at the same time; a killed one keeps what it has, and blocks no other."""
    claims = Claims(200)
    pids = []
    for number in range(4):
        if (pid := fork()) == 0:
            while claims.take(number) is not None:
                pass
            os.kill(os.getpid(), 9)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    assert all(claims.owner(unit) in range(4) for unit in range(200))
    claims.close()
    claims = Claims(3)
    assert (claims.take(0), claims.take(63)) == (0, 1)
    claims.withdraw()
    assert claims.take(1) is None
    assert [claims.owner(unit) for unit in range(3)] == [0, 63, None]
    claims.close()


_CLASSES = """
import pytest
import dist_testing


@pytest.fixture(scope="module")
def of_the_module():
    pass


@pytest.fixture(scope="session")
def of_the_session():
    pass


class Alone(dist_testing.MultiProcessTestCase):
    def test_a(self): pass
    def test_b(self): pass


class Base(dist_testing.MultiProcessTestCase):
    @classmethod
    def setUpClass(cls): pass


class Together(Base):
    def test_c(self): pass
    def test_d(self): pass


@pytest.mark.usefixtures("of_the_module")
class Module1(dist_testing.MultiProcessTestCase):
    def test_e(self): pass


@pytest.mark.usefixtures("of_the_module")
class Module2(dist_testing.MultiProcessTestCase):
    def test_f(self): pass


@pytest.mark.usefixtures("of_the_session")
class Session(dist_testing.MultiProcessTestCase):
    def test_g(self): pass
    def test_h(self): pass


class Pool(dist_testing.MultiProcContinuousTest):
    def test_i(self): pass
    def test_j(self): pass


def test_plain(): pass
"""


class _Collected:
    """Keeps the units of a session that only collects."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Divide the items."""
        units = units_of(session.items, lambda item: "pool" if "Pool" in item.nodeid else "")
        self.names = ["".join(session.items[place].name.removeprefix("test_") for place in unit) for unit in units]


def test_methods_that_share_a_fixture_of_the_runner_are_together(tmp_path: Path) -> None:
    """In one process the fixture is set up once; a fixture of the session does not keep tests together."""
    file = tmp_path / "test_units.py"
    file.write_text(_CLASSES, encoding="utf-8")
    collected = _Collected()
    options = ["--collect-only", "-q", "-c", os.devnull, "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    code = pytest.main([*options, str(file)], plugins=[collected])
    assert code == pytest.ExitCode.OK
    assert collected.names == ["a", "b", "cd", "ef", "g", "h", "ij"]
