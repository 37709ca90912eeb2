"""`python -m dist_testing.compat FILE [ARGUMENTS]`: run a torch-style test file, unchanged, on this library's classes.

The file runs as `__main__`, as if Python had been started with it. The call at its end (`run_tests()`,
`unittest.main()`) gets the arguments and decides the exit code.
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys
from pathlib import Path

from dist_testing import compat
from dist_testing.core.ground.errors import DistTestingError, UsageError
from dist_testing.core.session.session import started_by

_USAGE = "usage: python -m dist_testing.compat FILE [ARGUMENTS]"


def main() -> None:
    """Run the test file that the command line names; exit with 2 if there is none, or torch's `TestCase` is missing."""
    try:
        if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
            given = f"got {sys.argv[1]!r} in its place" if sys.argv[1:] else "got none"
            raise UsageError(
                f"python -m dist_testing.compat: expected a test file; {given}.\n"
                "The file's own options follow the file.\n"
                f"{_USAGE}"
            )
        path = Path(sys.argv[1])
        if not path.is_file():
            raise UsageError(
                f"python -m dist_testing.compat: {path}: no such file.\n"
                f"The path is relative to {os.getcwd()}.\n"
                f"{_USAGE}"
            )
        compat.install()
    except DistTestingError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    started_by(f"python -m dist_testing.compat {shlex.quote(sys.argv[1])}")
    sys.argv = sys.argv[1:]
    # Before the working directory, which `-m` has added, and which may contain this package.
    sys.path.insert(0, str(path.resolve().parent))
    runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    main()
