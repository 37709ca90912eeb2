"""Collects the results of a run, and writes the first line of its log, the XML, the warnings and the result."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.bazel.protocol import Protocol
from dist_testing.core.events.event import CaseEnded, CaseRecorded, CaseStarted, Event, TestsCollected
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import BAD, CaseRecord, case_name
from dist_testing.core.ground.spec import Spec

# Values of `pytest.ExitCode`. Bazel takes every code but 0 for a failure.
FAILED = 1
_NO_TESTS_COLLECTED = 5
# Limit of different skip reasons in one line.
_MAX_REASONS = 3


def banner(spec: Spec, protocol: Protocol) -> str:
    """Return the start of the log's first line, which describes the run."""
    sizes = ", ".join(str(size) for size in spec.world_sizes)
    settings = "".join(f", {name} = {setting}" for name, setting in spec.settings.items())
    index, total = protocol.shard
    part = f", shard {index + 1} of {total}" if total > 1 else ""
    part += f", run {protocol.run_number}" if protocol.run_number is not None else ""
    return f"dist_testing: {spec.target}: {spec.backend.name}, world size {sizes}{settings}, {spec.isolation}{part}"


class Banner:
    """Replaces standard output, and leaves its first line open until a test has run.

    It writes the start of the line at once, and holds back all later output until it knows the end of the line. So a
    run that skips everything says so in the first line. The held output is pytest's header and the marks of skipped
    cases, which are no loss if the process vanishes.
    """

    def __init__(self, stream: TextIO, line: str) -> None:
        """Write `line`, the start of the first line, to the log."""
        self._stream = stream
        self._waiting: list[str] | None = []
        stream.write(line)
        stream.flush()

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace standard output in a block. Output to standard error ends the line, as does the end of the block."""
        with contextlib.redirect_stdout(self), contextlib.redirect_stderr(_ErrorStream(self, sys.stderr)):
            try:
                yield
            finally:
                self.end_line()

    def end_line(self, addition: str = "") -> None:
        """End the first line and stop holding back output. Only the first call has an effect."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._stream.write(f"{addition}\n")
            self._stream.writelines(waiting)
            self._stream.flush()

    def write(self, text: str) -> int:
        """Write the text, or hold it back; return its length."""
        if self._waiting is None:
            return self._stream.write(text)
        self._waiting.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _ErrorStream:
    """Replaces standard error, which goes to the same log, and ends the first line before any output."""

    def __init__(self, banner: Banner, stream: TextIO) -> None:
        self._banner = banner
        self._stream = stream

    def write(self, text: str) -> int:
        self._banner.end_line()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Conclusion:
    """Collects the results of a run, and judges the run at its end. It is a sink of events.

    Attributes:
        cases: The reported cases.
        running: The node id of each running case.
        found: Number of cases before any was left out, also those of other backends.
        to_come: Number of cases that have not ended.
        interruption: Why the run has ended early; "" if it has not.
        where: Stacks of the runner at that time; "" if they do not help.
        is_promised: Whether the configuration promises the hardware.
        has_ranks: Whether the target has a case that runs on ranks, in any shard and with any filter. True until all
            cases are known.
        is_filter_in_vain: Whether the filter matches no case of the target, in any shard.
        decides_for_target: Whether all cases of other shards will certainly skip, so that this shard decides.
        kinds: The kinds of events that it needs.
    """

    kinds = (TestsCollected, CaseStarted, CaseRecorded, CaseEnded)

    def __init__(self, spec: Spec, protocol: Protocol, head: Banner) -> None:
        """Make a conclusion without results. It ends the first line of the log."""
        self.cases: list[CaseRecord] = []
        self.running: list[str] = []
        self.found = 0
        self.to_come = 0
        self.interruption = ""
        self.where = ""
        self.has_ranks = True
        self.is_filter_in_vain = False
        self.decides_for_target = False
        self._spec = spec
        self._protocol = protocol
        self._head = head
        self.is_promised = any(map(spec.promises, spec.world_sizes))
        # Of running cases that have a record: its place in `cases`.
        self._places: dict[str, int] = {}
        self._warnings: list[str] = []
        self._late_warnings: list[str] = []

    def __call__(self, event: Event) -> None:
        """Take an event of the front end."""
        match event:
            case TestsCollected():
                self.to_come = event.count
            case CaseStarted():
                self.running.append(event.nodeid)
            case CaseRecorded(record=case):
                # Every shard collects a file that skips as a whole; the first tells it.
                if case.when != "collect" or case.status != "skipped" or self._protocol.shard[0] == 0:
                    self.add(case)
            case CaseEnded():
                self.finished(event.nodeid)

    def add(self, case: CaseRecord) -> None:
        """Add a case to the results, or replace its first record. If it has run, end the first line of the log."""
        if case.status == "error":
            self.tell_infrastructure(f"{case.name}: {case.message}")
        self._put(case)
        if case.has_run:
            self._head.end_line("" if self.has_ranks else ": NO CASE RAN ON RANKS")

    def _put(self, case: CaseRecord) -> None:
        if case.nodeid in self._places:
            self.cases[self._places[case.nodeid]] = case
            return
        if case.nodeid in self.running:
            self._places[case.nodeid] = len(self.cases)
        self.cases.append(case)

    def finished(self, nodeid: str) -> None:
        """Note the end of a running case."""
        self._places.pop(nodeid, None)
        if nodeid in self.running:
            self.running.remove(nodeid)
        self.to_come -= 1

    def warn(self, text: str) -> None:
        """Print a warning to the log, and pass it to Bazel."""
        print(f"WARNING: {text}")
        self._warnings.append(text)

    def warn_at_end(self, text: str) -> None:
        """Print a warning at the end of the run: output during a test would count as the test's."""
        self._late_warnings.append(text)

    def give_up(self, why: str) -> None:
        """Report that the run ended before pytest returned."""
        self.interruption = why
        self._fail_run(
            f"{self._spec.target}: the run ended before its cases did: {why}.\n"
            "A case that has not run counts neither as passed nor as skipped.\n"
            "Look in the log above for what ended the run."
        )

    def tell_infrastructure(self, message: str) -> None:
        """Tell the executor, once, that the machine failed and not the test."""
        path = self._protocol.infrastructure_file
        if path is not None and not path.exists():
            self._write(path, f"dist_testing\n{message}\n")

    def conclude(self, code: int) -> int:
        """Write all result files for Bazel. Takes the exit code of pytest, and returns that for Bazel: 0 for a pass."""
        if not self.has_ranks and not self.interruption and any(case.has_run for case in self.cases):
            self._warn_for_target(
                f"{self._spec.target}: no case ran on ranks: "
                f"none is distributed for backend {self._spec.backend.name}.\n"
                "The cases lack @pytest.mark.distributed or a base class such as dist_testing.MultiProcessTestCase; a "
                "test without both runs once, in the runner.\n"
                "Mark the cases, or move tests that need no ranks to a py_test."
            )
        for nodeid in list(self.running):
            why = f"the case had not ended when the run did: {self.interruption or 'for a reason that is in the log'}"
            self._put(CaseRecord(case_name(nodeid), "unfinished", nodeid, message=why, text=self._with_place(why)))
            self.finished(nodeid)
        if code in (0, _NO_TESTS_COLLECTED):
            if self.interruption:
                # `pytest.exit` can set any exit code, also 0.
                self.give_up(self.interruption)
                code = FAILED
            elif not self.cases:
                code = self._judge_empty_run(code)
            elif not any(case.has_run for case in self.cases):
                code = self._judge_skipped_run()
            elif failed := [case for case in self.cases if case.status in BAD]:
                code = self._judge_forgiven_run(failed)
        elif not any(case.status in BAD for case in self.cases):
            # For example a wrong option, a broken conftest.py, or a signal between two cases.
            why = self.interruption or f"pytest's exit code {code}"
            self._blame_run(f"the run failed outside its cases ({why}); the log says why")
        self._head.end_line()
        if self.where:
            print(self._with_place(f"\n{self._spec.target}: {self.interruption}."))
        for warning in self._late_warnings:
            self.warn(warning)
        if self._warnings and self._protocol.warnings_file is not None:
            self._write(self._protocol.warnings_file, "".join(f"{warning}\n" for warning in self._warnings))
        self._write_xml()
        return code

    def _judge_empty_run(self, code: int) -> int:
        if code == 0 and self._protocol.xml_file is None:
            # A person has started the program for what it prints, as with --collect-only or --version.
            return code
        index, total = self._protocol.shard
        if self._protocol.test_filter or (total > 1 and index > 0):
            # A filter may match no case of this target, and a target may have fewer cases than shards.
            if self.is_filter_in_vain:
                why = f"no case matches --test_filter={self._protocol.test_filter!r}"
                self._head.end_line(f": NOTHING RAN: {why}")
                self._warn_for_target(f"nothing of {self._spec.target} ran: {why}")
            return 0
        self._fail_run(
            f"{self._spec.target}: nothing ran: pytest found {self.found} case(s), and ran none for backend "
            f"{self._spec.backend.name}.\n"
            "The args leave all out, as -k or -m may, or none is for the backend. Such a target would always pass.\n"
            f"Correct the args, add tests to {', '.join(self._spec.srcs)}, or remove the target."
        )
        return _NO_TESTS_COLLECTED

    def _warn_for_target(self, text: str) -> None:
        # All shards know it; one of them warns.
        if self._protocol.shard[0] == 0:
            self.warn(text)

    def _judge_skipped_run(self) -> int:
        # A reason may have several lines; the log's first line is one.
        reasons = sorted({" ".join(case.message.split()) or "without a reason" for case in self.cases})
        more = [f"and {len(reasons) - _MAX_REASONS} more"] if len(reasons) > _MAX_REASONS else []
        shown = "; ".join(reasons[:_MAX_REASONS] + more)
        self._head.end_line(f": EVERY CASE WAS SKIPPED: {shown}")
        is_decisive = self._protocol.is_whole_target or (self.decides_for_target and not self._protocol.test_filter)
        whose = "" if is_decisive else "the selected part of "
        # All cases of a part may skip. Missing hardware is no reason here, because it has failed each case by name.
        if not (self.is_promised and is_decisive):
            self.warn(f"every case of {whose}{self._spec.target} was skipped: {shown}")
            return 0
        self._fail_run(
            f"{self._spec.target}: promised hardware, and every case was skipped: {shown}.\n"
            "A GPU target that runs nothing on promised hardware tests nothing; a skip mark may ask for something "
            "else.\n"
            "Repair what the reasons name, remove the target, or run it without the promise."
        )
        return FAILED

    def _judge_forgiven_run(self, failed: Sequence[CaseRecord]) -> int:
        # The XML has the failures, so the result must not be a pass.
        print(
            f"{self._spec.target}: {len(failed)} case(s) failed, the first is {failed[0].name}, and the session ended "
            "with exit code 0.\n"
            "A conftest.py or a plugin has set the exit code (session.exitstatus).\n"
            "Mark cases that may fail with xfail, or leave them out; the target fails."
        )
        return FAILED

    def _with_place(self, text: str) -> str:
        return f"{text}\n{self.where}" if self.where else text

    def _fail_run(self, text: str) -> None:
        """Print why the run fails, and add that to the XML."""
        self._head.end_line()
        print(text)
        self._blame_run(text)

    def _blame_run(self, text: str) -> None:
        """Add a failure of the run to the XML, outside its cases."""
        message, text = text.partition("\n")[0], self._with_place(text)
        self.cases.append(CaseRecord(self._spec.target, "failed", when="collect", message=message, text=text))

    def _write_xml(self) -> None:
        path = self._protocol.xml_file
        if path is None:
            return
        properties = self._protocol.properties
        if self.interruption:
            properties += [("interrupted", self.interruption), ("not_run", self.to_come)]
        try:
            write_xml(path, self._spec.target, self.cases, properties)
        except OSError as error:
            raise ReportError(
                f"{path}: the results cannot be written: {error}.\n"
                "The disk is full, or a test has removed the folder.\n"
                "Make room, and run the target again. The results in the log are right."
            ) from error

    def _write(self, path: Path, text: str) -> None:
        try:
            # The text of a test may contain any character.
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            # Only for the log: the verdict does not depend on it.
            print(f"WARNING: {path} cannot be written: {error}")
