"""Main program of the library's own tests: runs pytest on the named files, by Bazel's protocol.

Environment read: `XML_OUTPUT_FILE` (path of the report; none when unset), `TESTBRIDGE_TEST_ONLY`
(`--test_filter`, as an expression for `-k`), `TEST_TMPDIR` (root of the temporary folders).
"""

from __future__ import annotations

import os
import sys

import pytest


def main() -> int:
    """Run pytest and return its exit status; collecting no test is a failure."""
    options = [
        # The inputs are read-only.
        "-p",
        "no:cacheprovider",
        # sys.path stays unchanged: a test can import only what its deps provide.
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
