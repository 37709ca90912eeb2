"""`python test_file.py`: run the tests of the file that calls this."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["run_tests"]

# pytest's options whose value is a word of its own, and could look like the name of a test.
_OPTIONS_WITH_VALUE = ("-k", "-m", "-p")
# unittest's options that pytest knows by another name.
_OF_UNITTEST = {"-f": "--exitfirst", "--failfast": "--exitfirst", "--locals": "--showlocals"}


def run_tests(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the main module's tests on the engine, and end the process with pytest's exit code.

    Put it at the end of a test file::

        if __name__ == "__main__":
            dist_testing.run_tests()

    Args:
        arguments: pytest's options, unittest's `-f` and `--locals`, and, as with `unittest.main`, names such as
            `Class.test_method` of what to run; the command line's if None.
    """
    import pytest

    from dist_testing.frontends.pytest import plugin as pytest_plugin

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
    names = [
        argument
        for previous, argument in zip(["", *given], given, strict=False)
        # As a value of `-k` it would be an expression.
        if _names_test(argument) and previous not in _OPTIONS_WITH_VALUE
    ]
    options = [_OF_UNITTEST.get(argument, argument) for argument in given if argument not in names]
    paths = [f"{file}::{name.replace('.', '::')}" for name in names] or [file]
    raise SystemExit(int(pytest.main([*options, *paths], plugins=[pytest_plugin])))


def _names_test(argument: str) -> bool:
    """Whether `argument` begins with something that the main module defines, as "Class" and "Class.test_method" do."""
    return hasattr(sys.modules["__main__"], argument.partition(".")[0])
