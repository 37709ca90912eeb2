"""Turns SIGTERM and `os._exit` in the runner into an interrupted run: ranks killed, results kept, failures printed."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from dist_testing.core.ground.errors import InterruptedRunError
from dist_testing.core.ground.outcomes import exit_name

# Limit for exit handlers and threads of test files after the run is over. Seconds.
_EXIT_LIMIT_S = 10.0

_exit = os._exit
# Text of the error that SIGTERM has raised; "" without a signal. A later signal is ignored, so this one must count.
_received = ""
# The signals that a thread that forks blocked before.
_held = threading.local()


def raise_on_termination() -> None:
    """Make SIGTERM raise InterruptedRunError, unless the process has a handler, or this is not its main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
        _watch_forks()


def received() -> str:
    """Return the text of the error that SIGTERM has raised, also if it was caught; "" without a signal."""
    return _received


def raise_again() -> None:
    """Raise the error of SIGTERM again: a test has caught it, or native code in an import has cleared it.

    Not for a hook that pytest also calls after an error, such as pytest_collection_finish: it would hide the place.
    """
    if _received:
        raise InterruptedRunError(_received)


@contextlib.contextmanager
def raising_interrupt_again() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of a block in which native code has cleared it.

    torch does so with every error of its import of numpy: it then works without numpy, and Ctrl-C has no effect.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    came = []

    def remember(number: int, frame: FrameType | None) -> NoReturn:
        # pytest names the last frame that is not hidden: what was interrupted.
        __tracebackhide__ = True
        came.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    except KeyboardInterrupt:
        came.clear()
        raise
    finally:
        # Test files may have set one of their own.
        if signal.getsignal(signal.SIGINT) is remember:
            signal.signal(signal.SIGINT, handler)
        if came:
            raise KeyboardInterrupt


@functools.cache
def _watch_forks() -> None:
    """Let SIGTERM end processes that tests fork, which are no runners: also at their begin, and in native code."""
    os.register_at_fork(before=_hold_termination, after_in_parent=_release_termination, after_in_child=_end_by_default)


def _hold_termination() -> None:
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _release_termination() -> None:
    # Python drops the error of a signal that came meanwhile, after it has printed it; `raise_again` raises it.
    with contextlib.suppress(InterruptedRunError):
        signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _end_by_default() -> None:
    global _received
    _received = ""
    if signal.getsignal(signal.SIGTERM) is _interrupt:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_termination()


def ignore_termination() -> None:
    """Ignore SIGTERM from now on: the run only has to write its results."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    # Ignore a second signal, which would break the clean-up that the first began.
    global _received
    signal.signal(number, signal.SIG_IGN)
    _received = f"the runner got {exit_name(-number)}"
    raise InterruptedRunError(_received)


class ExitGuard:
    """Makes the runner end soon after its run, with the verdict as its exit code, whatever test files do.

    It replaces `os._exit`, because Bazel before 8 takes exit code 0 for a pass in spite of `TEST_PREMATURE_EXIT_FILE`.
    Child processes keep the original behaviour.

    Attributes:
        cause: The call of `os._exit` that came before the end of the run; "" if there was none.
    """

    def __init__(self, failed: int) -> None:
        """Replace `os._exit`. `failed` is the exit code if the runner does not end by itself."""
        self.cause = ""
        self._failed = failed
        self._verdict: int | None = None
        self._is_last = False
        self._runner = os.getpid()
        os._exit = self._exit_as_runner
        # Called after all handlers that are registered later.
        atexit.register(self._after_handlers)

    def conclude(self, verdict: int) -> int:
        """Set the exit code of the finished run, and limit the time of exit handlers. Returns the code."""
        self._verdict = verdict
        limit = threading.Timer(_EXIT_LIMIT_S, self._end)
        limit.daemon = True
        limit.start()
        return verdict

    def end_after_handlers(self) -> None:
        """Let the process end right after its threads and exit handlers, and not take its modules apart.

        After an import of torch that takes 0.2 s, and it touches all memory that is shared with a fork. Ranks do not do
        it either. Call it last: the exit code is the verdict's, whatever goes wrong afterwards.
        """
        self._is_last = True

    def _after_handlers(self) -> None:
        if self._is_last and self._verdict is not None and os.getpid() == self._runner:
            sys.stdout.flush()
            sys.stderr.flush()
            _exit(self._verdict)

    def _end(self) -> NoReturn:
        print(
            f"The run is over and its results are written, but the process still ran {_EXIT_LIMIT_S:.0f} s later.\n"
            "An exit handler, or a thread that a test file has started, does not end; the stacks show which.\n"
            "End it in the test, or make the thread a daemon.",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        _exit(self._verdict or self._failed)

    def _exit_as_runner(self, status: int) -> NoReturn:
        if os.getpid() != self._runner:
            _exit(status)
        if self._verdict is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            # An exit handler may turn a pass into a failure, but not a failure into a pass.
            _exit(self._verdict or status)
        caller = sys._getframe(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        self.cause = f"{place} has called os._exit({status}) in the runner"
        main = threading.main_thread()
        if threading.current_thread() is main:
            raise InterruptedRunError(self.cause)
        # Interrupts the main thread; then only this thread ends.
        signal.pthread_kill(main.ident or 0, signal.SIGTERM)
        sys.exit(status)
