"""Audits a suite under its own harness: `python -m dist_testing.audit -- COMMAND`, or `pytest -p dist_testing.audit`.

    the suite as it is -> cases that start ranks -> each alone -> one run for each fault -> table, JSON, page

The package itself needs no torch and no pytest. `hook` runs inside the suite's processes and needs only Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_PLUGIN = "dist_testing.audit"
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
        # A pytest of the audit, which names the plugin in a file of its configuration.
        return None
    import shlex

    given = config.invocation_params
    own = shlex.split(config.getoption(_OPTION))
    # In a process of its own: the conftests of the suite may have imported torch here, or started threads.
    command = [sys.executable, "-m", "dist_testing.audit", *own, "--", sys.executable, "-m", "pytest"]
    return subprocess.run([*command, *suite_arguments([str(word) for word in given.args])], cwd=given.dir).returncode


def suite_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of pytest without those of the audit."""
    left: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == _OPTION:
            next(words, None)
        elif word == "-p":
            plugin = next(words, "")
            left += [] if plugin == _PLUGIN else [word, plugin]
        elif word != f"-p{_PLUGIN}" and not word.startswith(f"{_OPTION}="):
            left.append(word)
    return left
