"""Cases that fail run again, on fresh ranks, where a plugin for reruns is in use.

tests/plugins has the same with pytest-rerunfailures itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import run_cases, write_file
from tests.support.starter import Starter

# The two ways in which such plugins run a failed test again. On a rank, each would repeat it alone.
_PLUGINS = {
    # The whole protocol, as often as needed.
    "pytest_rerunfailures": """
        from _pytest.runner import runtestprotocol

        def pytest_configure(config):
            config.addinivalue_line("markers", "flaky: run again")

        def pytest_runtest_protocol(item, nextitem):
            if (mark := item.get_closest_marker("flaky")) is None:
                return None
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for number in range(mark.args[0] + 1):
                reports = runtestprotocol(item, log=False, nextitem=nextitem)
                runs_again = number < mark.args[0] and any(report.failed for report in reports)
                for report in reports:
                    if report.failed and runs_again:
                        report.outcome = "rerun"
                    item.ihook.pytest_runtest_logreport(report=report)
                if not runs_again:
                    break
                item._initrequest()
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
    """,
    # Inside the hook that makes the report of the call.
    "pytest_retry": """
        import pytest

        def pytest_configure(config):
            config.addinivalue_line("markers", "flaky: run again")

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            mark = item.get_closest_marker("flaky")
            for _ in range(mark.args[0] if mark is not None else 0):
                if call.when != "call" or not report.failed:
                    break
                again = pytest.Class.from_parent(item.session, name="Again")
                item.ihook.pytest_runtest_teardown(item=item, nextitem=again)
                report.outcome = "rerun"
                item.ihook.pytest_runtest_logreport(report=report)
                item._initrequest()
                pytest.CallInfo.from_call(lambda: item.ihook.pytest_runtest_setup(item=item), when="setup")
                call = pytest.CallInfo.from_call(lambda: item.ihook.pytest_runtest_call(item=item), when="call")
                report = pytest.TestReport.from_item_and_call(item, call)
            return report
    """,
}


@pytest.mark.parametrize("plugin", _PLUGINS)
def test_a_failed_case_runs_again_on_fresh_ranks(starter: Starter, tmp_path: Path, plugin: str) -> None:
    """If this fails, a mark that the user relies on has no effect, or one rank repeats a test alone."""
    write_file(tmp_path, f"{plugin}.py", _PLUGINS[plugin])
    source = """
        import os
        from pathlib import Path
        import pytest

        HERE = Path(__file__).parent
        pytestmark = pytest.mark.distributed(world_size=2, init=False)

        def pass_at(world, name, number):
            tries = HERE / f"{name}-{world.rank}"
            with tries.open("a") as file:
                file.write("x")
            assert world.rank == 0 or len(tries.read_text()) >= number, f"try {len(tries.read_text())} of {name}"

        @pytest.mark.flaky(2)
        def test_third(world):
            pass_at(world, "third", 3)

        @pytest.mark.flaky(1)
        def test_never(world):
            pass_at(world, "never", 9)
            os.kill(os.getpid(), 9)

        @pytest.mark.distributed(isolation="pool")
        class TestPooled:
            @pytest.mark.flaky(1)
            def test_of_pool(self, world):
                pass_at(world, "pool", 2)

            def test_after(self, world):
                pass_at(world, "after", 1)

        @pytest.mark.xfail(strict=True)
        @pytest.mark.flaky(1)
        def test_expected(world):
            pass_at(world, "expected", 9)
    """
    ended = run_cases(starter, tmp_path, source, "-p", plugin)
    ended.check(passed="test_third test_of_pool test_after", failed="test_never", xfail="test_expected")
    tries = {path.name: len(path.read_text()) for path in tmp_path.glob("*-[01]")}
    expected = {"third": 3, "never": 2, "pool": 2, "after": 1, "expected": 1}
    assert tries == {f"{name}-{rank}": count for name, count in expected.items() for rank in (0, 1)}
    assert "1 failed, 3 passed, 1 xfailed, 4 rerun" in ended.log
    # The report of the last try, and of no try before.
    assert ended.log.count("This case alone: ") == 1
