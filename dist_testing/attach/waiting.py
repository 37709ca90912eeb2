"""Says what a launched process waits for, so that no wait is silent."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence

from dist_testing.attach.rank_info import RankInfo

# When the first line comes, and after how long each further one. Seconds.
_FIRST_S = 5.0
_NEXT_S = 30.0


@contextlib.contextmanager
def saying_who_is_missing(
    rank_info: RankInfo, missing: Callable[[], Sequence[int]], tell: Callable[[str], None], first_s: float = _FIRST_S
) -> Iterator[None]:
    """Tell, while the block runs, which ranks it waits for: after `first_s` seconds, and then every 30 s.

    A thread tells it, because the wait for a store takes place in native code.
    """
    is_over = threading.Event()

    def say() -> None:
        pause_s = first_s
        while not is_over.wait(pause_s):
            pause_s = _NEXT_S
            if ranks := missing():
                tell(_line(rank_info, ranks))

    thread = threading.Thread(target=say, name="dist_testing-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        # Ranks may be forked after this.
        thread.join()


def readable(fds: Sequence[int], limit_s: float) -> list[int]:
    """Wait until one of the descriptors, whatever its number, can be read, and return those that can; none in time."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(None if limit_s == math.inf else math.ceil(1000 * max(0.0, limit_s)))]


def _line(rank_info: RankInfo, ranks: Sequence[int]) -> str:
    variable = rank_info.variable
    which = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    return (
        f"waiting for {which} of {rank_info.size} at {rank_info.address}:{rank_info.port} "
        f"({variable}={os.environ.get(variable, rank_info.rank)} is set; "
        f"not under {rank_info.launcher}? unset {variable})"
    )
