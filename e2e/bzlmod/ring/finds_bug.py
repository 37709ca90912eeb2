"""Runs the conformance kit on the consumer's backend with a planted bug, which a cell must find, and without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
PREFIXES = ("TEST_", "TESTBRIDGE_", "RUNFILES_", "XML_", "BAZEL_", "DIST_TESTING_")


def statuses(bug: str) -> tuple[int, set[str]]:
    """Return the exit code and the statuses of the cells, with RING_BUG set."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    env["PYTHONPATH"] = os.pathsep.join([str(FOLDER.parent), *sys.path])
    env["RING_BUG"] = bug
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "dist_testing.conformance", "--backend=ring", "--import=ring.process_group"]
        command += ["--cells=broadcast/*/odd/*", "--world-sizes=2,3", "--cell-limit=20", f"--out={out}"]
        done = subprocess.run(command, env=env, check=False)
        cells = json.loads((Path(out) / "matrix.json").read_text(encoding="utf-8"))["cells"]
    return done.returncode, {cell["status"] for cell in cells.values()}


def main() -> int:
    """Compare both runs."""
    found, right = statuses("root"), statuses("")
    print(found, right)
    return 0 if found[0] == 1 and "wrong" in found[1] and right == (0, {"works"}) else 1


if __name__ == "__main__":
    sys.exit(main())
