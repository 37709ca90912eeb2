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
    # Interpreters that a test starts find what the test finds; newer rules_python changes sys.path of this one alone.
    mine = [path for path in sys.path if path and not path.startswith(sys.base_prefix)]
    os.environ["PYTHONPATH"] = os.pathsep.join(mine)
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
