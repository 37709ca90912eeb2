"""The part of a Bazel run that lives inside pytest: hands the spec in, filters, shards, keeps results for the XML."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from dist_testing.budget import Budget
from dist_testing.doors.marker import read_marker
from dist_testing.doors.pytest_plugin import BUDGET_KEY, OUTPUTS_KEY, SPEC_KEY
from dist_testing.errors import ReportError
from dist_testing.outcomes import Cause
from dist_testing.runner.bazel import Protocol
from dist_testing.runner.conclusion import Conclusion
from dist_testing.runner.junit import EXPECTED, Outcome, XmlCase
from dist_testing.runner.log_head import LogHead
from dist_testing.runner.sharding import ShardCase, deal
from dist_testing.runner.timings import read_timings
from dist_testing.spec import Spec

__all__ = ["BazelSession"]

# Launchers that keep ranks for the cases of a class, or of a module outside classes.
_KEEPING = ("pool", "thread")
_SKIPPED = "Skipped: "
# Causes of which the executor is told: another machine may do better.
_OF_THE_MACHINE = (Cause.INFRASTRUCTURE, Cause.PROMISE)


class BazelSession:
    """A pytest plugin, registered before all others."""

    def __init__(
        self, spec: Spec, protocol: Protocol, head: LogHead, conclusion: Conclusion, timings: Path | None
    ) -> None:
        """Take part in a session.

        Args:
            spec: What the target asks for.
            protocol: What Bazel wants.
            head: The log's first line, which ends when something has run.
            conclusion: Takes the results.
            timings: How long cases take; None if nobody has said.
        """
        self._spec = spec
        self._protocol = protocol
        self._head = head
        self._conclusion = conclusion
        self._timings = timings
        self._budget = Budget.starting_now(_time_left_s(protocol.timeout_s))

    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Hand the spec to the plugin, before any plugin is configured."""
        early_config.stash[SPEC_KEY] = self._spec
        early_config.stash[BUDGET_KEY] = self._budget
        early_config.stash[OUTPUTS_KEY] = self._protocol.outputs

    def pytest_configure(self, config: pytest.Config) -> None:
        """End the head of the log early where nothing is held back."""
        if config.option.capture == "no":
            # Somebody wants to see everything as it comes.
            self._head.end_line()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
        """Keep the cases that the filter means, and of what is then left this shard's."""
        if self._protocol.test_filter:
            self._filter(config, items, self._protocol.test_filter)
        yield
        index, total = self._protocol.shard
        if total > 1:
            shards = deal(
                [ShardCase(item.nodeid, self._kept_ranks(item)) for item in items], total, self._durations(items)
            )
            _keep(config, items, [item for item in items if shards[item.nodeid] == index])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Know what is to come: after a signal it is what has not run."""
        self._conclusion.expect(len(session.items))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be collected is a failure, and one that skips itself a skip; both belong into the XML."""
        if report.failed:
            text = str(report.longrepr)
            self._add(XmlCase("", report.nodeid, "error", 0.0, _last_line(text), text))
        elif report.skipped and self._protocol.shard[0] == 0:
            self._add(XmlCase("", report.nodeid, "skipped", 0.0, _skip_reason(report.longrepr)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A case begins."""
        self._conclusion.running = _named(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        """It has ended, whatever its reports say."""
        self._conclusion.finished()

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """The run ends before its cases do."""
        self._conclusion.interruption = str(excinfo.value) or excinfo.typename

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep one case per test: its call, or whatever went wrong around it."""
        if report.when != "call" and report.passed:
            return
        outcome: Outcome = report.outcome
        if report.failed and report.when != "call":
            outcome = "error"
        text = ""
        message = ""
        if report.failed:
            text = str(report.longrepr)
            is_ours = hasattr(report, "dist_failure")
            message = text.partition("\n")[0] if is_ours else _last_line(text)
        elif hasattr(report, "wasxfail"):
            message = f"{EXPECTED}{report.wasxfail}"
        elif report.skipped:
            message = _skip_reason(report.longrepr)
        if report.failed and any(("cause", cause.value) in report.user_properties for cause in _OF_THE_MACHINE):
            self._conclusion.tell_infrastructure(message)
        classname, name = _named(report.nodeid)
        self._add(XmlCase(classname, name, outcome, report.duration, message, text, tuple(report.user_properties)))

    def _add(self, case: XmlCase) -> None:
        self._conclusion.cases.append(case)
        if case.has_run:
            self._head.end_line()

    def _filter(self, config: pytest.Config, items: list[pytest.Item], wanted: str) -> None:
        """Select by name, as reports and unittest write it; by pytest's expressions what is nobody's name."""
        if named := [item for item in items if wanted in _names(item.nodeid)]:
            _keep(config, items, named)
        else:
            # pytest's own hook comes after this one.
            given = config.option.keyword
            config.option.keyword = f"({given}) and ({wanted})" if given else wanted

    def _durations(self, items: Sequence[pytest.Item]) -> Mapping[str, float]:
        if self._timings is None:
            return {}
        try:
            known = read_timings(self._timings).get(self._spec.target, {})
        except ReportError as error:
            self._conclusion.warn(f"{error}\nThe cases are dealt out to the shards as if all took the same time.")
            return {}
        keys = {item.nodeid: XmlCase(*_named(item.nodeid), "passed", 0.0).key for item in items}
        return {nodeid: known[key] for nodeid, key in keys.items() if key in known}

    def _kept_ranks(self, item: pytest.Item) -> str:
        """What shares ranks with the item's: its class, or its module; "" if it has its own."""
        marker = read_marker(item) if isinstance(item, pytest.Function) else None
        isolation = marker.isolation if marker is not None else getattr(getattr(item, "cls", None), "isolation", "")
        is_kept = (isolation or self._spec.isolation) in _KEEPING
        return item.parent.nodeid if is_kept and item.parent is not None else ""


def _time_left_s(timeout_s: float | None) -> float | None:
    """What is left of Bazel's time, which runs since this process was started; torch may be loaded by now."""
    if timeout_s is None:
        return None
    age_s = time.time() - psutil.Process().create_time()
    # Clocks are set; a wrong one must not take everything.
    return timeout_s - min(max(age_s, 0.0), timeout_s / 2)


def _keep(config: pytest.Config, items: list[pytest.Item], kept: Sequence[pytest.Item]) -> None:
    chosen = {item.nodeid for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = kept


def _parts(nodeid: str) -> tuple[list[str], str]:
    """File, classes and function of a case; and its parameters, which may look like anything."""
    head, bracket, parameters = nodeid.partition("[")
    return head.split("::"), bracket + parameters


def _names(nodeid: str) -> set[str]:
    """What a person may call a case, or what it is part of: `test_x`, `Class.test_x`, `file.py::Class`, `module`."""
    (path, *rest), parameters = _parts(nodeid)
    module = _module(path)
    names = set()
    for first in (path, module, module.rpartition(".")[2]):
        parts = [first, *rest]
        for end in range(1, len(parts) + 1):
            for start in range(end):
                names |= {joint.join(parts[start:end]) for joint in ("::", ".")}
    # Parameters belong to the function, which comes last.
    return names | {name + parameters for name in names}


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _named(nodeid: str) -> tuple[str, str]:
    """Class name and name of a case in the XML."""
    (path, *classes), parameters = _parts(nodeid)
    name = classes.pop() if classes else ""
    return ".".join([_module(path), *classes]), name + parameters


def _skip_reason(longrepr: object) -> str:
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return str(reason).removeprefix(_SKIPPED)


def _last_line(text: str) -> str:
    """Where pytest says what happened."""
    return text.rstrip().rpartition("\n")[2]
