"""Sessions of a fresh interpreter: the plugin loads the engine if the session uses the library, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Ended, run_pytest, write_file
from tests.support.starter import Starter

_ENGINE = "dist_testing.core.engine.engine"
_PLAIN = f"""
    import sys

    def test_plain():
        assert "{_ENGINE}" not in sys.modules
        assert "torch" not in sys.modules
"""
_LATE_MARK = """
    import pytest

    @pytest.hookimpl{arguments}
    def pytest_collection_modifyitems(items):
        {before}
        for item in items:
            item.add_marker(pytest.mark.distributed(world_size=2))
"""
_MARKED = """
    import pytest

    pytestmark = pytest.mark.distributed(world_size=2)
"""
_ON_RANKS = """
    import os

    def test_on_ranks():
        print("hidden without -s")
        assert os.environ["WORLD_SIZE"] == "2"
"""


def _run(starter: Starter, folder: Path, source: str, *options: str, conftest: str = "") -> Ended:
    write_file(folder, "test_cases.py", source)
    if conftest:
        write_file(folder, "conftest.py", conftest)
    return run_pytest(starter, folder, "-rA", *options, "test_cases.py", fresh=True)


def test_a_session_without_distributed_tests_does_not_load_the_engine(starter: Starter, tmp_path: Path) -> None:
    """If this fails, each pytest session of an environment with the library takes 0.3 s of CPU time longer."""
    ended = _run(starter, tmp_path, _PLAIN)
    assert ended.code == 0, ended.log
    assert ended.outcomes() == {"test_plain": "PASSED"}


@pytest.mark.parametrize(
    ("source", "conftest"),
    [
        (f"{_MARKED}{_ON_RANKS}", ""),
        (_ON_RANKS, _LATE_MARK.format(arguments="", before="pass")),
    ],
    ids=["in the file", "from a conftest"],
)
def test_a_marker_is_enough(starter: Starter, tmp_path: Path, source: str, conftest: str) -> None:
    """If this fails, a marked test of a file that does not import the library runs in the runner, and passes there."""
    ended = _run(starter, tmp_path, source, conftest=conftest)
    assert ended.code == 0, ended.log
    assert ended.outcomes() == {"test_on_ranks": "PASSED"}
    assert "hidden" not in ended.log


@pytest.mark.parametrize(
    ("source", "options", "conftest", "said"),
    [
        ("def test_it(world): ...\n", (), "", "test_it uses the fixture `world` without the marker"),
        (_PLAIN, ("--dist-world-size=0",), "", "--dist-world-size=0: expected numbers from 1 to"),
        (
            _PLAIN,
            (),
            _LATE_MARK.format(arguments="(wrapper=True, tryfirst=True)", before="yield"),
            "@pytest.mark.distributed was added after the markers had been read",
        ),
    ],
    ids=["fixture", "option", "late marker"],
)
def test_errors_are_told_although_the_engine_is_loaded_late(
    starter: Starter, tmp_path: Path, source: str, options: tuple[str, ...], conftest: str, said: str
) -> None:
    """If this fails, a mistake in a session that does not import the library passes silently."""
    ended = _run(starter, tmp_path, source, *options, conftest=conftest)
    assert ended.code not in (0, pytest.ExitCode.INTERNAL_ERROR), ended.log
    assert said in ended.log
    assert "Traceback" not in ended.log
