"""`python -m dist_testing.compat FILE [ARGUMENTS]`: run a torch-style test file, unchanged, on this library's classes.

The file runs as `__main__`, as if Python had been started with it. The call at its end (`run_tests()`,
`unittest.main()`) gets the arguments and decides the exit code.

Exit status: N as the file ends; 1 if the file calls nothing that runs tests; 2 if there is no such file, or
torch's `TestCase` is missing.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import sys
from pathlib import Path

from dist_testing import compat
from dist_testing.compat.spawned import import_in_children
from dist_testing.core.ground.errors import DistTestingError, UsageError
from dist_testing.core.session.session import started_by

_USAGE = "usage: python -m dist_testing.compat FILE [ARGUMENTS]"
# A file that calls nothing with such a name runs no test: run_tests(), unittest.main(), TextTestRunner(), mp.spawn().
# Not RuntimeError(), remainder() or trunc().
_RUNS_TESTS = re.compile("(?<![a-z])(run(?!time)|main(?!t))|Run(?!time)|Main(?!t)|^spawn$")


def main() -> None:
    """Run the test file that the command line names."""
    if sys.argv[1:2] in (["--help"], ["-h"]):
        print(f"{_USAGE}\n\n{__doc__}", end="")
        return
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
    import_in_children(path)
    runpy.run_path(str(path), run_name="__main__")
    # The call that runs tests ends the process, except in some modes of torch's, and with `main(exit=False)`.
    if not any(_RUNS_TESTS.search(name) for name in _calls(path)):
        raise SystemExit(
            f"python -m dist_testing.compat: NOTHING RAN: {path} calls neither run_tests() nor unittest.main().\n"
            "The file runs as a program, and its tests run only if it says so at its end.\n"
            'Add `if __name__ == "__main__": unittest.main()`, or run '
            f"pytest -p dist_testing.compat.pytest_install {path}"
        )


def _calls(path: Path) -> set[str]:
    """Return the names, without their modules, of what a file calls outside its classes, whose methods are tests."""
    called: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_bytes())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call):
            called.add(getattr(node.func, "attr", getattr(node.func, "id", "")))
        pending += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.ClassDef)]
    return called


if __name__ == "__main__":
    main()
