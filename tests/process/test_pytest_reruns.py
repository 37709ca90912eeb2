"""Cases that fail run again, on fresh ranks, where a plugin for reruns is in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import run_cases, run_pytest, write_file
from tests.support.starter import Starter

# What the library uses of these plugins. On a rank, each would repeat a failed test alone.
_REPEATS_ALONE = """
    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(item, call):
        report = (yield).get_result()
        if report.when == "call" and report.failed:
            item.ihook.pytest_runtest_call(item=item)
            report.outcome = "passed"
"""
_PLUGINS = {
    "pytest_retry": """
        import pytest


        def pytest_configure(config):
            config.addinivalue_line("markers", "flaky: run again")
    """,
    "pytest_rerunfailures": """
        import pytest


        def pytest_addoption(parser):
            parser.addoption("--reruns", type=int, dest="reruns")
            parser.addoption("--only-rerun", action="append", dest="only_rerun")


        def pytest_configure(config):
            config.addinivalue_line("markers", "flaky: run again")


        def get_reruns_count(item):
            mark = item.get_closest_marker("flaky")
            return item.config.option.reruns if mark is None else mark.kwargs["reruns"]


        def get_reruns_delay(item):
            return 0
    """,
    "flaky": """
        import pytest


        def flaky(max_runs=2, min_passes=1):
            def mark(test):
                test._flaky_max_runs, test._flaky_min_passes = max_runs, min_passes
                return test

            return mark
    """,
}
_CASES = """
    import os
    from pathlib import Path

    import pytest

    HERE = Path(__file__).parent


    def pass_at(world, name, number):
        tries = HERE / f"{name}-{world.rank}"
        with tries.open("a") as file:
            file.write("x")
        assert world.rank == 0 or len(tries.read_text()) >= number, f"try {len(tries.read_text())} of {name}"


    pytestmark = pytest.mark.distributed(world_size=2, init=False)
"""


def _write(folder: Path, plugin: str) -> None:
    source = _PLUGINS[plugin].rstrip() + "\n\n" + _REPEATS_ALONE.replace("\n    ", "\n        ")
    write_file(folder, f"{plugin}.py", source)


@pytest.mark.parametrize(
    ("plugin", "once", "twice"),
    [
        ("pytest_retry", "@pytest.mark.flaky(retries=1)", "@pytest.mark.flaky(retries=2)"),
        ("pytest_rerunfailures", "@pytest.mark.flaky(reruns=1)", "@pytest.mark.flaky(reruns=2)"),
        ("flaky", "@flaky.flaky()", "@flaky.flaky(max_runs=3)"),
    ],
)
def test_a_failed_case_runs_again_on_fresh_ranks(
    starter: Starter, tmp_path: Path, plugin: str, once: str, twice: str
) -> None:
    """If this fails, a mark that the user relies on has no effect, or one rank repeats a test alone."""
    _write(tmp_path, plugin)
    source = f"""{_CASES}
    {"import flaky" if plugin == "flaky" else ""}


    {once}
    def test_second(world):
        pass_at(world, "second", 2)


    {twice}
    def test_third(world):
        pass_at(world, "third", 3)


    {once}
    def test_never(world):
        pass_at(world, "never", 9)


    @pytest.mark.distributed(isolation="pool")
    class TestPooled:
        {once}
        def test_of_pool(self, world):
            pass_at(world, "pool", 2)


    def test_unmarked(world):
        pass_at(world, "unmarked", 2)
    """
    ended = run_cases(starter, tmp_path, source, "-p", plugin)
    assert ended.outcomes() == {
        "test_second": "PASSED",
        "test_third": "PASSED",
        "test_never": "FAILED",
        "test_of_pool": "PASSED",
        "test_unmarked": "FAILED",
    }, ended.log
    tries = {path.name: len(path.read_text()) for path in tmp_path.glob("*-[01]")}
    expected = {"second": 2, "third": 3, "never": 2, "pool": 2, "unmarked": 1}
    assert tries == {f"{name}-{rank}": count for name, count in expected.items() for rank in (0, 1)}
    assert "2 failed, 3 passed, 5 rerun" in ended.log
    lines = [line for line in ended.log.splitlines() if line.startswith("dist_testing: try ")]
    assert [line.partition(" failed, and fresh ranks")[0] for line in lines] == [
        f"dist_testing: try {number}" for number in ("1 of 2", "1 of 3", "2 of 3", "1 of 2", "1 of 2")
    ]
    assert "rank 1 raised AssertionError: try 2 of third" in lines[2]
    # The reports of the two failures, and of no try before.
    assert ended.log.count("= distributed failure =") == 2
    assert "no try before" not in ended.log


def test_a_case_that_cannot_run_again_is_named_with_the_reason(starter: Starter, tmp_path: Path) -> None:
    """If this fails, an option of a plugin has no effect on distributed tests, without a word."""
    _write(tmp_path, "pytest_rerunfailures")
    write_file(
        tmp_path,
        "test_cases.py",
        f"""{_CASES}
    @pytest.mark.flaky(reruns=1, condition=False)
    def test_not_wanted(world):
        pass_at(world, "not_wanted", 2)


    @pytest.mark.flaky(reruns="1")
    def test_wrong(world):
        pass_at(world, "wrong", 2)


    def test_all(world):
        pass_at(world, "all", 2)
        os.kill(os.getpid(), 9) if world.rank else None


    @pytest.mark.distributed(expected_exits={{5: 1}})
    def test_never_started(world):
        pass
    """,
    )
    options = ("-rA", "-p", "pytest_rerunfailures", "--reruns=1", "test_cases.py")
    ended = run_pytest(starter, tmp_path, *options)
    assert set(ended.outcomes().values()) == {"FAILED"}, ended.log
    # A crash counts as any other failure; an error of the marker stays one.
    assert "4 failed, 1 rerun" in ended.log
    (line,) = [line for line in ended.log.splitlines() if line.startswith("dist_testing: 1 test(s) on ranks")]
    assert "test_cases.py::test_wrong: '1' reruns after 0 s are not numbers" in line
    ended = run_pytest(starter, tmp_path, *options, "--only-rerun=AssertionError", "-k", "all")
    assert "test_cases.py::test_all: only_rerun needs the exception, which stays on its rank" in ended.log
    assert "rerun" not in ended.log.splitlines()[-1]
