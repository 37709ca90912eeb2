"""A plugin that tells at the start of a session which setting another one needs, because tests run on ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dist_testing.core.pytest.marked_items import is_marked


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Return a note of two lines for each of these plugins, with the way out."""
    marked = [item for item in items if is_marked(item)]
    return list(_notes(config.pluginmanager, marked)) if marked else []


def _notes(plugins: pytest.PytestPluginManager, marked: Sequence[pytest.Item]) -> Iterator[str]:
    # The name under which pytest-cov registers what measures; without --cov there is nothing.
    cov: Any = plugins.getplugin("_cov")
    measured = getattr(getattr(cov, "cov_controller", None), "cov", None)
    # An option that coverage does not know, as before 7.10, is an error of its own.
    patches: Any = ()
    with contextlib.suppress(Exception):
        patches = measured and measured.get_option("run:patch")
    if measured is not None and "_exit" not in (patches or ()):
        yield (
            "dist_testing: pytest-cov does not see what runs on ranks: their processes end before coverage saves its "
            "data\n"
            "  way out, in the configuration of coverage 7.10 or newer: [run] parallel = true, patch = _exit"
        )
    measuring = [item for item in marked if "benchmark" in getattr(item, "fixturenames", ())]
    if measuring and plugins.hasplugin("pytest_benchmark.plugin"):
        yield (
            f"dist_testing: pytest-benchmark has no results of tests on ranks, such as {measuring[0].nodeid}: they "
            "stay there\n"
            "  way out: measure dist_testing.run in a test without the marker, or print what a rank has measured"
        )
    for item in marked:
        function = getattr(item, "obj", None)
        # Private, as there is no other way to read the settings of a test; a version without it gets no note.
        settings = getattr(function, "_hypothesis_internal_use_settings", None)
        if getattr(function, "is_hypothesis_test", False) and settings is not None and not settings.derandomize:
            yield (
                f"dist_testing: hypothesis may choose other examples on each rank of {item.nodeid}\n"
                "  way out: @settings(derandomize=True, deadline=None, "
                "suppress_health_check=[HealthCheck.function_scoped_fixture])"
            )
            return
