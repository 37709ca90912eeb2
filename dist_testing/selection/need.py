"""What tests need, as far as it is known before they run, and the plugin of pytest that selects them by it.

The need comes from the test's marker, its class and its decorators. The plugin deselects tests by the limits of the
options `--dist-min-gpus`, `--dist-max-world-size`, and so on, marks them for `-m`, and prints the table of needs.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from dist_testing.core.ground.add_ons import add_on_named
from dist_testing.core.ground.backends import any_declared
from dist_testing.core.ground.case import SETTINGS
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.skips import REQUIRED
from dist_testing.core.ground.spec import Spec, number_in
from dist_testing.core.pytest.marked_items import CASE_KEY, RUN_SPEC_KEY, function_of, is_marked, is_multi_process
from dist_testing.core.pytest.options import named_marks
from dist_testing.core.unittest.continuous import ContinuousCase
from dist_testing.gpus.needs import needs_of
from dist_testing.threaded import BACKEND as THREADED

# Above what any test needs: the bound turns a typing error into a text.
_MAX = 99_999
_ALL = range(_MAX + 1)
_NAME = "selection"
_HEADER = ("case", "backend", "ranks", "GPUs", "nodes")


@dataclass(frozen=True, slots=True)
class Need:
    """The need of one case."""

    case: str  # its node id
    backend: str = ""  # name of the backend that it is for; "" for none
    ranks: int | None = 1  # size of its world; 1 without ranks. None if the class cannot tell it before the test runs
    gpus: int | None = 0  # GPUs of the whole world; None as for `ranks`
    nodes: int = 1  # simulated nodes of its world; 1 for the machine itself


def need_of(item: pytest.Item, spec: Spec) -> Need:
    """Return the need of a collected test in a run with this spec. The markers must have been read."""
    function = function_of(item)
    required = (*getattr(function, REQUIRED, ()), *getattr(getattr(item, "cls", None), REQUIRED, ()))
    need = Need(item.nodeid, next((backend for _, backend in required if backend), ""))
    if is_marked(item):
        case = item.stash[CASE_KEY]
        gpus = needs_of(spec).of(case.world_size)
        need = Need(item.nodeid, spec.backend.name, case.world_size, gpus, case.settings.get("nodes", 1))
    elif is_multi_process(item):
        try:
            need = _need_of_class(item, function, spec, need)
        except (Exception, pytest.fail.Exception, pytest.skip.Exception):
            # The class's own code. The error is reported when the test runs.
            return replace(need, ranks=None, gpus=None)
    assert need.ranks is not None
    assert need.gpus is not None
    return replace(need, gpus=max([need.gpus, *(gpus(need.ranks) for gpus, _ in required)]))


def _need_of_class(item: pytest.Item, function: Any, spec: Spec, need: Need) -> Need:
    """Return the need of a method of a unittest class, which an instance of the class tells."""
    test: Any = item.cls(item.name)  # type: ignore[attr-defined]
    is_continuous = isinstance(test, ContinuousCase)
    size = test._wanted_world_size() if is_continuous else test.world_size
    # They are shown when the test runs.
    with warnings.catch_warnings(action="ignore"):
        ranks, _, isolation = test._checked(function, size, test.isolation)
    if isolation.in_process:
        return replace(need, backend=THREADED, ranks=ranks)
    named = test.backend_str if is_continuous else None
    named = named() if callable(named) else named
    on_gpus = named is not None and any_declared(named, lambda declared: declared.gpus_per_rank > 0)
    settings = {**spec.settings, **test._settings(), **getattr(function, SETTINGS, {})}
    return replace(
        need,
        backend=need.backend or named or spec.backend.name,
        ranks=ranks,
        gpus=max(needs_of(spec).of(ranks), ranks if on_gpus else 0),
        nodes=settings.get("nodes", 1),
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """Which numbers of GPUs and which world sizes a test may have to be selected."""

    gpus: range = _ALL
    ranks: range = _ALL

    def __str__(self) -> str:
        named = (("GPUs", self.gpus), ("ranks", self.ranks))
        return ", ".join(f"{allowed[0]} to {allowed[-1]} {what}" for what, allowed in named if allowed != _ALL)


def from_options(spec: Spec, given: Mapping[str, str]) -> Limits:
    """Return the limits that the command line sets."""
    # A test may need no GPU, and no world has less than one rank.
    return Limits(_allowed(given, "gpus", least=0), _allowed(given, "world-size", least=1))


def _allowed(given: Mapping[str, str], what: str, *, least: int) -> range:
    at_least, at_most = f"--dist-min-{what}", f"--dist-max-{what}"
    # A smallest number of 0 would select every test.
    low = _number(given, at_least, 1) if at_least in given else 0
    high = _number(given, at_most, least) if at_most in given else _MAX
    if low > high:
        raise UsageError(
            f"{at_least}={low} with {at_most}={high}.\n"
            "No test can meet both limits, so none would run.\n"
            "Exchange the two numbers, or leave one option out."
        )
    return range(low, high + 1)


def _number(given: Mapping[str, str], option: str, least: int) -> int:
    text = given[option]
    if (number := number_in(text)) is None or not least <= number <= _MAX:
        raise UsageError(
            f"{option}={text}: expected a number from {least} to {_MAX}.\n"
            f"It selects tests by their need: tests with {'fewer' if 'min' in option else 'more'} are deselected.\n"
            f"Write {option}=4, for example, or leave it out."
        )
    return number


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
    return json.dumps(asdict(need))
