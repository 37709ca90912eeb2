"""Runs the tests of a target in watch mode: `bazel-bin/x/y --dist-watch`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from dist_testing.core.bazel.pytest_config import test_session
from dist_testing.core.ground.spec import Spec
from dist_testing.core.pytest import plugin as pytest_plugin
from dist_testing.core.pytest.marked_items import SPEC_KEY


def watch_target(spec: Spec, files: Sequence[str], repositories: Collection[str], arguments: Sequence[str]) -> int:
    """Watch the files of a target; see `test_session` for the arguments. Returns pytest's exit code in each run."""

    class Target:
        # Before pytest configures any plugin. Nothing else of Bazel's protocol applies: a person reads the results.
        @pytest.hookimpl(tryfirst=True)
        def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
            early_config.stash[SPEC_KEY] = spec

    command = test_session(files, repositories, arguments, fail_fast=False)
    return int(pytest.main(command, plugins=[Target(), pytest_plugin]))
