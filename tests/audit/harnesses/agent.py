"""A launcher in the style of torchrun: `agent.py N script.py ...` or `agent.py N -m module ...` starts N ranks.

It ends all ranks when one fails, says which one and how, and exits with 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time


def main() -> int:
    """Start the ranks, and return 0 if all of them exit with 0."""
    size = int(sys.argv[1])
    path = os.path.join(tempfile.mkdtemp(prefix="meet"), "f")
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv[2:]],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "MEET": path},
        )
        for rank in range(size)
    ]
    while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
        time.sleep(0.02)
    failed = [(number, rank.returncode) for number, rank in enumerate(ranks) if rank.returncode]
    for rank in ranks:
        rank.kill()
        rank.wait()
    for number, code in failed:
        print(f"agent: rank {number} ended with {code}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
