#!/usr/bin/env python3
"""`./bazelw run //tools/nodes`: makes the private copy of Slurm and Open MPI for //tools/nodes:test_launchers.

It prints the path of the copy. Also without Bazel: `python3 tools/nodes/nodes.py`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# Bazel has it on the path.
if not any(Path(entry, "debian_prefix").is_dir() for entry in sys.path):
    sys.path.append(str(Path(__file__).absolute().parents[1] / "debian_prefix"))

from debian_prefix.errors import InstallError
from launcher_prefix.prefix import make_copy


def main() -> int:
    """Make the copy; return the exit status."""
    argparse.ArgumentParser(prog="nodes", description=__doc__).parse_args()
    try:
        print(make_copy())
    except InstallError as error:
        sys.stderr.write(f"nodes: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
