"""Puts a Bazel into the user cache, or reports which Bazels are available. Only `bazelw` starts it.

Needs only the standard library of Python 3.11 or later.
"""

from __future__ import annotations

import sys
from pathlib import Path

# The package lies beside this folder, because the cluster of tools/rbe uses it, too.
sys.path.append(str(Path(__file__).resolve().parent.parent / "debian_prefix"))

from bazel_bootstrap.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
