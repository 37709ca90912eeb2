"""The option `--dist-jobs`: its values, its errors, and how many worlds the machine can run side by side."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dist_testing.core.engine.rank_env import cpu_count
from dist_testing.core.ground.add_ons import call_parts
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.procfs import free_bytes
from dist_testing.core.ground.spec import Spec, number_in
from dist_testing.core.pytest.options import JOBS_OPTION
from dist_testing.core.session.existing_world import ExistingRank

MAX_JOBS = 64
# The number of jobs that stands for "as many as the machine has room for".
AUTO = 0
# Memory of a fork server and of a rank, beside what they share with the runner. Bytes.
_JOB_BYTES = 60 << 20
_RANK_BYTES = 20 << 20
_FRESH_RANK_BYTES = 170 << 20
# Options that cannot be combined: name in the namespace, spelling, cause, way out.
_BESIDE = "Both run tests side by side, in processes of their own."
_WITHOUT_N = f"Leave -n out: {JOBS_OPTION} imports torch once, and reports in the order of the collection."
_TERMINAL = "One terminal serves one debugger."
_REFUSED = (
    ("numprocesses", "-n (pytest-xdist)", _BESIDE, _WITHOUT_N),
    ("tx", "--tx (pytest-xdist)", _BESIDE, "Leave --tx out."),
    ("dist_debug_rank", "--dist-debug-rank", _TERMINAL, f"Leave {JOBS_OPTION} out."),
    ("usepdb", "--pdb", _TERMINAL, f"Leave {JOBS_OPTION} out."),
    ("trace", "--trace", _TERMINAL, f"Leave {JOBS_OPTION} out."),
)


def read_jobs(text: str, config: pytest.Config, rank_info: ExistingRank | None) -> int:
    """Return how many worlds the user wants side by side, from the option's text: from 1, or `AUTO`."""
    jobs = AUTO if text == "auto" else number_in(text)
    if jobs is None or jobs > MAX_JOBS or text == "0":
        raise UsageError(
            f"{JOBS_OPTION}={text}: expected a number from 1 to {MAX_JOBS}, or auto.\n"
            "It is the number of worlds that run side by side; 1 runs them one after the other.\n"
            f"Write {JOBS_OPTION}=4, for example, or leave it out."
        )
    if jobs == 1:
        return jobs
    if rank_info is not None:
        raise UsageError(
            f"{JOBS_OPTION}={text} in a process that is rank {rank_info.rank} of {rank_info.size} (RANK is set).\n"
            "torchrun has started the ranks of one world, and no other world can run beside it.\n"
            f"Leave {JOBS_OPTION} out, or run pytest without torchrun: the library starts the ranks."
        )
    for name, spelling, cause, way_out in _REFUSED:
        # An option that is not given is None, False, 0 or an empty list. A worker of xdist has its controller's.
        if getattr(config.option, name, None) and not hasattr(config, "workerinput"):
            raise UsageError(f"{JOBS_OPTION}={text} with {spelling}.\n{cause}\n{way_out}")
    return jobs


def affordable_jobs(asked: int, spec: Spec, sizes: Sequence[int], *, fresh: bool) -> tuple[int, str]:
    """Return how many worlds run side by side, and why they are fewer than the user asked for; "" if they are not.

    `asked` is what the user wants: from 1, or `AUTO`. `sizes`, not empty, are the world sizes of the cases that can run
    side by side. With `fresh`, ranks are fresh interpreters.
    """
    largest = max(sizes)
    limits = [(asked or min(MAX_JOBS, max(1, cpu_count() // largest)), "")]
    each = _JOB_BYTES + largest * (_FRESH_RANK_BYTES if fresh else _RANK_BYTES)
    for _, room in call_parts("room", spec, largest):
        if room is not None:
            worlds, why, memory = room
            limits.append((max(1, worlds), why))
            each += memory
    free = free_bytes()
    why = f"{free >> 20} MiB of memory are free, and a world of {largest} ranks takes {each >> 20}"
    limits.append((max(1, free // each), why))
    jobs, why = min(limits, key=lambda limit: limit[0])
    return min(jobs, len(sizes)), why if asked else ""
