"""Runs the tests of a file that is started as a program: `python test_file.py`.

Exit status: N as pytest ends; 2 if `run_tests` was called without a file, as in an interactive session.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from dist_testing.core.ground.errors import UsageError

# pytest's options with a separate value, which could look like the name of a test.
_OPTIONS_WITH_VALUE = ("-k", "-m", "-p")
# unittest's options to pytest's options of the same meaning.
_OF_UNITTEST = {"-f": "--exitfirst", "--failfast": "--exitfirst", "--locals": "--showlocals"}


def run_tests(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the main module's tests by pytest, and end the process with pytest's exit code.

    Put it at the end of a test file::

        if __name__ == "__main__":
            dist_testing.run_tests()

    Args:
        arguments: pytest's options, unittest's options `-f` and `--locals`, and, as for `unittest.main`, names of tests
            such as `Class.test_method`; None (default) for the command line's.

    Raises:
        SystemExit: With pytest's exit code; 2 if the main module has no file.
        UsageError: If the import of a file calls it, as pytest imports the main module's.
    """
    caller = sys._getframe(1)
    if caller.f_code.co_name == "<module>" and caller.f_globals["__name__"] != "__main__":
        raise UsageError(
            f"run_tests() was called by the import of {caller.f_globals['__name__']}.\n"
            "It runs the tests of a file that is started as a program, and pytest imports that file.\n"
            'Call it below `if __name__ == "__main__":`.'
        )
    import pytest

    from dist_testing.core.pytest import plugin as pytest_plugin

    main = sys.modules["__main__"]
    if (file := getattr(main, "__file__", None)) is None:
        print(
            "run_tests() was called, but the main module has no file.\n"
            "It runs the tests of the file that Python was started with.\n"
            "Start Python with the file, or use pytest.",
            file=sys.stderr,
        )
        raise SystemExit(2)
    given = list(sys.argv[1:] if arguments is None else arguments)
    names = [
        argument
        for previous, argument in zip(["", *given], given, strict=False)
        # "Class" and "Class.test_method" begin with a name of the main module. After `-k` it is an expression.
        if hasattr(main, argument.partition(".")[0]) and previous not in _OPTIONS_WITH_VALUE
    ]
    options = [_OF_UNITTEST.get(argument, argument) for argument in given if argument not in names]
    paths = [f"{file}::{name.replace('.', '::')}" for name in names] or [file]
    raise SystemExit(int(pytest.main([*options, *paths], plugins=[pytest_plugin])))
