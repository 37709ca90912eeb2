"""Which ranks torchrun's agent has started, as one of them sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ASK = """
import sys

from dist_testing.attach.absent import ended_ranks
from dist_testing.attach.rank_info import RankInfo

kind, rank = sys.argv[1:]
first = 2 if kind == "second node" else 0
info = RankInfo(
    int(rank), 4, "", 1, is_served=kind != "by hand", attempt="", local_rank=int(rank) - first, local_size=4 - first
)
print(ended_ranks(info, range(4)))
"""
# Plays the agent: starts a process for each rank, and the last one asks.
_AGENT = """
import os, subprocess, sys

ask, kind, *ranks = sys.argv[1:]
others = [
    subprocess.Popen(
        ["true" if rank == "ended" else "sleep", "1000"], env={**os.environ, **({"RANK": rank} if rank != "-" else {})}
    )
    for rank in ranks[:-1]
]
for rank, other in zip(ranks, others):
    if rank == "ended":
        # It stays a zombie.
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
subprocess.run([sys.executable, "-c", ask, kind, ranks[-1]], env={**os.environ, "RANK": ranks[-1]})
for other in others:
    other.kill()
"""


@pytest.mark.parametrize(
    ("kind", "ranks", "variables", "ended"),
    [
        ("agent", ["0", "3", "1"], {}, [2]),
        ("agent", ["1"], {}, [0, 2, 3]),
        ("agent", ["ended", "0", "1"], {}, [2, 3]),
        # A rank before its exec has the agent's variables, so that it is not known who is missing.
        ("agent", ["0", "-", "1"], {}, []),
        # The parent is a wrapper of this rank.
        ("agent", ["0", "1"], {"RANK": "1"}, []),
        # Ranks that were started by hand have no common parent.
        ("by hand", ["0", "1"], {}, []),
        # Those of other nodes cannot be seen.
        ("second node", ["3"], {}, [2]),
    ],
)
def test_ranks_that_the_agent_no_longer_has_have_ended(
    kind: str, ranks: list[str], variables: dict[str, str], ended: list[int], tmp_path: Path
) -> None:
    """If this fails, ranks wait five minutes for one that has ended, or call one ended that still runs."""
    env = {name: value for name, value in os.environ.items() if name != "RANK"}
    asked = subprocess.run(
        [sys.executable, "-c", _AGENT, _ASK, kind, *ranks],
        env={**env, **variables, "PYTHONPATH": ":".join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.strip() == str(ended), asked.stderr
