"""Audits a suite under its own harness: `python -m dist_testing.audit -- COMMAND`, or `pytest -p dist_testing.audit`.

    the suite as it is -> cases that start ranks -> each alone -> one run for each fault -> table, JSON, page

The package itself needs no torch and no pytest. `hook` runs inside the suite's processes and needs only Python.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import Any

_OPTION = "--audit"


def pytest_addoption(parser: Any) -> None:
    """Add the option that carries the audit's own options."""
    parser.addoption(
        _OPTION,
        metavar="OPTIONS",
        default="",
        help="options of `python -m dist_testing.audit`, such as --audit='--faults=raise,kill --page=audit.html'",
    )


def pytest_cmdline_main(config: Any) -> int | None:
    """Audit the command line of this pytest instead of running it. Return the exit status of the audit."""
    if "DIST_TESTING_AUDIT" in os.environ:
        return None
    given = config.invocation_params
    # In a process of its own: the conftests of the suite may have imported torch here, or started threads. This plugin
    # does nothing in the pytest of the audit, so the command line stays as it is.
    command = [sys.executable, "-m", "dist_testing.audit", *_words(config.getoption(_OPTION)), "--"]
    command += [sys.executable, "-m", "pytest", *map(str, given.args)]
    process = subprocess.Popen(command, cwd=given.dir)
    while process.returncode is None:
        try:
            process.wait()
        except KeyboardInterrupt:
            # The audit ends the suite before it ends itself, which may take seconds.
            process.terminate()
    return process.returncode


def _words(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        import pytest

        raise pytest.UsageError(
            f"{_OPTION}={options}: {error}.\n"
            "The options are split as by a shell, where a quotation mark begins a text.\n"
            "Close it, or write a backslash before it."
        ) from error
