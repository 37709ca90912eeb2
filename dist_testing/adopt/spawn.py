"""A plugin of pytest for suites that call `torch.multiprocessing.spawn`: `pytest -p dist_testing.adopt.spawn`.

The functions `spawn` and `start_processes` of torch make their ranks on the engine, forked from the test's process.
`multiprocessing.Process` objects of the tests are forked, too, and a test fails if one of them failed unnoticed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from dist_testing.adopt.spawn_processes import Watch, install_processes
from dist_testing.adopt.spawn_world import install_spawn, open_contexts

# At import: pytest imports the plugin before it collects tests, which may import the functions by name.
install_spawn()
install_processes()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge, at the end of a test, the processes that the test itself has not judged."""
    __tracebackhide__ = True
    with Watch() as watch:
        result = yield
        for context in open_contexts():
            context.join()
        watch.judge(item.nodeid)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    """Remove the ranks of a test that has failed before it waited for them."""
    try:
        return (yield)
    finally:
        for context in open_contexts():
            context.close()
