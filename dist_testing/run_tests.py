"""`python test_file.py`: run the tests of the file that calls this."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["run_tests"]


def run_tests(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the main module's tests on the engine, and end the process with pytest's exit code.

    Put it at the end of a test file::

        if __name__ == "__main__":
            dist_testing.run_tests()

    Args:
        arguments: pytest's options and, as with `unittest.main`, names such as `Class.test_method` of what to run; the
            command line's if None.
    """
    import pytest

    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        print(
            "run_tests() was called without a test file: the main module has none.\n"
            "It runs the tests of the file that Python was started with.\n"
            "Start Python with the file, or use pytest.",
            file=sys.stderr,
        )
        raise SystemExit(2)
    given = list(sys.argv[1:] if arguments is None else arguments)
    names = [f"{file}::{argument.replace('.', '::')}" for argument in given if _is_name(argument)]
    options = [argument for argument in given if not _is_name(argument)]
    plugin = ("-p", "dist_testing.doors.pytest_plugin")
    raise SystemExit(int(pytest.main([*plugin, *options, *(names or [file])])))


def _is_name(argument: str) -> bool:
    return all(part.isidentifier() for part in argument.split("."))
