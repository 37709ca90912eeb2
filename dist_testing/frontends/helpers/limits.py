"""Time limits of torch-style tests, by method name."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dist_testing.errors import UsageError

__all__ = ["TIMEOUT_DEFAULT", "TIMEOUT_OVERRIDE", "default_timeout", "get_timeout"]

_VARIABLE = "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"


def default_timeout(env: Mapping[str, str]) -> int:
    """Seconds for a test that has no limit of its own: what the variable says, else 300; 500 under ThreadSanitizer.

    Raises:
        UsageError: If `DISTRIBUTED_TESTS_DEFAULT_TIMEOUT` is not a number of seconds.
    """
    if env.get("PYTORCH_TEST_WITH_TSAN", "0") == "1":
        return 500
    given = env.get(_VARIABLE, "300")
    if not (given.isascii() and given.isdecimal() and int(given)):
        raise UsageError(
            f"{_VARIABLE} = {given!r}; expected a number of seconds, at least 1.\n"
            "It is the limit of each test that has none of its own.\n"
            f"Correct the variable, or unset it for 300."
        )
    return int(given)


# What `default_timeout` says of this process's environment.
TIMEOUT_DEFAULT: int

# Method name to seconds. Tests may add to it.
TIMEOUT_OVERRIDE = {"test_ddp_uneven_inputs": 400, "test_DistributedDataParallel": 500}


def get_timeout(test_id: str) -> int:
    """Seconds that a test may take.

    Args:
        test_id: `unittest.TestCase.id()`; its last part is the method's name.

    Raises:
        UsageError: If `DISTRIBUTED_TESTS_DEFAULT_TIMEOUT` is not a number of seconds.
    """
    limit = TIMEOUT_OVERRIDE.get(test_id.rpartition(".")[2])
    return limit if limit is not None else default_timeout(os.environ)


def __getattr__(name: str) -> int:
    # Not at import: a wrong value concerns those who have torch-style tests, and they can be told in order.
    if name == "TIMEOUT_DEFAULT":
        return default_timeout(os.environ)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
