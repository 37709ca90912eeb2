"""Runs of a suite of pytest: a collection and a trace that show its harness, and chosen tests under both harnesses."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_testing.audit.command import Ran, Runner
from dist_testing.audit.hook.harnesses import HARNESSES, Harness, is_launcher
from dist_testing.audit.hook.record import Plan
from dist_testing.audit.seen import CaseSeen, Collected
from dist_testing.core.ground.errors import UsageError

_NOTES = "dist_adopt_notes"
_OURS = "dist_testing.core.pytest.plugin"
# Keeps the installed plug-in of the library out.
_OWN = ("-p", f"no:{_OURS}")
# Outcomes of the phases of a test: the last one that came counts.
_ORDER = ("rerun", "passed", "skipped", "xfailed", "xpassed", "failed", "error")
NOT_ENDED, NOT_RUN = "not ended", "not run"


@dataclass(frozen=True)
class Found:
    """A harness that a suite has."""

    harness: Harness
    tests: list[str]  # the tests that reach it
    sites: list[tuple[str, int]]  # "FILE:LINE" that names it, and for how many tests; the most frequent first


@dataclass(frozen=True)
class Result:
    """What a test of a run came to."""

    outcome: str = NOT_RUN  # as pytest names it; or NOT_ENDED, NOT_RUN
    seconds: float = 0.0  # of setup, call and teardown
    error: str = ""  # the first line of the failure, or of the reason of a skip


@dataclass(frozen=True)
class Compared:
    """Tests under the suite's own harness and with the adapters: test -> result."""

    own: dict[str, Result]
    ours: dict[str, Result]
    own_run: Ran
    our_run: Ran

    @property
    def both(self) -> list[str]:
        """The tests that have begun in both runs."""
        return [test for test, own in self.own.items() if NOT_RUN not in (own.outcome, self.ours[test].outcome)]

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds of these tests in the suite's own run, and with the adapters."""
        both = self.both
        return sum(self.own[test].seconds for test in both), sum(self.ours[test].seconds for test in both)

    @property
    def different(self) -> list[str]:
        """The tests with another outcome."""
        return [test for test in self.both if self.own[test].outcome != self.ours[test].outcome]


class Suite:
    """A suite: the command that runs it by pytest."""

    def __init__(self, command: Sequence[str], folder: Path, logs: Path, limit_s: float) -> None:
        """`limit_s` limits each run; `folder` is for files of the runs, and `logs` for their output."""
        self._command = " ".join(command)
        self._runner = Runner(command, folder, logs, limit_s)
        self._limit_s = limit_s
        self._cache = folder / "cache"
        self._notes = folder / "notes"
        self._notes.mkdir()
        shutil.copy(Path(__file__).with_name("notes.py"), self._notes / f"{_NOTES}.py")

    def collect(self) -> tuple[Collected, Ran]:
        """Return what pytest collects. Raises UsageError if it collects nothing."""
        ran = self._runner.run(Plan(collectives=False, harnesses=True), self._limit_s, ("--collect-only", *_OWN))
        if ran.exit_status is None:
            raise UsageError(
                f"{self._command}: the collection has not ended after {self._limit_s:g} s.\n"
                "A file of the suite waits when it is imported, or the suite is large.\n"
                f"Raise --timeout, or name fewer files.{ran.end_of_output}"
            )
        if (collected := ran.seen.collected) is None or not collected.tests:
            raise UsageError(
                f"{self._command}: pytest collected no test (exit status {ran.exit_status}).\n"
                "The command is no command line of pytest, or its files cannot be imported.\n"
                f"Give the command that runs the suite, such as -- python -m pytest tests/.{ran.end_of_output}"
            )
        if adapters := [name for name in collected.plugins if name.startswith("dist_testing.adopt.")]:
            raise UsageError(
                f"{self._command}: the suite has {', '.join(adapters)} already.\n"
                "Its own harness cannot run beside it.\n"
                "Take it out of the command and of addopts, to compare both."
            )
        return collected, ran

    def find(self, collected: Collected) -> list[Found]:
        """Return the harnesses of the suite, the most frequent first."""
        found = [_found(harness, collected) for harness in HARNESSES if harness.plugin or harness.runs_alone]
        # A rank makes a group in each harness. Only under torchrun does this show that tests are ranks.
        if not any(one.tests for one in found) and is_launcher(self._command):
            found = [_found(harness, collected) for harness in HARNESSES]
        return sorted((one for one in found if one.tests), key=lambda one: -len(one.tests))

    def trace(self, tests: Sequence[str], collected: Collected) -> dict[str, CaseSeen]:
        """Run tests under their own harness, and return what the hook has seen of each."""
        ran, _ = self._run(Plan(collectives=False, harnesses=True), tests, collected, _OWN)
        return {test: ran.seen.cases.get(test, CaseSeen(test)) for test in tests}

    def compare(self, tests: list[str], collected: Collected, plugins: Sequence[str]) -> Compared:
        """Run tests with their own harness, then with plug-ins. Raises UsageError if a run has no result."""
        with_ours = [word for name in (_OURS, *plugins) for word in ("-p", name)]
        runs = []
        for words in (_OWN, with_ours):
            ran, results = self._run(None, tests, collected, words)
            if all(result.outcome == NOT_RUN for result in results.values()):
                raise UsageError(
                    f"{self._command} {' '.join(words)}: none of {len(tests)} tests began (exit status "
                    f"{ran.exit_status}).\n"
                    "pytest ended before: a plug-in of the suite, or the Python of the command has no dist_testing.\n"
                    f"Run this command to see why. Its output is in {ran.log}.{ran.end_of_output}"
                )
            runs.append((ran, results))
        (own_run, own), (our_run, ours) = runs
        return Compared(own, ours, own_run, our_run)

    def _run(
        self, plan: Plan | None, tests: Sequence[str], collected: Collected, words: Sequence[str]
    ) -> tuple[Ran, dict[str, Result]]:
        chosen: dict[str, list[str]] = {}
        for test in tests:
            file = os.path.join(collected.root, test.partition("::")[0])
            chosen.setdefault(os.path.normpath(file), []).append(test)
        (self._notes / "chosen.json").write_text(json.dumps(chosen), encoding="utf-8")
        notes = self._notes / "notes.jsonl"
        notes.write_text("", encoding="utf-8")
        path = os.pathsep.join(filter(None, (str(self._notes), os.environ.get("PYTHONPATH"))))
        # The user's own cache knows the tests that failed last. Without a cache, pytest refuses the option.
        cache = ("-o", f"cache_dir={self._cache}") if "cacheprovider" in collected.plugins else ()
        ran = self._runner.run(plan, self._limit_s, ("-p", _NOTES, *cache, *words), {"PYTHONPATH": path})
        return ran, _results(tests, notes.read_text(encoding="utf-8"))


def choose(tests: Sequence[str], count: int) -> list[str]:
    """Return at most `count` tests from all parts of a list; parameters of one function only if there are too few."""
    seen: Counter[str] = Counter()
    turns = []
    for place, test in enumerate(tests):
        function = test.partition("[")[0]
        turns.append((seen[function], place))
        seen[function] += 1
    turns.sort()
    first = [place for turn, place in turns if turn == 0]
    places = first[:: -(-len(first) // count)] if len(first) > count else [place for _, place in turns]
    return [tests[place] for place in sorted(places[:count])]


def _found(harness: Harness, collected: Collected) -> Found:
    tests = [test for test, uses in collected.tests.items() if harness.name in uses]
    sites: Counter[str] = Counter()
    for test in tests:
        file, line = collected.tests[test][harness.name]
        sites[f"{os.path.relpath(file, collected.root)}:{line}"] += 1
    return Found(harness, tests, sites.most_common())


def _results(tests: Sequence[str], notes: str) -> dict[str, Result]:
    """Return the results of tests, from the lines that the plug-in has written."""
    phases: dict[str, list[tuple[str, str, float, str]]] = {test: [] for test in tests}
    for line in notes.splitlines():
        test, *phase = json.loads(line)
        phases[test].append(tuple(phase))
    return {test: _result(found) for test, found in phases.items()}


def _result(phases: Sequence[tuple[str, str, float, str]]) -> Result:
    if not phases:
        return Result()
    outcome = max((phase[1] for phase in phases[1:]), key=_ORDER.index, default="")
    errors = [text.strip().splitlines()[0] for *_, text in phases if text.strip()]
    has_ended = phases[-1][0] == "teardown"
    return Result(outcome if has_ended else NOT_ENDED, sum(phase[2] for phase in phases), "".join(errors[:1]))
