"""A plugin of pytest for Lightning's standalone tests: `pytest -p dist_testing.adopt.standalone`.

Each test with `RunIf(standalone=True)` runs on a world of its own, in one session of pytest. Lightning's launcher
starts the test's command once more for each further rank; the adapter has forked these ranks before the test begins.
"""

from __future__ import annotations

import functools
import os

import pytest

from dist_testing.adopt.on_ranks import configure_limit, ranks_of, refuse_unshareable, suite_limit_s
from dist_testing.adopt.standalone_rank import FIRST_SIZE, ON_RANK, SETUP, Lines, run_item
from dist_testing.core.ground.case import CaseFailedError
from dist_testing.core.launch.clean import spare_cuda
from dist_testing.core.pytest.internals import xfailed_key

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# What their conftest and their marks read: without it these tests are skipped, with it all others are left out.
_SWITCH = "PL_RUN_STANDALONE_TESTS"

os.environ.setdefault(_SWITCH, "1")
# At import, before a test file asks for the GPUs: no rank could be forked then.
spare_cuda()


def pytest_configure(config: pytest.Config) -> None:
    """Read the limit of a test."""
    configure_limit(config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave the setup of a standalone test to its ranks, and replace what its call does."""
    if ON_RANK not in item.stash and any(mark.kwargs.get("standalone") for mark in item.iter_markers("skipif")):
        vars(item).update(dict.fromkeys(SETUP, _nothing), runtest=functools.partial(_run, item))


def _nothing() -> None:
    """Take the place of a step that only ranks do."""


def _run(item: pytest.Item) -> None:
    """Run the whole test on ranks, and end as it has ended there."""
    __tracebackhide__ = True
    refuse_unshareable(item.nodeid, "standalone")
    try:
        ended = _run_on_ranks(item)
    except CaseFailedError:
        # The ranks have judged the marks for expected failures.
        item.stash[xfailed_key] = False  # type: ignore[misc]  # not None, and so final
        raise
    if ended["outcome"] == "xfailed":
        pytest.xfail(ended["reason"])
    if ended["outcome"] == "skipped":
        pytest.skip(ended["reason"])


def _run_on_ranks(item: pytest.Item) -> dict[str, str]:
    """Return the outcome and the reason of the test on rank 0."""
    __tracebackhide__ = True
    size = FIRST_SIZE
    while True:
        lines = Lines(size)
        try:
            with ranks_of(functools.partial(run_item, item, lines), item.nodeid, size, suite_limit_s()) as world:
                result = world.run()
                if lines.needed.value > size:
                    size = lines.needed.value
                    continue
                world.judge(result, CaseFailedError)
                ended: dict[str, str] = world.values(result)[0]
                return ended
        finally:
            lines.close()
