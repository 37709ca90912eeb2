"""Runs the tests of a target in watch mode: `bazel-bin/x/y --dist-watch`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from dist_testing.core.bazel.pytest_config import test_session
from dist_testing.core.ground.spec import Spec
from dist_testing.core.pytest import plugin as pytest_plugin
from dist_testing.core.pytest.in_runner import SPEC_KEY


class _Target:
    """A pytest plugin that knows the target. Nothing else of Bazel's protocol applies: a person reads the results."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Pass the spec to the plugin before pytest configures any plugin."""
        early_config.stash[SPEC_KEY] = self._spec


def watch_target(spec: Spec, files: Sequence[str], repositories: Collection[str], arguments: Sequence[str]) -> int:
    """Watch the files of a target; see `test_session` for the arguments. Returns pytest's exit code in each run."""
    command = test_session(files, repositories, arguments, fail_fast=False)
    return int(pytest.main(command, plugins=[_Target(spec), pytest_plugin]))
