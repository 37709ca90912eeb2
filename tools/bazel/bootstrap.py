"""Puts a Bazel into the user cache, or reports what could be had. Started by `bazelw` only.

Needs nothing but the standard library of Python 3.10 or later.
"""

from __future__ import annotations

import sys

from bazel_bootstrap.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
