"""The texts of errors that end a world without outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.ground.outcomes import exit_name
from dist_testing.core.process.launcher_messages import RankEnded


def unkillable(records: Sequence[RankRecord], limit_s: float) -> str:
    """Return the text about ranks of a world that SIGKILL has not ended after `limit_s` seconds."""
    ranks = ", ".join(
        f"{record.rank} (pid {record.pid}, {record.kernel_state or 'state unknown'})"
        for record in records
        if not record.has_ended
    )
    return (
        f"Rank(s) {ranks} could not be killed within {limit_s:.0f} s.\n"
        "A process that survives SIGKILL is waiting inside the kernel, most often for a device or a network disk.\n"
        "See what it waits for with `ps -o pid,stat,wchan -p PID`; the machine may have to be restarted."
    )


def no_such_rank(event: RankEnded, size: int) -> str:
    """Return the text about the end of a rank that the world, of `size` ranks, does not have."""
    return (
        f"Rank {event.rank} of world {event.world}, which has {size} ranks, ended by {exit_name(event.exit_code)}.\n"
        "The launcher and the runner disagree about a world, so no outcome of it can be trusted.\n"
        "This is a bug of dist_testing: please report it with this text."
    )
