"""Runs the tests of this folder by plain pytest, with nothing of Bazel in the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PREFIXES = ("TEST_", "TESTBRIDGE_", "RUNFILES_", "XML_", "BAZEL_", "DIST_TESTING_")


def main() -> int:
    """Run them with the backend that conftest.py makes known."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    env["PYTHONPATH"] = os.pathsep.join([str(FOLDER.parent), *sys.path])
    options = ["--dist-backend=ring", "--dist-world-size=3", "--import-mode=importlib", "-p", "no:cacheprovider"]
    plugin = ["-p", "dist_testing.core.pytest.plugin"]
    command = [sys.executable, "-m", "pytest", *plugin, *options, f"--rootdir={FOLDER}", str(FOLDER / "test_ring.py")]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    return 0 if done.returncode == 0 and "2 passed, 1 deselected" in done.stdout else 1


if __name__ == "__main__":
    sys.exit(main())
