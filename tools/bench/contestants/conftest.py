"""Makes a pytest session take turns."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from contestants.turns import order, turns


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise the test with the cases of the order."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", order().cases)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish() -> None:
    """Report that everything is imported; no rank and no fork server has been started."""
    if turns().are_mine:
        turns().tell("imported")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Function) -> Generator[None, object, object]:
    """Take a turn for all that pytest does for one case."""
    if not turns().are_mine:
        return (yield)
    with turns().case(str(item.callspec.params["case"])):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report the verdict as soon as it is known."""
    if report.when == "call" and turns().are_mine:
        turns().tell("verdict", passed=report.passed, engine_s=report.duration, text=str(report.longrepr))
