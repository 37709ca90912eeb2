"""The part of a Bazel run that lives inside pytest: hands the spec in, shards, keeps results for the XML."""

from __future__ import annotations

from typing import Literal

import pytest

from dist_testing.budget import Budget
from dist_testing.doors.pytest_plugin import BUDGET_KEY, OUTPUTS_KEY, SPEC_KEY
from dist_testing.outcomes import Cause
from dist_testing.runner.bazel import Protocol
from dist_testing.runner.junit import XmlCase, write_xml
from dist_testing.spec import Spec

__all__ = ["BazelSession", "banner"]


def banner(spec: Spec) -> str:
    """The first line of the log: what is about to run."""
    sizes = ", ".join(str(size) for size in spec.world_sizes)
    gpus = f", {spec.gpus_per_rank} GPU(s) per rank" if spec.gpus_per_rank else ""
    return f"dist_testing: {spec.target}: {spec.backend.name}, world size {sizes}{gpus}, {spec.isolation}"


class BazelSession:
    """A pytest plugin, registered before all others."""

    def __init__(self, spec: Spec, protocol: Protocol) -> None:
        self._spec = spec
        self._protocol = protocol
        self._budget = Budget.starting_now(protocol.timeout_s)
        self._cases: list[XmlCase] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Hand the spec to the plugin."""
        config.stash[SPEC_KEY] = self._spec
        config.stash[BUDGET_KEY] = self._budget
        config.stash[OUTPUTS_KEY] = self._protocol.outputs

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep this shard's cases: whole cases, dealt in turn, so that every case runs in exactly one shard."""
        index, total = self._protocol.shard
        if total > 1:
            others = [item for position, item in enumerate(items) if position % total != index]
            items[:] = items[index::total]
            config.hook.pytest_deselected(items=others)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be collected is a failure, and belongs into the XML."""
        if report.failed:
            text = str(report.longrepr)
            self._cases.append(XmlCase("", report.nodeid, "error", 0.0, _last_line(text), text))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep one case per test: its call, or whatever went wrong around it."""
        if report.when != "call" and report.passed:
            return
        outcome: Literal["passed", "skipped", "failed", "error"] = report.outcome
        if report.failed and report.when != "call":
            outcome = "error"
        text = ""
        message = ""
        if report.failed:
            text = str(report.longrepr)
            is_ours = hasattr(report, "dist_failure")
            message = text.partition("\n")[0] if is_ours else _last_line(text)
        elif hasattr(report, "wasxfail"):
            message = f"xfail: {report.wasxfail}"
        elif isinstance(report.longrepr, tuple):
            message = report.longrepr[2].removeprefix("Skipped: ")
        if report.failed and ("cause", Cause.INFRASTRUCTURE.value) in report.user_properties:
            self._tell_infrastructure(message)
        path, _, name = report.nodeid.partition("::")
        *classes, name = name.split("::")
        classname = ".".join([path.removesuffix(".py").replace("/", "."), *classes])
        self._cases.append(
            XmlCase(classname, name, outcome, report.duration, message, text, tuple(report.user_properties))
        )

    def _tell_infrastructure(self, message: str) -> None:
        """Let the executor know that the machine failed, and not the test; the first time is enough."""
        path = self._protocol.infrastructure_file
        if path is not None and not path.exists():
            path.write_text(f"dist_testing\n{message}\n", encoding="utf-8")

    def write_xml(self) -> None:
        """Write what is known by now, if Bazel wants it."""
        if self._protocol.xml_file is not None:
            write_xml(self._protocol.xml_file, self._spec.target, self._cases)

    def exit_code(self, code: int) -> int:
        """What Bazel is told.

        Args:
            code: What pytest ended with.
        """
        if code != pytest.ExitCode.NO_TESTS_COLLECTED:
            self._warn_if_nothing_ran(code)
            return code
        index, total = self._protocol.shard
        if self._protocol.test_filter or (total > 1 and index > 0):
            # A filter may match nothing in this target, and there may be fewer cases than shards.
            return 0
        print(
            f"{self._spec.target}: nothing ran: no case was collected for backend {self._spec.backend.name}.\n"
            "A target that runs nothing would be green for ever.\n"
            f"Add tests to {', '.join(self._spec.srcs)}, or remove the target."
        )
        return code

    def _warn_if_nothing_ran(self, code: int) -> None:
        if code or not self._cases or any(case.outcome != "skipped" for case in self._cases):
            return
        reasons = sorted({case.message for case in self._cases})
        warning = f"every case of {self._spec.target} was skipped: {'; '.join(reasons)}"
        print(f"WARNING: {warning}")
        if self._protocol.warnings_file is not None:
            self._protocol.warnings_file.write_text(f"{warning}\n", encoding="utf-8")


def _last_line(text: str) -> str:
    """Where pytest says what happened."""
    return text.rstrip().rpartition("\n")[2]
