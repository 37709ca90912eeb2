"""Tells how busy a machine was with other work during a bench, and so whether its figures count."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass

# Largest share of the machine's CPU time for other processes. Above it, medians of short cases no longer compare.
LARGEST_SHARE = 0.1

# The unit of /proc/stat.
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Columns of /proc/stat's first line: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
_COLUMNS = 8
_IDLE = (3, 4)


@dataclass(frozen=True, slots=True)
class OtherWork:
    """CPU time of other processes in a period.

    Attributes:
        share: Their part of the CPU time that the machine has; steal of a hypervisor included.
    """

    share: float

    @property
    def is_too_much(self) -> bool:
        """Whether the figures of the period do not count."""
        return self.share > LARGEST_SHARE

    def line(self) -> str:
        """Return a line for the user."""
        if not self.is_too_much:
            return f"Other work on this machine: {self.share:.0%} of its CPU time.\n"
        return (
            f"THESE FIGURES DO NOT COUNT: other work took {self.share:.0%} of the machine's CPU time "
            f"(limit {LARGEST_SHARE:.0%}).\nRepeat the bench on a quiet machine; now only the ratios are of any use.\n"
        )

    def to_json(self) -> Mapping[str, object]:
        """Return the fact and the judgement for a file of figures."""
        return {"other_work": round(self.share, 4), "counts": not self.is_too_much}


@dataclass(frozen=True, slots=True)
class Moment:
    """The CPU time that has passed at one moment, in seconds.

    Attributes:
        total_s: Of all CPUs, idle time included.
        busy_s: Of all CPUs, without idle time.
        own_s: Of this process and its children that have ended.
    """

    total_s: float
    busy_s: float
    own_s: float

    def until(self, later: Moment) -> OtherWork:
        """Return the work of others between this moment and a later one."""
        total_s = later.total_s - self.total_s
        others_s = (later.busy_s - self.busy_s) - (later.own_s - self.own_s)
        # The kernel counts in ticks, so a short quiet period can come out below zero.
        return OtherWork(min(1.0, max(0.0, others_s / total_s)) if total_s > 0 else 0.0)


def now(stat: str | None = None) -> Moment:
    """Return the present moment. All children of the bench that matter must have ended, and been waited for.

    `stat` is the text of /proc/stat; by default that of this machine.

    Raises:
        ValueError: If the text has another form.
    """
    if stat is None:
        with open("/proc/stat", encoding="ascii") as file:
            stat = file.readline()
    first = stat.partition("\n")[0]
    name, _, columns = first.partition(" ")
    if name != "cpu" or len(columns.split()) < _COLUMNS:
        raise ValueError(f"/proc/stat begins with {first!r}; expected cpu and {_COLUMNS} numbers")
    ticks = [int(column) for column in columns.split()[:_COLUMNS]]
    total_s = sum(ticks) / _TICKS_PER_S
    idle_s = sum(ticks[column] for column in _IDLE) / _TICKS_PER_S
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Moment(total_s, total_s - idle_s, sum(one.ru_utime + one.ru_stime for one in used))
