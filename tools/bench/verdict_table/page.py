"""Writes the table as Markdown."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from importlib import metadata

from verdict_table.bodies import GROUP_LIMIT_FACTOR
from verdict_table.cases import EVERY_RANK, Case
from verdict_table.judge import Finding
from verdict_table.watch import EXIT_LIMIT_S

_PEERS = {
    "all_reduce": "the others in all_reduce",
    "deaf": "the others asleep",
    "done": "the others have passed",
    "sleep": "the others asleep",
}
# Plurals of leftovers.
_PLURALS = {"grandchild": "grandchildren"}


def page(findings: Mapping[Case, Mapping[str, Finding]], *, limit_s: int) -> str:
    """Return the page of a full run with this limit of a test: case -> name of the harness -> its result."""
    torch = metadata.version("torch").partition("+")[0]
    today = datetime.date.today().isoformat()
    names = list(dict.fromkeys(name for of_case in findings.values() for name in of_case))
    right = "; ".join(
        f"{name} in {sum(of_case[name].is_right for of_case in findings.values())} of {len(findings)}" for name in names
    )
    return f"""\
# How do torch's own test classes report a fault, and how does this library?

Every row is a real fault in a real test. The test runs once with torch's class and once with the library's, with the
same body: gloo, a FileStore, and 3 ranks unless the row names another number. All ranks first pass one barrier. Rows of
`MultiProcContinuousTest` are compared with a worker pool (`isolation = "pool"`). Ranks are processes in every row.

Written by `python tools/bench/verdicts.py` with torch {torch}; the runs are of {today}. Do not edit.

- The limit of a test was {limit_s} s here (`DISTRIBUTED_TESTS_DEFAULT_TIMEOUT`, `case_timeout_s`). **By default it is
  300 s**: where a row says "limit", only the limit has ended the test, and a user waits for five minutes. torch's clock
  starts with the ranks, the library's when the ranks are ready. In the continuous class the limit of the group was
  {GROUP_LIMIT_FACTOR * limit_s:.0f} s (default: 120 s), and the class looks for dead ranks every 10 s (default: 75 s).
- Seconds count from the fault to the printed summary; they are rounded, and of one run of each row on a busy
  machine.
- "names": the ranks that the report blames; then whether the report describes the fault ("all"), only the output before
  it does ("log"), or neither does ("-"). A skip needs a reason and no rank.
- "left": processes alive 5 s after the end of the runner, and temporary files that the report does not name. torch's
  class removes its rendezvous file in `tearDown`, as many of torch's own tests do. "Never exits": the runner had not
  ended {EXIT_LIMIT_S:.0f} s after its verdict or its signal; it was killed, with everything that was left.
- Wrong results are **bold**. Results without any error: {right}.

{table(findings)}"""


def table(findings: Mapping[Case, Mapping[str, Finding]]) -> str:
    """Return the table alone; it ends with a newline."""
    names = list(dict.fromkeys(name for of_case in findings.values() for name in of_case))
    header = ["row", "what happens"]
    for name in names:
        header += [f"{name}: verdict", "names", "left"]
    lines = [header, ["---"] * len(header)]
    for case, of_case in findings.items():
        line = [case.row, case.title if case.rank == EVERY_RANK else f"{case.title}; {_PEERS[case.peers]}"]
        for name in names:
            finding = of_case[name]
            for part, text in (
                ("verdict", _verdict(case, finding)),
                ("message", _message(case, finding)),
                ("left", ", ".join(_left(finding)) or "nothing"),
            ):
                line.append(f"**{text}**" if part in finding.wrong else text)
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _verdict(case: Case, finding: Finding) -> str:
    if case.runner_signal:
        return "never exits" if finding.seconds is None else f"runner gone, {_rounded(finding.seconds)}"
    words = [finding.verdict or "none"]
    if finding.seconds is not None:
        words.append(_rounded(finding.seconds) + (" (limit)" if finding.at_limit else ""))
    if not finding.exits:
        words.append("runner never exits")
    if case.is_continuous:
        words.append(f"next test: {finding.next_verdict or 'none'}")
    return ", ".join(words)


def _rounded(seconds: float) -> str:
    if seconds < 0.1:
        return "< 0.1 s"
    return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"


def _message(case: Case, finding: Finding) -> str:
    if case.cleanups:
        return f"clean-ups ran on {finding.cleanups} of {case.world_size} ranks"
    if not case.said or (finding.verdict == "passed" and finding.is_right):
        return ""
    told = {"report": "all", "log": "log", "": "-"}[finding.told]
    if not case.culprits:
        return told
    ranks = ", ".join(map(str, finding.blamed)) or "no rank"
    return f"{ranks}; {told}"


def _left(finding: Finding) -> Iterator[str]:
    for what, number in finding.left.items():
        yield f"{number} {_PLURALS.get(what, f'{what}s')}" if number > 1 else what
    if finding.files:
        yield f"{len(finding.files)} file{'s' if len(finding.files) > 1 else ''}"
