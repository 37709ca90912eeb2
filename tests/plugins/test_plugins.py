"""docs/plugins.md, row by row, with the plug-ins themselves (requirements_plugins.txt)."""

from __future__ import annotations

import importlib
import json
import re
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.attached import Agent
from tests.support.children import Ended, run_pytest, write_file
from tests.support.starter import Starter

# Distribution to what `-p` needs.
_PLUGINS = {
    "anyio": "anyio.pytest_plugin",
    "hypothesis": "_hypothesis_pytestplugin",
    "pytest-asyncio": "pytest_asyncio.plugin",
    "pytest-benchmark": "pytest_benchmark.plugin",
    "pytest-cov": "pytest_cov.plugin",
    "pytest-mpi": "pytest_mpi",
    "pytest-randomly": "pytest_randomly",
    "pytest-rerunfailures": "pytest_rerunfailures",
    "pytest-timeout": "pytest_timeout",
}
# Each alone: pytest-xdist here, the others in test_same_as_pytest.py.
_OTHERS = {
    "flaky": "flaky.flaky_pytest_plugin",
    "pytest-html": "pytest_html.plugin",
    "pytest-json-report": "pytest_jsonreport.plugin",
    "pytest-retry": "pytest_retry.retry_plugin",
    "pytest-xdist": "xdist.plugin",
    "teamcity-messages": "teamcity.pytest_plugin",
}

for _name in (*_PLUGINS, *_OTHERS):
    try:
        metadata.version(_name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{_name} (requirements_plugins.txt) is not installed", allow_module_level=True)

_SUITE = """
    import asyncio
    import random
    import threading
    import measured
    import pytest
    import torch.distributed as dist
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
    import dist_testing

    ranks = pytest.mark.distributed(world_size=2)

    class TestPool:
        @pytest.mark.distributed(world_size=2, isolation="pool")
        @pytest.mark.timeout(2)
        def test_timeout(self, world):
            threading.Event().wait()

        @pytest.mark.distributed(world_size=2, isolation="pool")
        def test_of_the_pool(self, world):
            world.barrier()

    @ranks
    def test_cov(world):
        measured.on_rank(world.rank)

    @ranks
    @pytest.mark.parametrize("number", range(8))
    def test_randomly(world, number):
        drawn = [None, None]
        dist.all_gather_object(drawn, random.random())
        assert drawn[0] == drawn[1]

    @pytest.mark.asyncio
    async def test_asyncio():
        await asyncio.sleep(0)

    @pytest.fixture
    def anyio_backend():
        return "asyncio"

    @pytest.mark.anyio
    async def test_anyio():
        await asyncio.sleep(0)

    @ranks
    @settings(
        derandomize=True,
        deadline=None,
        max_examples=10,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(number=st.integers(0, 1000))
    def test_falsified(world, number):
        assert number < 50

    def test_benchmark(benchmark):
        benchmark.pedantic(dist_testing.run, args=(measured.on_rank, 1), kwargs={"args": (0,)}, rounds=1)

    @pytest.mark.mpi(min_size=2)
    def test_mpi():
        raise AssertionError
"""


def _run(starter: Starter, folder: Path, plugins: dict[str, str], *options: str) -> Ended:
    named = [option for plugin in plugins.values() for option in ("-p", plugin)]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return run_pytest(starter, folder, "-rA", *named, *options, env=env)


def test_all_in_one_session(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the table of the docs promises something of a plug-in that does not hold."""
    write_file(tmp_path, "measured.py", "def on_rank(rank):\n    if rank:\n        return 1\n    return 0\n")
    write_file(tmp_path, "test_suite.py", _SUITE)
    write_file(tmp_path, ".coveragerc", "[run]\nparallel = true\npatch = _exit\n")
    ended = _run(
        starter,
        tmp_path,
        _PLUGINS,
        "--randomly-seed=7",
        "--cov=measured",
        "--cov-report=term",
    )
    outcomes = ended.outcomes()
    passed = ["of_the_pool", "cov", "asyncio", "anyio", "benchmark"]
    passed += [f"randomly[{number}]" for number in range(8)]
    assert outcomes == {
        **{f"test_{name}": "PASSED" for name in passed},
        "test_timeout": "FAILED",
        "test_falsified": "FAILED",
    }, ended.log
    for said in (
        "test_timeout: Timeout (>2.0s) from pytest-timeout.",
        "Another plugin, such as pytest-timeout, has ended the wait for the ranks; they have been killed.",
        "number=50",
        "need --with-mpi option to run",
        "benchmark: 1 tests",
    ):
        assert said in ended.log, f"{said}\n{ended.log}"
    assert re.search(r"measured.py +4 +0 +100%", ended.log), ended.log
    # The summary has the order in which they ran.
    order = re.findall(r"PASSED test_suite.py::test_randomly\[(\d)\]", ended.log)
    assert order != sorted(order), ended.log
    # It has what it needs, so nothing is said about it.
    assert "pytest-cov does not see" not in ended.log


_RERUNS = """
    import os
    from pathlib import Path
    import pytest

    pytestmark = pytest.mark.distributed(world_size=2, init=False)

    def pass_at(world, name, number):
        tries = Path(f"{name}-{world.rank}")
        with tries.open("a") as file:
            file.write("x")
        assert world.rank == 0 or len(tries.read_text()) >= number

    @pytest.mark.flaky(MORE=2)
    def test_third(world):
        pass_at(world, "third", 3)

    @pytest.mark.flaky(MORE=1)
    def test_never(world):
        pass_at(world, "never", 9)
        os.kill(os.getpid(), 9)

    @pytest.mark.distributed(isolation="pool")
    class TestPooled:
        @pytest.mark.flaky(MORE=1)
        def test_of_pool(self, world):
            pass_at(world, "pool", 2)

        def test_after(self, world):
            pass_at(world, "after", 1)

    @pytest.mark.xfail(strict=True)
    @pytest.mark.flaky(MORE=1)
    def test_expected(world):
        pass_at(world, "expected", 9)
"""


@pytest.mark.parametrize(
    ("plugin", "more"),
    [("pytest_rerunfailures", "reruns"), ("pytest_retry.retry_plugin", "retries")],
    ids=["rerunfailures", "retry"],
)
def test_a_failed_case_runs_again_on_fresh_ranks(starter: Starter, tmp_path: Path, plugin: str, more: str) -> None:
    """If this fails, a mark that the user relies on has no effect, or one rank repeats a test alone."""
    write_file(tmp_path, "test_suite.py", _RERUNS.replace("MORE", more))
    ended = _run(starter, tmp_path, {plugin: plugin}, "--junitxml=junit.xml")
    ended.check(passed="test_third test_of_pool test_after", failed="test_never", xfail="test_expected")
    tries = {path.name: len(path.read_text()) for path in tmp_path.glob("*-[01]")}
    expected = {"third": 3, "never": 2, "pool": 2, "after": 1, "expected": 1}
    assert tries == {f"{name}-{rank}": count for name, count in expected.items() for rank in (0, 1)}
    # The report of the last try, and of no try before.
    assert ended.failures()["test_never"].count("This case alone: ") == 1
    for case in ElementTree.parse(tmp_path / "junit.xml").iter("testcase"):
        assert len(case.findall("properties/property[@name='world_size']")) == (case.get("name") != "test_expected")


def test_a_plugin_that_needs_a_setting_is_named_at_the_start(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a plug-in silently does without what happens on ranks."""
    source = """
        import pytest
        from hypothesis import given
        from hypothesis import strategies as st

        pytestmark = pytest.mark.distributed(world_size=2, init=False)

        @given(number=st.integers())
        def test_hypothesis(world, number): ...

        def test_benchmark(world, benchmark):
            benchmark.pedantic(int, rounds=1)
    """
    write_file(tmp_path, "test_suite.py", source)
    ended = _run(starter, tmp_path, _PLUGINS, "--cov=test_suite", "-p", "no:randomly")
    assert ended.outcomes() == {"test_hypothesis": "FAILED", "test_benchmark": "PASSED"}, ended.log
    start = ended.log.partition("test_suite.py F")[0]
    for said in (
        "dist_testing: pytest-cov does not see what runs on ranks",
        "[run] parallel = true, patch = _exit",
        "dist_testing: pytest-benchmark has no results of tests on ranks, such as test_suite.py::test_benchmark",
        "measure dist_testing.run in a test without the marker",
        "dist_testing: hypothesis may choose other examples on each rank of test_suite.py::test_hypothesis",
        "@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])",
    ):
        assert said in start, f"{said}\n{ended.log}"
    # Hypothesis' own text.
    assert "uses a function-scoped fixture 'world'" in ended.log


def test_workers_of_xdist(starter: Starter, tmp_path: Path) -> None:
    """If this fails, workers disturb each other's ranks, or a fresh interpreter becomes a second controller."""
    source = """
        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)

        @pytest.mark.parametrize("number", range(4))
        def test_passes(world, number):
            world.barrier()

        def test_fails(world):
            assert world.rank != 1

        @pytest.mark.distributed(world_size=1, isolation="spawn")
        def test_fresh(world):
            assert world.rank != 0
    """
    write_file(tmp_path, "test_suite.py", source)
    ended = _run(starter, tmp_path, {"pytest-xdist": _OTHERS["pytest-xdist"]}, "-n2")
    passed = {f"test_passes[{number}]": "PASSED" for number in range(4)}
    assert ended.outcomes() == {**passed, "test_fails": "FAILED", "test_fresh": "FAILED"}, ended.log
    assert "rank 0 raised AssertionError: assert 0 != 0" in ended.log, ended.log
    assert "rank 1 raised AssertionError: assert 1 != 1" in ended.log, ended.log


def test_reports_under_torchrun(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the process of another rank replaces a report by one without tests."""
    source = "import pytest\n\n@pytest.mark.distributed\ndef test_passes(world): ...\n"
    plugins = "-p pytest_html.plugin -p pytest_metadata.plugin -p pytest_jsonreport.plugin"
    options = "--html=out.html --json-report --json-report-file=out.json"
    first, second = Agent(starter, tmp_path).run(source, *plugins.split(), *options.split())
    assert (first.code, second.code, second.log) == (0, 0, ""), first.log + second.log
    assert json.loads((tmp_path / "out.json").read_text())["summary"] == {"passed": 1, "total": 1, "collected": 1}
    assert "test_cases.py::test_passes" in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize("name", [*_PLUGINS, *_OTHERS])
def test_the_table_has_the_tried_versions(name: str) -> None:
    """If this fails, docs/plugins.md names a version with which these tests did not run."""
    importlib.import_module({**_PLUGINS, **_OTHERS}[name])
    table = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert f"| {name} {metadata.version(name)} |" in table, f"{name} {metadata.version(name)}"
