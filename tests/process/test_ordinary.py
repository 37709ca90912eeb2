"""docs/writing_tests.md, "What of pytest works on which isolation?": ordinary tests as real sessions run them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.children import run_pytest
from tests.support.starter import Starter

_PASSED = 36
_ONLY_PROCESSES = ("monkeypatch", "caplog", "capsys", "capfd", "recwarn")
_REFUSED = 'Give the test ranks that are processes: isolation="fork" and a backend for them.'
_NO_VARIABLES = "Ranks that are threads share one environment, without the variables of a launcher"
# Isolation to its options, and to what says why a test fails there.
_SESSIONS: dict[str, tuple[str, dict[str, str]]] = {
    "fork": ("", {}),
    "pool": ("", {"test_rpc": "open file(s) /memfd:tensorpipe_shm (deleted) ("}),
    "thread": (
        # A logging configuration belongs to the process, so one rank closes the file of the other one, or not. A fork
        # inherits locks of native code that the other rank holds: a worker then waited in `__cxa_atexit` of glibc.
        "--dist-backend=threaded --deselect=test_suite.py::TestPython::test_logging_configuration "
        "--deselect=test_suite.py::TestPython::test_multiprocessing_pool "
        "--deselect=test_suite.py::TestTorch::test_data_loader",
        {
            **{f"test_{fixture}": _REFUSED for fixture in _ONLY_PROCESSES},
            "test_filterwarnings": "DID NOT RAISE",
            "test_environment": _NO_VARIABLES,
            "test_rpc": _NO_VARIABLES,
            "test_subtests": "Derive the class from MultiThreadedTestCase, or run it with another isolation.",
        },
    ),
}


def _suite(folder: Path) -> None:
    shutil.copy(Path(__file__).with_name("ordinary_suite.py"), folder / "test_suite.py")


@pytest.mark.parametrize("isolation", _SESSIONS)
def test_ordinary_tests(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, a test that passes with plain pytest fails on ranks, or without a way out."""
    _suite(tmp_path)
    options, failing = _SESSIONS[isolation]
    ended = run_pytest(starter, tmp_path, "-rA", f"--dist-isolation={isolation}", *options.split())
    outcomes = ended.outcomes()
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "PASSED"} == {
        "test_xfail": "XFAIL",
        **dict.fromkeys(failing, "FAILED"),
    }, ended.log
    deselected = options.count("--deselect")
    assert f" {_PASSED - len(failing) - deselected} passed" in ended.log, ended.log
    failures = ended.failures()
    for name, said in failing.items():
        assert said in next(report for title, report in failures.items() if title == name), ended.log


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        # A part of the suite, as each test imports torch in two interpreters.
        ("--dist-isolation=spawn", ["test_scopes", "test_request", "test_method"]),
        ("--dist-isolation=pool --override-ini=dist_pool_keeps=files", ["test_rpc"]),
    ],
    ids=["fresh interpreters", "RPC in a pool"],
)
def test_chosen_tests(starter: Starter, tmp_path: Path, options: str, chosen: list[str]) -> None:
    """If this fails, a fresh interpreter has other fixtures or options than the runner, or a pool has no RPC."""
    _suite(tmp_path)
    ended = run_pytest(starter, tmp_path, "-rA", *options.split(), "-k", " or ".join(chosen))
    assert ended.outcomes() == dict.fromkeys(chosen, "PASSED"), ended.log
