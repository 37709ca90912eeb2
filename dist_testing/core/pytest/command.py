"""Writes the command that runs one case of a session alone, as the session has run it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

import pytest

from dist_testing.core.pytest.options import EVENTS_OPTION, JOBS_OPTION, arguments_of_part
from dist_testing.core.pytest.rank_items import RankItem

# Options of pytest, its plugins and this library that choose tests, or say how many run or what is printed. All others
# can decide about a case.
_FLAGS = (
    *("-x", "--exitfirst", "--lf", "--last-failed", "--ff", "--failed-first", "--nf", "--new-first"),
    *("--sw", "--stepwise", "--stepwise-skip", "--stepwise-reset", "-q", "--quiet", "-v", "--verbose"),
    *("--no-header", "--no-summary", "-l", "--showlocals", "--setup-show"),
)
_WITH_VALUE = (
    *("-k", "-m", "--maxfail", "--deselect", "--ignore", "--ignore-glob", "-n", "--numprocesses", "--dist"),
    *("-r", "--tb", "--color", "--durations", "--durations-min", "--junitxml", "--junit-xml", "--verbosity"),
    *(EVENTS_OPTION, JOBS_OPTION),
)
# Variables that configure pytest, or torch and its backends.
_VARIABLES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "TORCH_DISTRIBUTED_DEBUG", "TORCH_FR_BUFFER_SIZE")
_PREFIXES = ("GLOO_", "NCCL_")


def command_alone(item: pytest.Item, target: str) -> str:
    """Return the command that runs one test alone.

    Args:
        item: The test.
        target: Label of the target; "" outside Bazel.
    """
    if target:
        # Without the path, which differs between machines. Arguments that the target itself has do no harm; those of a
        # program come from it.
        test_filter = shlex.quote(item.nodeid.partition("::")[2])
        given = [] if isinstance(item, RankItem) else sys.argv[1:]
        options = [f" --test_arg={shlex.quote(argument)}" for argument in _kept(given, [])]
        return f"bazel test {target} --test_filter={test_filter}{''.join(options)}"
    config = item.config
    # A worker of pytest-xdist has other arguments than its controller.
    given = getattr(config, "workerinput", {}).get("mainargv", ["", *arguments_of_part(config)])[1:]
    arguments = _kept(given, config.option.file_or_dir)
    variables = [
        f"{name}={shlex.quote(value)}"
        for name, value in sorted(os.environ.items())
        if name in _VARIABLES or name.startswith(_PREFIXES)
    ]
    # `python -m` makes the working directory importable.
    is_module = os.path.basename(sys.argv[0]) == "__main__.py"
    path, _, rest = item.nodeid.partition("::")
    test = f"{os.path.relpath(config.rootpath / path, config.invocation_params.dir)}::{rest}"
    return " ".join([*variables, "python -m pytest" if is_module else "pytest", shlex.join([*arguments, test])])


def _kept(given: list[str], paths: list[str]) -> list[str]:
    """Return the arguments that can decide about a case, without the tests that they name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in _FLAGS:
        parser.add_argument(option, action="count")
    for option in _WITH_VALUE:
        parser.add_argument(option, action="append")
    _, kept = parser.parse_known_args(given)
    for path in paths:
        # A path in an ini file or in the environment is not among them.
        if path in kept:
            kept.remove(path)
    return kept
