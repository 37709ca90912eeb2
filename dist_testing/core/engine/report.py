"""Writes the report of a failed case: which rank failed first, and why. The caller prints the text.

The output of the culprit comes last, because people see the end of a log first.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence

from dist_testing.core.engine.crash_text import fatal_block, native_reason, shorten_native_stacks
from dist_testing.core.engine.needs import Lack
from dist_testing.core.engine.report_text import MAX_LINES, Quote, printable
from dist_testing.core.ground.budget import LEAST_S
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.error_text import ranks_by_text, ranks_text, shorten
from dist_testing.core.ground.outcomes import UNKNOWN_EXIT_CODE, Cause, Kind, RankOutcome

_LOG_TAIL_LINES = 40
# Lines of the text of another rank than the culprit; and of a further failure of the culprit, such as of a sub-test.
_OTHER_LINES = 20
_FURTHER_LINES = 100
# If a native stack is longer: lines before it, and a limit.
_BEFORE_NATIVE_LINES = 10
_MOST_LOG_LINES = 120
# Characters of the reason in a headline: it may contain a message of the test, such as the reason of a skip.
_REASON_CHARS = 1000
# If the culprit's section has more lines, its headline is repeated at the end.
_END_LINES = 30
_RULE = "-" * 100
_FRAME = re.compile(r'  File ".*", line \d+ in ')
# What differs between the texts of ranks that fail in the same way: the repr of their worlds, and addresses of objects.
_OF_RANK = re.compile(r"(?<=<World rank )\d+|\b0x[0-9a-f]+")
# Python 3.14 adds the thread's name, which contains the rank if ranks are threads.
_THREAD_ADDRESS = re.compile(r"hread 0x[0-9a-f]+(?: \[rank-\d+\])?")
# Python 3.14 adds the C stack of a crashed thread. Its frames in the interpreter are long and say nothing.
_INTERPRETER_FRAME = re.compile(r'  Binary file "[^"]*/(python[\d.]*|libpython[^/"]*)"')
# Frames below the test: they called it. A helper that the test calls, such as an assertion, is above it.
_BELOW_TEST = re.compile(
    r"[/](_pytest/(python|fixtures)|unittest/case|dist_testing/("
    r"core/(bazel|engine|launch|rank)/\w+|"
    r"core/pytest/(pytest_rank|rank_\w+|in_runner)|"
    r"core/unittest/(continuous|unittest_rank|process|world_case)|"
    r"hang/ledger_\w+|threaded/(in_runner|rank_process|spawn_threads|thread_case)|"
    r"(adopt|attach|functions|programs)/[\w/]+))\.py\""
)
# Between a test and torch's collective, which it sees.
_BETWEEN = re.compile(r'  File ".*[/]dist_testing/hang/call_details\.py"')
# A thread of this library only: no frames are left of it.
_EMPTY_THREAD = re.compile(r"^Thread\b.*\n(?=\n|\Z)", re.MULTILINE)

# A line, or what a rank has written.
_Part = str | Quote


def missing_hardware(name: str, missing: str, *, promised: str) -> str:
    """Return the error text of a case that fails before any rank starts because hardware is missing.

    Either the configuration promises the hardware, `promised`, or only `--dist-on-missing=fail` asks for a failure.
    `missing` is the skip reason.
    """
    if promised:
        what = Cause.PROMISE.value
        cause = f"The configuration of this run promises {promised}"
        other_way = "without the promise"
    else:
        what = "hardware missing"
        cause = "The option --dist-on-missing=fail asks for a failure where hardware is missing"
        other_way = "without the option"
    way_out = missing.way_out if isinstance(missing, Lack) else ""
    return (
        f"{name}: {what}: {missing}\n"
        f"{cause}, so the case fails and is not skipped.\n"
        f"{way_out or f'Run it on a machine that has the hardware, or {other_way}.'}"
    )


def failure_headline(result: CaseResult) -> str:
    """Return one line: the case, its world, and the reason of the failure."""
    seen_s = [outcome.at_s for outcome in result.outcomes if outcome.kind not in (Kind.PASSED, Kind.STOPPED)]
    when = f"; first seen after {min(seen_s) - result.started_s:.1f} s" if seen_s else ""
    return f"{_in_short(result)}{when}."


def _in_short(result: CaseResult) -> str:
    reason = " ".join(shorten(result.verdict.reason, _REASON_CHARS).splitlines())
    return printable(f"{result.case.name} (world of {result.case.world_size}): {reason}")


def failure_report(
    result: CaseResult, *, target: str = "", reproduce: str = "", keep: Callable[[str], str] | None = None
) -> str:
    """Return the report of a failed case, with the culprit last.

    The last lines name the case, the culprit and its error again where a long text stands between. A text of any length
    has its head and tail in the report, and no character in it changes how a terminal shows the rest.

    `target` is the label of the target, "" outside Bazel; `reproduce` a command that runs this case alone, "" for none.
    `keep` keeps the whole report, if this one leaves something out, and returns a sentence that says where.
    """
    parts = _report(result, target, reproduce)
    text = printable("\n".join(part if isinstance(part, str) else part.in_log() for part in parts))
    where = ""
    if keep is not None:
        whole = printable("\n".join(part if isinstance(part, str) else part.whole() for part in parts))
        where = keep(whole) if result.text_files or whole != text else ""
    end = text.rpartition(f"\n{_RULE}\n")[2]
    if where or end.count("\n") > _END_LINES:
        text = "\n".join(filter(None, [text, _RULE, f"In short: {_in_short(result)}.", where]))
    return text


def _report(result: CaseResult, target: str, reproduce: str) -> list[_Part]:
    verdict = result.verdict
    waited = _waited_in_vain(result)
    lines: list[_Part] = [f"{target + ', case ' if target else ''}{failure_headline(result)}"]
    if verdict.cause is Cause.CRASH:
        lines.append(_crash_explanation(result))
    elif verdict.is_proven:
        lines.append(_PROVEN)
    elif verdict.cause is Cause.HANG and result.limit_s < result.case.timeout_s:
        lines.append(_cut_limit(result))
    elif verdict.cause is Cause.HANG and waited:
        lines.append(_NEVER_CAME)
    elif explanation := _EXPLANATIONS.get(verdict.cause):
        lines.append(explanation.format(limit_switch=result.case.limit_switch))
    if verdict.victims:
        because = "other ranks" if verdict.culprit is None else f"rank {verdict.culprit}"
        lines.append(f"Victims: {_victims(result)} (failed because of {because}).")
    passed = [str(outcome.rank) for outcome in result.outcomes if outcome.kind is Kind.PASSED]
    if passed:
        lines.append(f"Rank(s) {', '.join(passed)} ended the test without an error.")
    told = {verdict.culprit, *verdict.failing, *verdict.victims}
    lines += [
        f"Rank {outcome.rank} {outcome.describe()}."
        for outcome in result.outcomes
        if outcome.rank not in told
        and outcome.kind not in (Kind.PASSED, Kind.HUNG)
        and verdict.cause is not Cause.DISAGREEMENT
    ]
    if result.leaked and verdict.cause is not Cause.LEAK:
        lines.append(f"Processes left behind, now killed: {'; '.join(result.leaked)}.")
    if verdict.cause is not Cause.RESOURCE:
        lines += [f"{text}." for text in result.left]
    lines += result.notes
    if reproduce:
        lines.append(f"This case alone: {reproduce}")
    if result.stacks:
        lines += ["", *_stacks(result.stacks)]
    alike = _alike(result)
    for ranks in alike:
        if verdict.culprit not in ranks:
            lines += _section(result, ranks, "also failed", is_culprit=False)
    if verdict.culprit is not None:
        is_awaited = verdict.cause is Cause.HANG and verdict.victims
        part = "is the rank that the others wait for" if is_awaited else "failed first"
        if verdict.cause is Cause.HANG and verdict.is_proven and not verdict.victims:
            part = "is the only rank that waits"
        if others := sorted(alike[0][1:]):
            all_others = 1 < len(others) == result.case.world_size - 1
            part += f", then {'all other ranks' if all_others else ranks_text(others)} in the same way"
        lines += _section(result, [verdict.culprit], part)
    else:
        lines += _logs(result, result.logs)
        if waited:
            first = waited[0]
            text = Quote(tidied(first.text), _OTHER_LINES, ends_only=True)
            lines += [_RULE, f"rank {first.rank} of {result.case.world_size} {first.describe()}", "", text]
    return lines


def _waited_in_vain(result: CaseResult) -> list[RankOutcome]:
    """Return the victims that failed, the first one first, if no rank is to blame, and no stacks show their waits."""
    if result.verdict.culprit is not None or (result.stacks and result.verdict.cause is Cause.HANG):
        return []
    waited = [result.outcomes[rank] for rank in result.verdict.victims]
    return sorted((outcome for outcome in waited if outcome.text), key=lambda outcome: outcome.at_s)


_PROVEN = (
    "It is proven that no rank could ever go on: each has ended its test, or waits for another rank. So the runner did "
    "not wait for the deadline. See docs/hangs.md."
)
_NEVER_CAME = (
    "A limit of the test, of a group or of a store has ended the wait below, and no rank was running any more. Either "
    "a rank ended its test before it did what the others wait for, or no rank would ever have done it."
)
# The likely cause and the way out, where there is no traceback that shows them.
_EXPLANATIONS = {
    Cause.HANG: "The stacks of the running ranks are below. For a longer limit, set {limit_switch}.",
    Cause.INFRASTRUCTURE: (
        "Test code did not cause this: a rank could not be started, its report was destroyed, or its GPU is broken."
    ),
    Cause.DISAGREEMENT: (
        "A skip counts only if every rank skips for the same reason; the other ranks would wait forever for a rank "
        "that skips. Base the decision on a fact that all ranks know."
    ),
    Cause.PROMISE: (
        "The configuration of this run promises that hardware (--config=gpu, or the flag //dist_testing/config:gpus), "
        "so running without it is a failure and not a skip."
    ),
    Cause.CALLS: (
        "All ranks have passed, but on another backend they can wait forever, or mix up data, if the calls of a group "
        "differ. Make the same calls on all members, or run the case without --dist-strict-collectives or "
        "strict_collectives=True. See docs/hangs.md."
    ),
    Cause.LEAK: "A test must end the processes that it starts. They have been killed.",
}


def _cut_limit(result: CaseResult) -> str:
    """Explain a hang of a case that had less time than its own limit, because the target's time is shared."""
    return (
        f"The target's time was {'over' if result.limit_s < LEAST_S else 'short'}: it left this case "
        f"{result.limit_s:.1f} s of its limit of {result.case.timeout_s:g} s, so the test may be good. Fix the cases "
        "before it that hang, or give the target a larger timeout or size, or more shards; a longer limit of the case "
        "does not help. Stacks of the ranks that were running are below."
    )


def _crash_explanation(result: CaseResult) -> str:
    assert result.verdict.culprit is not None
    first = result.outcomes[result.verdict.culprit]
    log = result.logs.get(first.rank, "")
    if said := native_reason(log):
        return f"Native code ended the process: {said}. Its last output is below."
    if first.kind is Kind.EXITED and tidied(first.text):
        return "The test, or code that it calls, ended the process instead of returning. The stack is below."
    if first.exit_code == UNKNOWN_EXIT_CODE:
        text = "A signal, the kernel (out of memory) or an exit call ended it."
    elif first.kind is Kind.EXITED:
        text = "An exit call in native or test code, such as os._exit, ends a process without an exception."
    elif first.signal == signal.SIGKILL:
        text = "The kernel sends SIGKILL when the machine or container lacks memory; else a process sent it."
    elif first.signal == signal.SIGXCPU:
        text = "The kernel sends SIGXCPU to a process that has used the CPU time of its limit (`ulimit -t`)."
    else:
        text = "Native code that faults or aborts ends its process by a signal; else a process sent it."
    return f"{text} Its last output is below." if tidied(log) else text


def _victims(result: CaseResult) -> str:
    by_fate = ranks_by_text({rank: result.outcomes[rank].describe() for rank in result.verdict.victims})
    return "; ".join(
        f"{ranks_text(ranks)}: each {fate}" if len(ranks) > 1 else f"{ranks_text(ranks)} {fate}"
        for fate, ranks in by_fate.items()
    )


def _stacks(stacks: Mapping[int, str]) -> list[str]:
    by_stack = ranks_by_text({rank: tidied(stack) for rank, stack in stacks.items()})
    return [f"{_RULE}\nstacks of rank(s) {', '.join(map(str, ranks))}:\n{text}" for text, ranks in by_stack.items()]


def tidied(text: str) -> str:
    """Make stacks by faulthandler readable.

    Removes thread addresses, so that equal stacks of different ranks are equal texts; the frames below the test (pytest
    or unittest, this library, the runner that the rank was forked from); the library's frame between the test and a
    collective; and the interpreter's C functions.
    """
    lines = []
    is_below_test = is_between = False
    for line in text.splitlines():
        # With its lines of source, in a traceback.
        is_between = _BETWEEN.match(line) is not None or (is_between and line.startswith("    "))
        if is_between:
            continue
        is_frame = _FRAME.match(line) is not None
        is_below_test = is_frame and (is_below_test or _BELOW_TEST.search(line) is not None)
        if not is_below_test and not _INTERPRETER_FRAME.match(line):
            lines.append(_THREAD_ADDRESS.sub("hread", line))
    return _EMPTY_THREAD.sub("", "\n".join([*lines, ""])).strip()


def _logs(result: CaseResult, ranks: Iterable[int]) -> list[_Part]:
    lines: list[_Part] = []
    for rank in ranks:
        if tail := shorten_native_stacks(tidied(result.logs.get(rank, ""))).splitlines():
            # The words before a native stack say why, and the stack says where.
            block = fatal_block(tail)
            count = max(_LOG_TAIL_LINES, min(block + _BEFORE_NATIVE_LINES, _MOST_LOG_LINES) if block else 0)
            first = f", last {count} lines" if len(tail) > count else ""
            lines += [_RULE, f"output of rank {rank}{first}:", Quote("\n".join(tail[-count:]), None)]
    return lines


def _alike(result: CaseResult) -> list[list[int]]:
    """Return the failed ranks, each with those that failed in the same way, in the order of failing."""
    culprit = result.verdict.culprit
    texts = {}
    for rank in [*([] if culprit is None else [culprit]), *result.verdict.failing]:
        outcome = result.outcomes[rank]
        own = [outcome.describe(), outcome.text, result.logs.get(rank, "")]
        own += [failure.describe() for failure in outcome.further]
        texts[rank] = tuple(_OF_RANK.sub("", text) for text in own)
    return list(ranks_by_text(texts).values())


def _section(result: CaseResult, ranks: Sequence[int], part: str, *, is_culprit: bool = True) -> list[_Part]:
    """Return the section about ranks with the same failure."""
    outcome = result.outcomes[ranks[0]]
    each = "each" if len(ranks) > 1 else "it"
    lines = _logs(result, ranks[:1])
    lines += [_RULE, f"{ranks_text(ranks)} of {result.case.world_size} {part}: {each} {outcome.describe()}"]
    if text := tidied(outcome.text):
        lines += ["", Quote(text, MAX_LINES if is_culprit else _OTHER_LINES, ends_only=not is_culprit)]
    for further in outcome.further:
        lines += ["", f"then it {further.describe()}"]
        if is_culprit and (text := tidied(further.text)):
            lines += ["", Quote(text, _FURTHER_LINES)]
    if outcome.more_count:
        lines += ["", f"then it failed {outcome.more_count} more times like this"]
    return lines
