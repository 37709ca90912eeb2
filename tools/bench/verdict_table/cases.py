"""The table of faults, with the right answer to each."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from types import MappingProxyType

# A value of `Case.rank`.
EVERY_RANK = -1

_SKIP_OR_FAIL = ("failed", "skipped")
# The reason of exit code 77 in torch's skip table, and the reason that the bodies give.
_REASON_77 = "Need at least 2 CUDA devices"
_REASON_OWN = "a reason of its own"
_RAISED = "ValueError: planted"
_STACK = "in _hang"


@dataclass(frozen=True, slots=True)
class Case:
    """One fault, and the right answer to it."""

    row: str  # letter of the group, for `--only`
    key: str  # the case's own name, for `--only`
    title: str  # description of the fault
    fault: str  # name in `bodies.FAULTS`; "" if nothing happens to the ranks
    rank: int = 1  # the rank with the fault, or `EVERY_RANK`
    # State of the other ranks: "done", "all_reduce", "sleep", or "deaf": asleep, and ignoring SIGTERM.
    peers: str = "done"
    world_size: int = 3  # ranks
    is_continuous: bool = False  # whether the ranks are reused for the whole class
    runner_signal: int = 0  # the signal for the runner when all ranks are in their places; 0 for none
    # The right verdicts; empty if the runner does not live long enough to give one.
    verdicts: tuple[str, ...] = ("failed",)
    culprits: tuple[int, ...] = (1,)  # the ranks that the report must name; empty if any will do
    said: str = ""  # pattern of the right description of the fault
    cleanups: bool = False  # whether the ranks register clean-ups, which must run

    @property
    def fault_count(self) -> int:
        """The number of ranks with the fault."""
        return self.world_size if self.rank == EVERY_RANK else 1


def _by_peers(row: str, what: str, fault: str, said: str, *peers: str) -> list[Case]:
    return [Case(row, f"{row}-{where}", f"{what} in rank 1", fault, peers=where, said=said) for where in peers]


def _skip(row: str, key: str, title: str, fault: str, said: str, rank: int, peers: str = "done") -> Case:
    return Case(row, key, title, fault, rank=rank, peers=peers, verdicts=_SKIP_OR_FAIL, culprits=(rank,), said=said)


def _at_all(row: str, key: str, title: str, fault: str, said: str = _STACK, *, is_continuous: bool = False) -> Case:
    return Case(row, key, title, fault, rank=EVERY_RANK, culprits=(0, 1, 2), said=said, is_continuous=is_continuous)


def _runner(row: str, number: signal.Signals, peers: str, said: str) -> Case:
    is_all = peers == "sleep"
    return Case(
        row,
        f"{row}-{number.name}-{peers}",
        f"the runner alone gets {number.name} while {'all ranks sleep' if is_all else 'rank 1 sleeps'}",
        "hang",
        rank=EVERY_RANK if is_all else 1,
        peers=peers,
        runner_signal=number,
        verdicts=(),
        culprits=(),
        said=said,
    )


def _exit_code(code: int, rank: int) -> Case:
    return Case(
        "j",
        f"j-{code}-rank{rank}",
        f"os._exit({code}) in rank {rank} of 2",
        f"_exit({code})",
        rank=rank,
        world_size=2,
        culprits=(rank,),
        said=rf"(code |got ){code}\b",
    )


def _reused(name: str, title: str, fault: str, said: str, peers: str = "done") -> Case:
    verdicts = _SKIP_OR_FAIL if fault == "skip" else ("failed",)
    key = f"continuous-{name}"
    return Case("continuous", key, title, fault, peers=peers, is_continuous=True, verdicts=verdicts, said=said)


_EVERYWHERE = ("all_reduce", "sleep", "done")
_SIGSEGV = r"SIGSEGV|(signal |got -)11\b"
_77 = "sys.exit(77), a code of the skip table, in rank"

_TABLE = (
    *_by_peers("a", "exception", "raise", _RAISED, "all_reduce", "sleep"),
    Case("a", "a-rank0", "exception in rank 0", "raise", rank=0, peers="all_reduce", culprits=(0,), said=_RAISED),
    Case("a'", "a'-300kB", "exception with a text of 300 kB in rank 1", "raise 300 kB", said=_RAISED),
    Case("a'", "a'-3MB", "exception with a text of 3 MB in rank 1", "raise 3 MB", peers="sleep", said=_RAISED),
    *_by_peers("b", "SIGSEGV", "segfault", _SIGSEGV, *_EVERYWHERE),
    Case("b", "b-rank0", "SIGSEGV in rank 0", "segfault", rank=0, culprits=(0,), said=_SIGSEGV),
    *_by_peers("b'", "abort()", "abort", r"SIGABRT|(signal |got -)6\b", "all_reduce"),
    *_by_peers("c", "os._exit(3)", "_exit(3)", r"(code |got )3\b", *_EVERYWHERE),
    Case("c'", "c'", "os._exit(0) in rank 1, before the test has ended", "_exit(0)", peers="sleep", said=r"code 0\b"),
    Case(
        "c''",
        "c''",
        "os._exit(10), the code that torch's class uses itself, in rank 1",
        "_exit(10)",
        peers="sleep",
        said=r"(code |got )10\b",
    ),
    *_by_peers("d", "SIGKILL", "SIGKILL", r"SIGKILL|(signal |got -)9\b", *_EVERYWHERE),
    _skip("e", "e-rank1-all_reduce", f"{_77} 1", "sys.exit(77)", _REASON_77, 1, "all_reduce"),
    _skip("e", "e-rank1-sleep", f"{_77} 1", "sys.exit(77)", _REASON_77, 1, "sleep"),
    _skip("e", "e-rank0-sleep", f"{_77} 0", "sys.exit(77)", _REASON_77, 0, "sleep"),
    _skip("f", "f", "SkipTest in rank 1", "skip", _REASON_OWN, 1),
    _skip("f'", "f'", "SkipTest in rank 0", "skip", _REASON_OWN, 0),
    _at_all("g", "g-all", "all ranks sleep", "hang"),
    Case("g", "g-one", "rank 1 sleeps", "hang", peers="all_reduce", said=_STACK),
    _at_all("g'", "g'", "all ranks hang in C and hold the GIL", "hang with GIL", "in _loop_with_gil"),
    Case("g''", "g''", "rank 1 ignores SIGTERM and sleeps", "hang deaf", said=_STACK),
    Case("g'''", "g'''", "exception in rank 1 while the others ignore SIGTERM", "raise", peers="deaf", said=_RAISED),
    Case("h", "h", "rank 1 starts a process and raises", "start a process, raise", peers="sleep", said=_RAISED),
    _at_all("h'", "h'", "every rank starts a process and hangs", "start a process, hang"),
    _runner("i", signal.SIGTERM, "sleep", "SIGTERM"),
    _runner("i", signal.SIGKILL, "sleep", ""),
    _runner("i", signal.SIGKILL, "all_reduce", ""),
    _runner("i'", signal.SIGINT, "sleep", "KeyboardInterrupt"),
    *(_exit_code(code, rank) for code in (10, 70, 72, 77, 89, 90) for rank in (0, 1)),
    # The thread ends with its rank, so a pass is right; so is a failure that names the thread.
    Case(
        "k",
        "k",
        "rank 1 leaves a thread running that is not a daemon",
        "keep a thread",
        verdicts=("failed", "passed"),
        said="(?i)thread",
    ),
    Case(
        "k'", "k'", "the test calls addCleanup", "", rank=EVERY_RANK, verdicts=("passed",), culprits=(), cleanups=True
    ),
    _reused("raise", "exception in rank 1", "raise", _RAISED, "all_reduce"),
    _reused("kill", "SIGKILL in rank 1", "SIGKILL", r"SIGKILL|(signal |with -)9\b", "all_reduce"),
    _reused("exit", "os._exit(3) in rank 1", "_exit(3)", r"(code |with )3\b"),
    _at_all("continuous", "continuous-hang", "all ranks sleep", "hang", is_continuous=True),
    _reused("skip", "SkipTest in rank 1", "skip", _REASON_OWN),
    _reused("skip-wait", "SkipTest in rank 1", "skip", _REASON_OWN, "all_reduce"),
)

CASES = MappingProxyType({case.key: case for case in _TABLE})
