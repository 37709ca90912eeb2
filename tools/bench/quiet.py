"""Tells how busy a machine was with other work during a bench, and so whether its figures count."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

# Largest share of the machine's CPU time for other processes. Above it, medians of short cases no longer compare.
LARGEST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Moment:
    """The CPU time that has passed at one moment, in seconds.

    Attributes:
        total_s: Of all CPUs, idle time included.
        busy_s: Of all CPUs, without idle time; with that of a hypervisor.
        own_s: Of this process and its children that have ended.
    """

    total_s: float
    busy_s: float
    own_s: float

    def others_until(self, later: Moment) -> float:
        """Return the share of the CPU time that other processes have used between this moment and a later one."""
        others_s = (later.busy_s - self.busy_s) - (later.own_s - self.own_s)
        # The kernel counts in ticks, so a short quiet period can come out below zero.
        return min(1.0, max(0.0, others_s / (later.total_s - self.total_s)))


def now() -> Moment:
    """Return the present moment. All children of the bench that matter must have ended, and been waited for."""
    times = psutil.cpu_times()
    # Guests are in the user's time.
    total_s = sum(times) - times.guest - times.guest_nice
    return Moment(total_s, total_s - times.idle - times.iowait, sum(psutil.Process().cpu_times()[:4]))


def line(share: float) -> str:
    """Return a line for the user about the share of other work."""
    if share <= LARGEST_SHARE:
        return f"Other work on this machine: {share:.0%} of its CPU time.\n"
    return (
        f"THESE FIGURES DO NOT COUNT: other work took {share:.0%} of the machine's CPU time "
        f"(limit {LARGEST_SHARE:.0%}).\nRepeat the bench on a quiet machine; now only the ratios are of any use.\n"
    )
