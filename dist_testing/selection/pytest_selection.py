"""The plugin of pytest that deselects tests by their needs, marks them by `-m`, and prints the table of needs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pytest

from dist_testing.core.ground.add_ons import add_on_named
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.pytest.marked_items import RUN_SPEC_KEY
from dist_testing.core.pytest.options import named_marks
from dist_testing.selection.need import Limits, Need, need_of

_NAME = "selection"
_HEADER = ("case", "backend", "ranks", "GPUs", "nodes")


class Selection:
    """Selects tests after their markers have been read, and so after the hooks of conftests."""

    def __init__(self, config: pytest.Config) -> None:
        """Read what the command line asks for; for a table, have pytest only collect."""
        self._config = config
        self._spec = config.stash[RUN_SPEC_KEY]
        self._limits: Limits = self._spec.settings.get(_NAME, Limits())
        self._marks = sorted(set(named_marks(config, add_on_named(_NAME, "-m").marks)))
        for mark in self._marks:
            config.addinivalue_line("markers", f"{mark}: computed from what the test needs")
        self._as_json: bool = config.getoption("--dist-needs-json")
        self._shows: bool = self._as_json or config.getoption("--dist-needs")
        self._needs: dict[pytest.Item, Need] = {}
        if self._shows:
            if not config.pluginmanager.has_plugin("terminal"):
                raise UsageError(
                    "--dist-needs with -p no:terminal.\n"
                    "The table is printed by pytest's plugin for the terminal.\n"
                    "Leave -p no:terminal out."
                )
            config.option.collectonly = True

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Deselect tests outside the limits. If `-m` has a computed mark, have pytest apply `-m` after the marks."""
        with self._without("markexpr") if self._marks else contextlib.nullcontext():
            yield
        self._needs = {item: need_of(item, self._spec) for item in items}
        for item, need in self._needs.items():
            for mark in self._marks:
                if has_mark(need, mark):
                    item.add_marker(mark)
        if outside := [item for item in items if not is_within(self._needs[item], self._limits)]:
            items[:] = [item for item in items if is_within(self._needs[item], self._limits)]
            self._config.hook.pytest_deselected(items=outside)
        if self._marks:
            # It has applied -k already, for which the new marks are no names.
            mark_plugin: Any = self._config.pluginmanager.get_plugin("mark")
            with self._without("keyword"):
                mark_plugin.pytest_collection_modifyitems(items, self._config)

    @contextlib.contextmanager
    def _without(self, option: str) -> Iterator[None]:
        """Take an expression out of the command line."""
        expression = getattr(self._config.option, option)
        setattr(self._config.option, option, "")
        try:
            yield
        finally:
            setattr(self._config.option, option, expression)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_finish(self, session: pytest.Session) -> Generator[None]:
        """Print the table in place of pytest's list of the tests."""
        if not self._shows:
            return (yield)
        items, session.items = session.items, []
        try:
            yield
        finally:
            session.items = items
        writer = self._config.get_terminal_writer()
        needs = [self._needs[item] for item in items]
        writer.line()
        for line in map(_as_json, needs) if self._as_json else table(needs):
            writer.line(line)


def has_mark(need: Need, mark: str) -> bool:
    """Return whether a test with this need has a computed mark. One with an unknown need has none."""
    what, _, number = mark.rpartition("_")
    if what == "gpus":
        return need.gpus == int(number)
    given = need.gpus if what == "gpus_ge" else need.ranks
    return given is not None and given >= int(number)


def is_within(need: Need, limits: Limits) -> bool:
    """Return whether the limits select a test. An unknown need is within all: the test shows its error when it runs."""
    return need.ranks is None or (need.gpus in limits.gpus and need.ranks in limits.ranks)


def table(needs: Sequence[Need]) -> Iterator[str]:
    """Yield the lines of the table: a "?" is unknown, and a "-" is for no backend."""
    rows = [_HEADER, *map(_row, needs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for case, backend, *numbers in rows:
        aligned = (number.rjust(width) for number, width in zip(numbers, widths[2:], strict=True))
        yield "  ".join((case.ljust(widths[0]), backend.ljust(widths[1]), *aligned))


def _row(need: Need) -> tuple[str, str, str, str, str]:
    ranks, gpus = ("?" if number is None else str(number) for number in (need.ranks, need.gpus))
    return need.case, need.backend or "-", ranks, gpus, str(need.nodes)


def _as_json(need: Need) -> str:
    return json.dumps(dataclasses.asdict(need))
