"""Runs of a suite of pytest: a collection and a trace that show its harness, and chosen tests under both harnesses."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_testing.audit.command import Ran, Runner
from dist_testing.audit.hook.harnesses import HARNESSES, Harness, is_launcher
from dist_testing.audit.hook.record import Plan
from dist_testing.audit.seen import CaseSeen, Collected
from dist_testing.core.ground.errors import UsageError

_OURS = "dist_testing.core.pytest.plugin"
# Keeps the installed plug-in of the library out.
_OWN = ("-p", f"no:{_OURS}")


@dataclass(frozen=True)
class Found:
    """A harness that a suite has."""

    harness: Harness
    tests: list[str]  # the tests that reach it
    sites: list[tuple[str, int]]  # "FILE:LINE" that names it, and for how many tests; the most frequent first


@dataclass(frozen=True)
class Compared:
    """Tests under the suite's own harness, and with the adapters."""

    tests: list[str]
    own: Ran
    ours: Ran

    @property
    def both(self) -> list[str]:
        """The tests that have begun in both runs."""
        return [test for test in self.tests if test in self.own.seen.cases and test in self.ours.seen.cases]

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds of these tests in the suite's own run, and with the adapters."""
        both = self.both
        own_s, ours_s = (sum(run.seen.cases[test].seconds for test in both) for run in (self.own, self.ours))
        return own_s, ours_s

    @property
    def different(self) -> list[str]:
        """The tests with another outcome."""
        return [test for test in self.both if outcome_in(self.own, test) != outcome_in(self.ours, test)]


def outcome_in(run: Ran, test: str) -> str:
    """Return what a test of a run came to: pytest's word, or that it has not run or not ended."""
    case = run.seen.cases.get(test)
    return "not run" if case is None else case.word if case.has_ended else "not ended"


class Suite:
    """A suite: the command that runs it by pytest."""

    def __init__(self, command: Sequence[str], folder: Path, logs: Path, limit_s: float) -> None:
        """`limit_s` limits each run; `folder` is for files of the runs, and `logs` for their output."""
        self._command = " ".join(command)
        self._runner = Runner(command, folder, logs, limit_s)
        self._limit_s = limit_s
        self._cache = folder / "cache"

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
        seen = self._run(tests, collected, _OWN, harnesses=True).seen.cases
        return {test: seen.get(test, CaseSeen(test)) for test in tests}

    def compare(self, tests: list[str], collected: Collected, plugins: Sequence[str]) -> Compared:
        """Run tests with their own harness, then with plug-ins. Raises UsageError if a run has no result."""
        with_ours = [word for name in (_OURS, *plugins) for word in ("-p", name)]
        runs = []
        for words in (_OWN, with_ours):
            ran = self._run(tests, collected, words)
            if all(test not in ran.seen.cases for test in tests):
                raise UsageError(
                    f"{self._command} {' '.join(words)}: none of {len(tests)} tests began (exit status "
                    f"{ran.exit_status}).\n"
                    "pytest ended before: a plug-in of the suite, or the Python of the command has no dist_testing.\n"
                    f"Run this command to see why. Its output is in {ran.log}.{ran.end_of_output}"
                )
            runs.append(ran)
        return Compared(tests, *runs)

    def _run(self, tests: Sequence[str], collected: Collected, words: Sequence[str], *, harnesses: bool = False) -> Ran:
        # The user's own cache knows the tests that failed last. Without a cache, pytest refuses the option.
        cache = ("-o", f"cache_dir={self._cache}") if "cacheprovider" in collected.plugins else ()
        plan = Plan(list(tests), collectives=False, harnesses=harnesses)
        return self._runner.run(plan, self._limit_s, (*cache, *words))


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
