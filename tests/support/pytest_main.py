"""Main of the library's own tests: pytest on the files named on the command line, by Bazel's protocol.

Environment read: `XML_OUTPUT_FILE` (where the report goes; none when unset), `TESTBRIDGE_TEST_ONLY`
(`--test_filter`, as an expression for `-k`), `TEST_TMPDIR` (root of the temporary folders).
"""

from __future__ import annotations

import os
import sys

import pytest


def main() -> int:
    """Run pytest and return its exit status; collecting nothing is a failure."""
    options = [
        # The inputs are read-only.
        "-p",
        "no:cacheprovider",
        # Nothing is added to sys.path: what a test imports is what its deps provide.
        "--import-mode=importlib",
        "--color=no",
    ]
    report = os.environ.get("XML_OUTPUT_FILE")
    if report:
        options.append(f"--junit-xml={report}")
    only = os.environ.get("TESTBRIDGE_TEST_ONLY")
    if only:
        options += ["-k", only]
    scratch = os.environ.get("TEST_TMPDIR")
    if scratch:
        options.append(f"--basetemp={scratch}/pytest")
    return int(pytest.main([*options, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
