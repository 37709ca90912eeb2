"""Collects the tests of a pytest session again, in a fresh interpreter."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import NoReturn

import pytest

from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.spec import read_spec
from dist_testing.core.launch.fresh import ThenBe
from dist_testing.core.pytest import plugin
from dist_testing.core.pytest.in_runner import FRESH_KEY
from dist_testing.core.pytest.marked_items import SPEC_KEY
from dist_testing.core.pytest.plugin import runner_plugin
from dist_testing.core.rank.bootstrap import RankContext

# Options of the runner's session that a second process must not follow, to the values that it has for them. Those of
# pytest's cache select or order tests by earlier runs, and the runner has done that.
_OF_RUNNER = {
    "cacheclear": False,
    "cacheshow": None,
    "failedfirst": False,
    "lf": False,
    "log_file": os.devnull,
    "newfirst": False,
    # Of pytest-reportlog, which empties the file at the start.
    "report_log": None,
    "stepwise": False,
    "stepwise_skip": False,
    "stepwise_reset": False,
}


def load(state: str, then: ThenBe, test: str | None) -> NoReturn:
    """Collect the tests as the runner did, then be a rank or a fork server: `then`, with the rank context, is that.

    `state` is a list in JSON: the arguments and the directory of the runner's session, and the text of the target's
    spec, "" without a target. `test` is the node id of the only test that is needed, None if it is not known yet.
    """
    arguments, directory, spec = json.loads(state)
    os.chdir(directory)
    collecting = FreshSession(spec, then, test)
    code = pytest.main([*arguments, "--no-header", "-qq"], plugins=[collecting, plugin])
    if collecting.errors:
        raise LaunchError("\n".join(["The tests could not be imported in a fresh interpreter.", *collecting.errors]))
    raise LaunchError(
        f"Collecting the tests again in a fresh interpreter ended with pytest's exit code {int(code)}.\n"
        "The test files, or modules that they import, behave differently in a second process.\n"
        "The output of rank 0 has pytest's messages."
    )


class FreshSession:
    """A pytest plugin for fresh interpreters: it collects as the runner did, and then runs no tests itself."""

    def __init__(self, spec: str, then: ThenBe, nodeid: str | None) -> None:
        self._spec = spec
        self._then = then
        self._nodeid = nodeid
        # Of files that could not be collected: the whole report of this interpreter.
        self.errors: Sequence[str] = ()

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Leave the session's files to the runner, before the plugins that own the options read them."""
        for name, value in _OF_RUNNER.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Leave pytest's cache to the runner."""
        self.errors = runner_plugin(session.config).context.collection_errors
        if (cache := getattr(session.config, "cache", None)) is not None:
            cache.set = lambda key, value: None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run no tests. pytest calls this only if a file could not be collected, which fails the tests of that file."""
        context = runner_plugin(session.config).context
        if context.items and self._nodeid in (None, *(item.nodeid for item in session.items)):
            session.config.stash[FRESH_KEY](context)
        return True

    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Pass on the runner's spec before any plugin is configured."""

        def then(context: RankContext) -> NoReturn:
            # Undoes `-qq` of the collection: as in the runner, `-vv` shows whole differences.
            early_config.option.verbose += 2
            self._then(context)

        early_config.stash[FRESH_KEY] = then
        if self._spec:
            early_config.stash[SPEC_KEY] = read_spec(self._spec)
