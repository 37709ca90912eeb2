"""What would end the runner on the spot ends the run as Ctrl-C does: ranks killed, results kept, failures printed."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

from dist_testing.errors import InterruptedRunError
from dist_testing.outcomes import exit_name

__all__ = ["ExitGuard", "ignore_termination", "raise_on_termination"]

# For exit handlers and for threads that others have started, once the run is over. Seconds.
_EXIT_LIMIT_S = 10.0

_exit = os._exit


def raise_on_termination() -> None:
    """From now on, SIGTERM raises InterruptedRunError in the main thread; unless somebody handles it already."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)


def ignore_termination() -> None:
    """From now on, SIGTERM does nothing: all that is left to do is to say how the run went."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    # Once: a second signal must not break the clean-up that the first began.
    signal.signal(number, signal.SIG_IGN)
    raise InterruptedRunError(f"the runner got {exit_name(-number)}")


class ExitGuard:
    """Sees to it that the runner ends when its run does, and with its verdict, whatever test files are up to.

    Stands for `os._exit`: Bazel before 8 takes exit code 0 for a pass whatever `TEST_PREMATURE_EXIT_FILE` says. In
    child processes it is as ever.

    Attributes:
        cause: Who has called it while the run was not over; "" if nobody has.
    """

    def __init__(self, failed: int) -> None:
        """Guard from now on.

        Args:
            failed: Exit code of a runner that does not end by itself.
        """
        self.cause = ""
        self._failed = failed
        self._verdict: int | None = None
        self._runner = os.getpid()
        os._exit = self._exit_as_runner

    def conclude(self, verdict: int) -> int:
        """The run is over, and its exit code known: what is left to do are exit handlers, and not for long."""
        self._verdict = verdict
        limit = threading.Timer(_EXIT_LIMIT_S, self._end)
        limit.daemon = True
        limit.start()
        return verdict

    def _end(self) -> NoReturn:
        print(
            f"The run is over and its results are written, and the process had not ended {_EXIT_LIMIT_S:.0f} s later.\n"
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
            # It may make a failure of a pass, and not the other way round.
            _exit(self._verdict or status)
        caller = sys._getframe(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        self.cause = f"{place} has called os._exit({status}) in the runner"
        main = threading.main_thread()
        if threading.current_thread() is main:
            raise InterruptedRunError(self.cause)
        # Ends whatever the main thread waits for, and then this thread alone.
        signal.pthread_kill(main.ident or 0, signal.SIGTERM)
        sys.exit(status)
