"""Finds the files that the build rules name to a test, in Bazel's runfiles."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from dist_testing.core.ground.errors import SpecError


def find_runfiles() -> Callable[[str], str | None] | None:
    """Return what finds a file by its path in the runfiles; None if this process has none."""
    from runfiles import Runfiles

    runfiles = Runfiles.Create()
    # The paths begin with canonical names of repositories. Without a source repository the package looks for that of
    # the caller, and fails if the caller lies in a virtual environment, outside the runfiles.
    return None if runfiles is None else functools.partial(runfiles.Rlocation, source_repo="")


def declared_file(variable: str) -> Path | None:
    """Return the file that a variable of the build rules names; None if it is not set."""
    named = locations(variable)
    if not named:
        return None
    if len(named) > 1:
        raise _changed_variable(variable)
    rlocation = find_runfiles()
    return Path((rlocation and rlocation(named[0])) or named[0])


def locations(variable: str) -> list[str]:
    """Return the paths in the runfiles that a variable holds; an empty list if it is not set."""
    try:
        # Bazel quotes them for a shell.
        return shlex.split(os.environ.get(variable, ""))
    except ValueError:
        raise _changed_variable(variable) from None


def _changed_variable(variable: str) -> SpecError:
    return SpecError(
        f"{variable}={os.environ[variable]!r}: expected the runfiles path of one file, quoted as for a shell.\n"
        "The build rules set it; a program between Bazel and the test has changed it.\n"
        "Run the target with `bazel test`, and leave the variable alone."
    )
