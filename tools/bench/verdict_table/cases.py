"""The table of faults, with the right answer to each."""

from __future__ import annotations

import signal
from collections.abc import Iterator
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
_EXIT_CODES = (10, 70, 72, 77, 89, 90)


@dataclass(frozen=True, slots=True)
class Case:
    """One fault, and the right answer to it.

    Attributes:
        row: Letter of the group, for `--only`.
        key: The case's own name, for `--only`.
        title: Description of the fault.
        fault: Name in `bodies.FAULTS`; "" if nothing happens to the ranks.
        rank: The rank with the fault, or `EVERY_RANK`.
        peers: State of the other ranks: "done", "all_reduce", "sleep", or "deaf": asleep, and ignoring SIGTERM.
        world_size: Ranks.
        is_continuous: Whether the ranks are reused for the whole class.
        runner_signal: The signal for the runner when all ranks are in their places; 0 for none.
        verdicts: The right verdicts; empty if the runner does not live long enough to give one.
        culprits: The ranks that the report must name; empty if any will do.
        said: Pattern of the right description of the fault.
        cleanups: Whether the ranks register clean-ups, which must run.
    """

    row: str
    key: str
    title: str
    fault: str
    rank: int = 1
    peers: str = "done"
    world_size: int = 3
    is_continuous: bool = False
    runner_signal: int = 0
    verdicts: tuple[str, ...] = ("failed",)
    culprits: tuple[int, ...] = (1,)
    said: str = ""
    cleanups: bool = False

    @property
    def fault_count(self) -> int:
        """The number of ranks with the fault."""
        return self.world_size if self.rank == EVERY_RANK else 1


def _by_peers(row: str, what: str, fault: str, said: str, peers: tuple[str, ...]) -> Iterator[Case]:
    for where in peers:
        yield Case(row, f"{row}-{where}", f"{what} in rank 1", fault, peers=where, said=said)


def _exceptions() -> Iterator[Case]:
    yield from _by_peers("a", "exception", "raise", _RAISED, ("all_reduce", "sleep"))
    yield Case("a", "a-rank0", "exception in rank 0", "raise", rank=0, peers="all_reduce", culprits=(0,), said=_RAISED)
    yield Case("a'", "a'-300kB", "exception with a text of 300 kB in rank 1", "raise 300 kB", said=_RAISED)
    title = "exception with a text of 3 MB in rank 1"
    yield Case("a'", "a'-3MB", title, "raise 3 MB", peers="sleep", said=_RAISED)


def _deaths() -> Iterator[Case]:
    every = ("all_reduce", "sleep", "done")
    segfault = r"SIGSEGV|(signal |got -)11\b"
    code_3 = r"(code |got )3\b"
    yield from _by_peers("b", "SIGSEGV", "segfault", segfault, every)
    yield Case("b", "b-rank0", "SIGSEGV in rank 0", "segfault", rank=0, culprits=(0,), said=segfault)
    yield from _by_peers("b'", "abort()", "abort", r"SIGABRT|(signal |got -)6\b", ("all_reduce",))
    yield from _by_peers("c", "os._exit(3)", "_exit(3)", code_3, every)
    title = "os._exit(0) in rank 1, before the test has ended"
    yield Case("c'", "c'", title, "_exit(0)", peers="sleep", said=r"code 0\b")
    title = "os._exit(10), the code that torch's class uses itself, in rank 1"
    yield Case("c''", "c''", title, "_exit(10)", peers="sleep", said=r"(code |got )10\b")
    yield from _by_peers("d", "SIGKILL", "SIGKILL", r"SIGKILL|(signal |got -)9\b", every)


def _skips() -> Iterator[Case]:
    for rank, peers in ((1, "all_reduce"), (1, "sleep"), (0, "sleep")):
        yield Case(
            "e",
            f"e-rank{rank}-{peers}",
            f"sys.exit(77), a code of the skip table, in rank {rank}",
            "sys.exit(77)",
            rank=rank,
            peers=peers,
            verdicts=_SKIP_OR_FAIL,
            culprits=(rank,),
            said=_REASON_77,
        )
    yield Case("f", "f", "SkipTest in rank 1", "skip", verdicts=_SKIP_OR_FAIL, said=_REASON_OWN)
    yield Case(
        "f'",
        "f'",
        "SkipTest in rank 0",
        "skip",
        rank=0,
        verdicts=_SKIP_OR_FAIL,
        culprits=(0,),
        said=_REASON_OWN,
    )


def _hangs() -> Iterator[Case]:
    every = (0, 1, 2)
    yield Case("g", "g-all", "all ranks sleep", "hang", rank=EVERY_RANK, culprits=every, said=_STACK)
    yield Case("g", "g-one", "rank 1 sleeps", "hang", peers="all_reduce", said=_STACK)
    title = "all ranks hang in C and hold the GIL"
    yield Case("g'", "g'", title, "hang with GIL", rank=EVERY_RANK, culprits=every, said="in _loop_with_gil")
    yield Case("g''", "g''", "rank 1 ignores SIGTERM and sleeps", "hang deaf", said=_STACK)
    title = "exception in rank 1 while the others ignore SIGTERM"
    yield Case("g'''", "g'''", title, "raise", peers="deaf", said=_RAISED)
    title = "rank 1 starts a process and raises"
    yield Case("h", "h", title, "start a process, raise", peers="sleep", said=_RAISED)
    title = "every rank starts a process and hangs"
    yield Case("h'", "h'", title, "start a process, hang", rank=EVERY_RANK, culprits=every, said=_STACK)


def _runner_signals() -> Iterator[Case]:
    for row, number, peers, said in (
        ("i", signal.SIGTERM, "sleep", "SIGTERM"),
        ("i", signal.SIGKILL, "sleep", ""),
        ("i", signal.SIGKILL, "all_reduce", ""),
        ("i'", signal.SIGINT, "sleep", "KeyboardInterrupt"),
    ):
        is_all = peers == "sleep"
        yield Case(
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


def _exit_codes() -> Iterator[Case]:
    for code in _EXIT_CODES:
        for rank in (0, 1):
            yield Case(
                "j",
                f"j-{code}-rank{rank}",
                f"os._exit({code}) in rank {rank} of 2",
                f"_exit({code})",
                rank=rank,
                world_size=2,
                culprits=(rank,),
                said=rf"(code |got ){code}\b",
            )


def _rest() -> Iterator[Case]:
    title = "rank 1 leaves a thread running that is not a daemon"
    # The thread ends with its rank, so a pass is right; so is a failure that names the thread.
    yield Case("k", "k", title, "keep a thread", verdicts=("failed", "passed"), said="(?i)thread")
    title = "the test calls addCleanup"
    yield Case("k'", "k'", title, "", rank=EVERY_RANK, verdicts=("passed",), culprits=(), cleanups=True)


def _continuous() -> Iterator[Case]:
    def case(name: str, title: str, fault: str, said: str, peers: str = "done", *, is_skip: bool = False) -> Case:
        verdicts = _SKIP_OR_FAIL if is_skip else ("failed",)
        key = f"continuous-{name}"
        return Case("continuous", key, title, fault, peers=peers, is_continuous=True, verdicts=verdicts, said=said)

    yield case("raise", "exception in rank 1", "raise", _RAISED, "all_reduce")
    yield case("kill", "SIGKILL in rank 1", "SIGKILL", r"SIGKILL|(signal |with -)9\b", "all_reduce")
    yield case("exit", "os._exit(3) in rank 1", "_exit(3)", r"(code |with )3\b")
    yield Case(
        "continuous",
        "continuous-hang",
        "all ranks sleep",
        "hang",
        rank=EVERY_RANK,
        is_continuous=True,
        culprits=(0, 1, 2),
        said=_STACK,
    )
    yield case("skip", "SkipTest in rank 1", "skip", _REASON_OWN, is_skip=True)
    yield case("skip-wait", "SkipTest in rank 1", "skip", _REASON_OWN, "all_reduce", is_skip=True)


CASES = MappingProxyType(
    {
        case.key: case
        for cases in (
            _exceptions,
            _deaths,
            _skips,
            _hangs,
            _runner_signals,
            _exit_codes,
            _rest,
            _continuous,
        )
        for case in cases()
    }
)
