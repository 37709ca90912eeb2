"""Reads the records of a run: which cases ran, which processes and threads became ranks, and where the fault came."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A case, where neither pytest nor unittest runs the suite.
WHOLE = "(the whole command)"
# The outcomes of parts of a case, and pytest's words for them: the last one that a part has counts.
_OUTCOMES = ("", "skipped", "passed", "failed")
_WORDS = ("", "rerun", "passed", "skipped", "xfailed", "xpassed", "failed", "error")


@dataclass
class CaseSeen:
    """One case of a run."""

    id: str  # its id, as pytest or unittest names it
    outcome: str = ""  # "passed", "failed" or "skipped"; "" if it has no result
    text: str = ""  # what the harness reports about it
    ended_s: float | None = None  # when its result was known, on the clock of `time.monotonic`
    # For each rank the moments that it reached: "init", "collective", "own".
    ranks: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    world_size: int = 0  # the largest world; 0 without ranks
    processes: int = 0  # how many processes began during the case
    tellers: int = 0  # how many processes tell its result: more than one if each rank is a pytest
    backend: str = ""  # the backend of its ranks
    rank_pids: set[int] = field(default_factory=set)  # the processes that became ranks
    # Harness -> calls of the process that runs the case; only if the plan asks for harnesses.
    calls: Counter[str] = field(default_factory=Counter)
    # What pytest says of it: its word, the seconds of setup, call and teardown, the first line of a failure or of the
    # reason of a skip, and whether the teardown has ended.
    word: str = ""
    seconds: float = 0.0
    error: str = ""
    has_ended: bool = False


@dataclass(frozen=True)
class FaultSeen:
    """The fault that came."""

    at_s: float  # when, on the clock of `time.monotonic`
    call: str  # the call in which it came, such as "all_reduce"
    how: str  # for an early return, the function that was left
    hit_harness: bool  # whether the rank was a thread of the process that runs the cases
    hit_all: bool = False  # whether other ranks were threads of the same process


@dataclass
class Seen:
    """What the hook saw in one run."""

    cases: dict[str, CaseSeen] = field(default_factory=dict)  # the cases by id, in the order in which they ran
    has_pytest: bool = False  # whether pytest ran in any process
    processes: int = 0  # how many Python processes had the hook
    fault: FaultSeen | None = None  # the fault, if it came
    collected: Collected | None = None  # what pytest has collected, if the plan asks for harnesses


@dataclass(frozen=True)
class Collected:
    """What the first pytest of a run has collected."""

    root: str  # pytest's root folder
    ini: str  # its file of options; "" without one
    plugins: list[str]  # names of the plug-ins of pytest
    errors: int  # how many files and folders could not be collected
    tests: dict[str, dict[str, tuple[str, int]]]  # test -> harness -> the file and the line that names it


def read_records(path: Path) -> Seen:
    """Return what the records of a run say. A line that a killed process left unfinished is left out."""
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return seen_in(records)


def seen_in(records: list[dict[str, Any]]) -> Seen:
    """Return what records say, in the order of their times."""
    records = sorted(records, key=lambda record: record["t"])
    parents: dict[int, int] = {}
    for record in records:
        # The first parent: later it may be the audit, which adopts orphans.
        parents.setdefault(record["pid"], record["ppid"])
    told = _outermost(records, parents)
    # Without cases of a harness that the hook knows, the command is the only case.
    has_cases = bool(told) or any(record["kind"] == "begin" for record in records)
    seen = Seen()
    begun: set[int] = set()
    hosted: dict[int, set[int]] = defaultdict(set)
    for record in records:
        kind, pid = record["kind"], record["pid"]
        name = record["case"] if has_cases else WHOLE
        seen.processes += kind == "process"
        seen.has_pytest |= kind == "session"
        if kind in ("session", "begin"):
            begun.add(pid)
        if kind == "result" and pid in told.get(record["id"], ()):
            case = _case(seen, record["id"])
            case.tellers = len(told[record["id"]])
            _add_result(case, record)
        elif kind == "collected" and seen.collected is None:
            seen.collected = Collected(**record["found"])
        elif kind in ("rank", "process", "begin", "harness") and name:
            case = _case(seen, name)
            if kind == "rank":
                hosted[pid].add(record["rank"])
                case.ranks[record["rank"]].add(record["moment"])
                case.world_size = max(case.world_size, record["world"])
                case.backend = record["backend"]
                case.rank_pids.add(pid)
            elif kind == "harness" and pid in begun:
                case.calls[record["harness"]] += 1
            elif kind == "process":
                case.processes += 1
        elif kind == "fault":
            seen.fault = FaultSeen(record["t"], record["call"], record["how"], pid in begun, len(hosted[pid]) > 1)
    return seen


def _case(seen: Seen, name: str) -> CaseSeen:
    return seen.cases.setdefault(name, CaseSeen(name))


def _outermost(records: list[dict[str, Any]], parents: dict[int, int]) -> dict[str, set[int]]:
    """Return for each case the processes whose results count: not ranks below a process that has a result itself."""
    told: dict[str, set[int]] = defaultdict(set)
    for record in records:
        if record["kind"] == "result" and _tells(record):
            told[record["id"]].add(record["pid"])
    return {name: {pid for pid in pids if not _above(pid, parents) & pids} for name, pids in told.items()}


def _tells(record: dict[str, Any]) -> bool:
    """Whether a result says how its case ends: no setup that passes, and no outcome of a plug-in, as "rerun"."""
    outcome = record["outcome"]
    return outcome in _OUTCOMES and (outcome != "passed" or record.get("phase", "call") == "call")


def _above(pid: int, parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    while (parent := parents.get(pid)) is not None and parent not in found:
        found.add(parent)
        pid = parent
    return found


def _add_result(case: CaseSeen, record: dict[str, Any]) -> None:
    if (word := record.get("word", "")) in _WORDS:
        case.word = max(case.word, word, key=_WORDS.index)
    case.seconds += record.get("seconds", 0.0)
    case.error = case.error or record.get("error", "")
    case.has_ended |= record.get("phase") == "teardown"
    if not _tells(record):
        return
    # Phases of one case, and the ranks of `torchrun -m pytest`: a failure of any counts, then a pass, then a skip.
    if case.outcome != "failed":
        case.ended_s = record["t"]
    case.outcome = max(case.outcome, record["outcome"], key=_OUTCOMES.index)
    case.text = "\n".join(filter(None, [case.text, record["text"]]))
