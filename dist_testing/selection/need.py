"""What a test needs, as far as it is known before it runs: from its marker, its class and its decorators.

And the limits of a selection by it: the options `--dist-min-gpus`, `--dist-max-world-size`, and so on.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dist_testing.core.ground.backends import any_declared
from dist_testing.core.ground.case import SETTINGS
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.skips import REQUIRED
from dist_testing.core.ground.spec import Spec, number_in
from dist_testing.core.pytest.marked_items import CASE_KEY, function_of, is_marked, is_multi_process
from dist_testing.core.unittest.continuous import ContinuousCase
from dist_testing.gpus.needs import needs_of
from dist_testing.threaded import BACKEND as THREADED

# Above what any test needs: the bound turns a typing error into a text.
_MAX = 99_999
_ALL = range(_MAX + 1)


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
