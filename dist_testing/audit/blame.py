"""Reads which ranks a failure's text names."""

from __future__ import annotations

import re

# "rank 1", "[rank1]", "rank: 1", "local_rank: 1", "Rank=1"; "Process 1" and "Thread 1", as torch writes.
# `rank == 1` and `rank = 1` are source code and arguments, which pytest shows around a failure; they blame no rank.
_RANK = re.compile(
    r"(?:rank(?:\s?[:#]\s?|=|\s)?\[?|(?<![A-Za-z])(?:process|thread)\s(?:#|rank\s)?)(\d{1,5})(?![\dx]|\.\d|-bit)",
    re.IGNORECASE,
)
_RANKS = re.compile(r"ranks\s(\d{1,5}(?:(?:,\s?|\sand\s)\d{1,5})+)", re.IGNORECASE)
_TERMINAL = re.compile("\x1b\\[[0-9;:?]*[A-Za-z]")


def ranks_named(text: str, world_size: int) -> tuple[int, ...]:
    """Return the ranks of a world that a report names, in order. Larger numbers are pids, ports and the like."""
    plain = _TERMINAL.sub("", text)
    found = {int(match[1]) for match in _RANK.finditer(plain)}
    for match in _RANKS.finditer(plain):
        found.update(map(int, re.findall(r"\d+", match[1])))
    return tuple(sorted(rank for rank in found if rank < world_size))
