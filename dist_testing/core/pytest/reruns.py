"""Failed cases that run again: the marks and options of pytest-rerunfailures, pytest-retry and flaky.

These plugins run a failed test again in the process in which it failed. A rank cannot do that alone, so the runner runs
the whole case again, on fresh ranks. Every try that failed is in the log and in the reports.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from dist_testing.core.pytest.rank_plugins import REPEATERS, package_of

# The outcome that pytest-rerunfailures gives to the report of a test that runs again.
RERUN = "rerun"
_MARK = "flaky"
# Arguments and options by which an exception decides. It stays on its rank.
_FILTERS = ("only_rerun", "rerun_except", "only_on", "exclude")


@dataclass(frozen=True, slots=True)
class Reruns:
    """How often a case that fails runs again.

    Attributes:
        count: At most so often; 0 for never.
        delay_s: Pause before each, in seconds.
        obstacle: Why the case cannot run again although the user wants it; "" if it can.
    """

    count: int = 0
    delay_s: float = 0.0
    obstacle: str = ""


def reruns_of(item: pytest.Item) -> Reruns:
    """Return what the plugin for reruns that is in use says about an item; no reruns without such a plugin."""
    packages = {package_of(plugin) for plugin in item.config.pluginmanager.get_plugins()}
    for package in REPEATERS:
        if package in packages and (found := _READERS[package](item)) is not None:
            return found
    return Reruns()


def until_passed(
    item: pytest.Item, run: Callable[[], list[pytest.TestReport]], tell: Callable[[str], None]
) -> list[pytest.TestReport]:
    """Run a case, and again as long as it fails and may run again; return the reports of the last try.

    Args:
        item: The item of the case.
        run: Runs the case once.
        tell: Takes a line for the log about each try that failed.
    """
    reruns = reruns_of(item)
    count = 0 if reruns.obstacle else reruns.count
    for number in range(count + 1):
        found = run()
        call = found[1]
        # Only a case with a result has a size among its properties: the ranks of another one could not start.
        if number == count or not call.failed or "world_size" not in dict(call.user_properties):
            break
        text: str = vars(call).pop("dist_failure", "")
        headline = text.partition("\n")[0]
        tell(f"dist_testing: try {number + 1} of {count + 1} failed, and fresh ranks run the case again: {headline}")
        call.outcome = RERUN  # type: ignore[assignment]  # the word of pytest-rerunfailures
        call.longrepr = text
        item.ihook.pytest_runtest_logreport(report=call)
        time.sleep(reruns.delay_s)
    if number:
        for report in found[1:]:
            report.user_properties.append(("reruns", number))
    return found


def not_repeated(items: Iterable[pytest.Item], obstacle: str) -> str:
    """Return one line about tests that a plugin is to run again if they fail, and that cannot; "" if there are none.

    Args:
        items: Tests that run on ranks.
        obstacle: Why no case of this session can run again; "" if nothing prevents it.
    """
    found = [(item, reruns) for item in items if (reruns := reruns_of(item)).count]
    names = [(item.nodeid, reruns.obstacle or obstacle) for item, reruns in found if reruns.obstacle or obstacle]
    if not names:
        return ""
    nodeid, why = names[0]
    return (
        f"dist_testing: {len(names)} test(s) on ranks do not run again if they fail, such as {nodeid}: {why}. "
        "Run the session again with --lf, or set flaky = True in the Bazel target."
    )


def _of_rerunfailures(item: pytest.Item) -> Reruns | None:
    module: Any = sys.modules["pytest_rerunfailures"]
    options = vars(item.config.option)
    return _read(item, module.get_reruns_count(item), module.get_reruns_delay(item), options)


def _of_retry(item: pytest.Item) -> Reruns | None:
    # With its option, the plugin marks all tests.
    if (mark := item.get_closest_marker(_MARK)) is None:
        return None
    return _read(item, mark.kwargs.get("retries", 1), mark.kwargs.get("delay", 0), {})


def _of_flaky(item: pytest.Item) -> Reruns | None:
    test = getattr(item, "obj", None)
    runs, passes = getattr(test, "_flaky_max_runs", None), getattr(test, "_flaky_min_passes", None)
    option = item.config.option
    if runs is None and getattr(option, "force_flaky", False):
        runs, passes = option.max_runs or 2, option.min_passes or 1
    if runs is None:
        return None
    if passes != 1:
        return Reruns(runs, obstacle=f"min_passes = {passes!r}, and a case that passes does not run again")
    return _read(item, runs - 1, 0, {})


def _read(item: pytest.Item, count: Any, delay_s: Any, options: dict[str, Any]) -> Reruns | None:
    mark = item.get_closest_marker(_MARK)
    arguments = mark.kwargs if mark is not None else {}
    if not count or arguments.get("condition", True) is False:
        return None
    if type(count) is not int or count < 0 or type(delay_s) not in (int, float) or delay_s < 0:
        return Reruns(1, obstacle=f"{count!r} reruns after {delay_s!r} s are not numbers of them")
    chosen = [name for name in _FILTERS if arguments.get(name) or options.get(name)]
    if not isinstance(arguments.get("condition", True), bool):
        chosen.append("condition")
    obstacle = f"{', '.join(chosen)} needs the exception, which stays on its rank" if chosen else ""
    return Reruns(count, float(delay_s), obstacle)


_READERS = {"flaky": _of_flaky, "pytest_rerunfailures": _of_rerunfailures, "pytest_retry": _of_retry}
