"""Which calls of ranks differ, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from dist_testing.core.engine.hooks import CaseStart
from dist_testing.core.ground.outcomes import Cause, Kind, RankOutcome, Status, Verdict
from dist_testing.hang.calls import CallComparison, differences, first_difference, got_more
from dist_testing.hang.ledger import CALLS, Call, CallsMade
from dist_testing.hang.recorder import recorded_calls
from tests.support.results import entry, result_of

_ALL = (0, 1, 2)
_LIMIT_MS = 270_000
_LIMITS = frozenset({_LIMIT_MS})
_REDUCE, _BARRIER = "gloo:all_reduce Float [[3]]", "gloo:barrier - []"


def _call(number: int, text: str, *, group: str = "0", generation: int = 0, limit_ms: int = _LIMIT_MS) -> Call:
    name, dtypes, sizes = text.split(" ", 2)
    backend, _, operation = name.partition(":")
    dtypes = "" if dtypes == "-" else dtypes.replace(",", " ")
    return Call(group, generation, number, backend, operation, sizes, dtypes, is_done=True, limit_ms=limit_ms)


def _made(*texts: str, ranks: tuple[int, ...] = _ALL, first: int = 1, limit_ms: int = _LIMIT_MS) -> CallsMade:
    """The calls of a rank on one group; without `ranks` the group is gone."""
    calls = tuple(_call(number, text, limit_ms=limit_ms) for number, text in enumerate(texts, first))
    return CallsMade({"0": ranks} if ranks else {}, calls, is_complete=True)


@pytest.mark.parametrize(
    "other",
    [
        _made(_REDUCE, _BARRIER),
        _made("gloo:all_reduce Float [[1, 3]]", _BARRIER),
        # The text was cut off, so that nothing is known.
        _made("gloo:all_reduce Float [[3], [1", _BARRIER),
        # The recorder has dropped the first call, or all.
        replace(_made(_BARRIER, first=2), is_complete=False),
        replace(_made(), is_complete=False),
        CallsMade({}, (), is_complete=True),
        # A test of limits calls on some ranks only.
        _made(_BARRIER, limit_ms=1000),
    ],
)
def test_calls_that_agree(other: CallsMade) -> None:
    """A warning about a correct test would be noise."""
    told = {0: _made(_REDUCE, _BARRIER), 1: _made(_REDUCE, _BARRIER), 2: other}
    assert differences(told, _LIMITS) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (_made(_BARRIER, _BARRIER), "rank 2 calls barrier, ranks 0, 1 call all_reduce"),
        (
            _made("gloo:all_reduce Double [[3]]", _BARRIER),
            "rank 2 calls all_reduce of [[3]] Double, ranks 0, 1 call all_reduce of [[3]] Float",
        ),
        (
            _made("gloo:all_reduce - []", _BARRIER),
            "rank 2 calls all_reduce of [], ranks 0, 1 call all_reduce of [[3]] Float",
        ),
        (
            _made("gloo:all_reduce Float,Double [[3], [4]]", _BARRIER),
            "rank 2 calls all_reduce of [[3], [4]] Float Double, ranks 0, 1 call all_reduce of [[3]] Float",
        ),
    ],
)
def test_calls_that_differ(other: CallsMade, said: str) -> None:
    """The reader needs both sides, and the number of the call."""
    told = {0: _made(_REDUCE, _BARRIER), 1: _made(_REDUCE, _BARRIER), 2: other}
    text = f"the ranks disagree about call #1 of the default group: {said}"
    assert differences(told, _LIMITS) == [text]
    assert first_difference(told, _LIMITS, []) == (text, (2,))


def _called(*calls: str) -> CallsMade:
    """Calls such as "all_reduce 9 with SUM": with the line of the test, and with details."""
    made = []
    for number, text in enumerate(calls, 1):
        operation, line, *details = text.split()
        call = _call(number, f"gloo:{operation} Float [[3]]")
        made.append(replace(call, begun_ns=number, place=f"test_x.py:{line}", details=" ".join(details)))
    return CallsMade({"0": _ALL}, tuple(made), is_complete=True)


_OTHERS = ("all_reduce 3 with SUM", "all_reduce 4 with SUM", "broadcast 5 from rank 0")


def _lines(*lines: int) -> tuple[str, ...]:
    """Calls that only their lines tell apart: they belong together, and mix up the data."""
    return tuple(f"all_reduce {line}" for line in lines)


def _apart(number: int, own: str, theirs: str) -> str:
    """What is said of rank 2, whose call differs from that of two others."""
    return f"the ranks disagree about call #{number} of the default group: rank 2 calls {own}, ranks 0, 1 call {theirs}"


def _at(line: int) -> str:
    return f"all_reduce of [[3]] Float (test_x.py:{line})"


_FEWER = "ranks 0, 1 made 2 calls, rank 2 made 1 call of the default group"
_SUM = "all_reduce of [[3]] Float with SUM (test_x.py:4)"
_ROOT = "broadcast of [[3]] Float from rank {} (test_x.py:5)"


@pytest.mark.parametrize(
    ("theirs", "own", "passed", "said"),
    [
        pytest.param(
            _OTHERS,
            ("all_reduce 3 with SUM", "all_reduce 4 with MAX"),
            [],
            _apart(2, "all_reduce of [[3]] Float with MAX (test_x.py:4)", _SUM),
            id="reduction",
        ),
        pytest.param(
            _OTHERS,
            (*_OTHERS[:2], "broadcast 5 from rank 1"),
            [],
            _apart(3, _ROOT.format(1), _ROOT.format(0)),
            id="root",
        ),
        pytest.param(
            _OTHERS,
            _OTHERS[1:],
            [],
            _apart(2, "broadcast (test_x.py:5)", "all_reduce (test_x.py:4)"),
            id="one is left out, and the next one is of another kind",
        ),
        pytest.param(_OTHERS, ("all_reduce 9 with SUM",), [], None, id="another line, and no later call"),
        pytest.param(_OTHERS, ("all_reduce 2 with SUM", *_OTHERS[1:]), [], None, id="a branch with the same call"),
        pytest.param(_lines(3, 4, 5), _lines(4, 5), [], _apart(1, _at(4), _at(3)), id="one too few"),
        pytest.param(_lines(4, 5), _lines(3, 4, 5), [], _apart(1, _at(3), _at(4)), id="one too many"),
        pytest.param(
            _lines(2, 9, 3, 4, 5),
            _lines(2, 9, 4, 5),
            [],
            _apart(3, _at(4), _at(3)),
            id="one too few, later",
        ),
        pytest.param(_lines(3, 4, 5), _lines(6, 7, 8), [], None, id="a branch of its own"),
        pytest.param(_lines(3, 4, 5), _lines(4, 6, 7), [], None, id="only one line in common"),
        pytest.param(_lines(3, 3), _lines(3), [2], _FEWER, id="fewer calls of a rank that has passed"),
        pytest.param(_lines(3, 3), _lines(3), [0, 1], None, id="fewer calls of a rank that has failed"),
    ],
)
def test_first_difference_of_a_failure(
    theirs: tuple[str, ...], own: tuple[str, ...], passed: list[int], said: str | None
) -> None:
    """If this fails, a report blames a peer, or a rank that is right."""
    told = {0: _called(*theirs), 1: _called(*theirs), 2: _called(*own)}
    assert first_difference(told, _LIMITS, passed) == (None if said is None else (said, (2,)))


@pytest.mark.parametrize(
    "called",
    [[("barrier 3",), ("all_reduce 3",)], [_lines(3, 3), _lines(3)], [_lines(3, 3), _lines(3), _lines(3)]],
    ids=["two calls", "one call less", "one call more than two others"],
)
def test_who_is_right_is_not_always_known(called: list[tuple[str, ...]]) -> None:
    """If this fails, one of two ranks is blamed, or one of two that made fewer calls than a third."""
    found = first_difference({rank: _called(*calls) for rank, calls in enumerate(called)}, _LIMITS, [1, 2])
    assert found is not None
    assert found[1] == tuple(range(len(called)))


def test_ranks_that_pass_with_fewer_calls() -> None:
    """With strict collectives a call less is a difference, unless the rank need not be a member of the group."""
    fewer = [_FEWER]
    member, gone = _made(_REDUCE, _BARRIER), _made(_REDUCE, _BARRIER, ranks=())
    assert differences({0: member, 1: member, 2: _made(_REDUCE)}, _LIMITS) == fewer
    # The members of a group that is gone are not known.
    one = _made(_REDUCE, ranks=())
    assert differences({0: gone, 1: gone, 2: CallsMade({}, (), is_complete=True)}, _LIMITS) == []
    assert differences({0: gone, 1: gone, 2: one}, _LIMITS) == fewer
    assert differences({0: gone, 1: gone, 2: replace(one, is_complete=False)}, _LIMITS) == []
    # Rank 2 has another group of that name.
    told = {0: _made(_REDUCE, ranks=(0, 1)), 1: _made(_REDUCE, ranks=(0, 1)), 2: _made(ranks=(2,))}
    assert differences(told, _LIMITS) == []


def test_group_that_was_made_again() -> None:
    """Calls of the old group and of the new one have the same numbers, and are not compared with each other."""
    again = (_call(1, _REDUCE), _call(1, _BARRIER, generation=1))
    made = CallsMade({"0": _ALL}, again, is_complete=True)
    assert differences({0: made, 1: made, 2: made}, _LIMITS) == []
    other = replace(made, calls=(_call(1, _BARRIER), _call(1, _BARRIER, generation=1)))
    assert differences({0: made, 1: made, 2: other}, _LIMITS) == [
        "the ranks disagree about call #1 of the default group: rank 2 calls barrier, ranks 0, 1 call all_reduce"
    ]


def test_only_the_first_differences() -> None:
    """One call too few shifts all that follow; hundreds of groups must not fill the log."""
    groups: dict[str, tuple[int, ...]] = {str(number): _ALL for number in range(9)}
    told = {
        rank: CallsMade(groups, tuple(_call(1, _REDUCE, group=name) for name in list(groups)[: 9 * rank]), True)
        for rank in range(2)
    }
    assert len(differences(told, _LIMITS)) == 3


@pytest.mark.parametrize(
    ("entries", "capacity", "since_ns", "numbers", "is_complete"),
    [
        pytest.param([], 2, 0, [], True, id="no call"),
        pytest.param([entry(2), entry(1)], 3, 0, [1, 2], True, id="in the order in which they began"),
        pytest.param([entry(7), entry(8)], 2, 0, [7, 8], False, id="the recorder has dropped some"),
        pytest.param([entry(7), entry(8)], 2, 8, [8], True, id="calls of an earlier case in a worker pool"),
        pytest.param([entry(1, is_p2p=True), entry(2)], 3, 0, [2], True, id="a send"),
        pytest.param([], 0, 0, None, False, id="the recorder is off"),
    ],
)
def test_calls_of_a_record(
    monkeypatch: pytest.MonkeyPatch,
    entries: list[object],
    capacity: int,
    since_ns: int,
    numbers: list[int] | None,
    is_complete: bool,
) -> None:
    """If this fails, calls that agree are a failure, or calls that differ are none."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", str(capacity))
    dump = json.dumps({"entries": entries})
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace_json", lambda **_: dump, raising=False)
    calls, found = recorded_calls(since_ns=since_ns)
    assert (None if calls is None else [call.number for call in calls], found) == (numbers, is_complete)


def test_a_crash_of_gloo_names_the_calls_of_the_others() -> None:
    """If this fails, the headline blames the rank that died, which may have made the right call."""
    text = "enforce fail at pair.cc:456. 500 vs 4. Received data size doesn't match expected size. Is there a mismatch?"
    # In the order in which they answer.
    others = {3: _made(), 2: _made(_REDUCE), 1: _made(_BARRIER, _REDUCE)}
    found = got_more(others, 0, text)
    assert found is not None
    assert found[0].startswith("rank 0 got more data than its call of gloo expects; the last call of ranks 1, 2 is ")
    assert found[0].endswith("all_reduce of [[3]] Float")
    assert found[1] == (0, 1, 2)
    assert got_more(others, 0, "Segmentation fault") is None


_GOT_MORE = "gloo: Received data size doesn't match expected size"
_SAME, _OTHER = _called("all_reduce 3 with SUM"), _called("all_reduce 3 with MAX")


@pytest.mark.parametrize(
    ("cause", "own", "log", "said"),
    [
        pytest.param(Cause.NONE, _SAME, "", None, id="a pass"),
        pytest.param(Cause.NONE, _OTHER, "", "the ranks disagree about call #1", id="a pass with another call"),
        pytest.param(Cause.FAILURE, _SAME, _GOT_MORE, None, id="a failure with the same calls"),
        pytest.param(Cause.FAILURE, _OTHER, "", "the ranks disagree about call #1", id="a failure with another call"),
        pytest.param(Cause.INFRASTRUCTURE, _OTHER, "", None, id="no failure of the test"),
        pytest.param(Cause.CRASH, _SAME, "Segmentation fault", None, id="a crash"),
        pytest.param(Cause.CRASH, _SAME, _GOT_MORE, "rank 2 got more data", id="a crash of gloo"),
        pytest.param(
            Cause.CRASH, _OTHER, _GOT_MORE, "the ranks disagree about call #1", id="a crash after another call"
        ),
    ],
)
def test_when_calls_explain_a_result(tmp_path: Path, cause: Cause, own: CallsMade, log: str, said: str | None) -> None:
    """If this fails, a report blames calls for what they have not done, or is silent about them."""
    file = tmp_path / "log"
    file.write_text(log, encoding="utf-8")
    world = mock.Mock(group_limit_s=_LIMIT_MS / 1000, records=[], stacks_fds={}, logs=[file] * 3)
    has_passed = cause is Cause.NONE
    kind = Kind.PASSED if has_passed else Kind.RAISED
    found = Verdict(Status.PASSED) if has_passed else Verdict(Status.FAILED, cause, "it ended so", culprit=2)
    result = result_of([RankOutcome(rank, kind) for rank in range(3)], judged=found)
    comparison = CallComparison(world)
    comparison.begin_case(CaseStart(result.case, 0.0, keeps_ranks=False))
    for rank, made in enumerate((_SAME, _SAME, own)):
        comparison.on_message(rank, CALLS.to_wire(made).decode())
    told = comparison.explain(result).verdict
    if said is None:
        assert told == found
        return
    assert told.reason.startswith(said)
    assert told.cause is (Cause.CALLS if has_passed else cause)
    assert told.reason.endswith("" if has_passed else "; then it ended so")
