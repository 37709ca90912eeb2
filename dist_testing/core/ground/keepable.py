"""The state that a case on a worker pool may leave changed, if its project says so."""

from __future__ import annotations

from collections.abc import Sequence

from dist_testing.core.ground.errors import UsageError

# Kinds of state. A single environment variable is named by the prefix and its name, or by a pattern such as
# "env:OMP_*".
ALL_ENV = "env"
ENV_PREFIX = "env:"
KEEPABLE = ("cwd", ALL_ENV, "files", "logging", "processes", "sys.path", "threads", "torch", "umask")


def check_keepable(where: str, names: object) -> tuple[str, ...]:
    """Check a user's list of what cases on a worker pool may leave changed, and return it.

    A UsageError refuses all but names of `KEEPABLE` and of variables. `where` is the user's place, such as
    "dist_pool_keeps".
    """
    listed: Sequence[object] = names if isinstance(names, list | tuple) else [names]
    for name in listed:
        is_variable = isinstance(name, str) and name.startswith(ENV_PREFIX) and name != ENV_PREFIX
        if not is_variable and name not in KEEPABLE:
            raise UsageError(
                f"{where} has {name!r}; expected {', '.join(KEEPABLE)}, or {ENV_PREFIX}NAME.\n"
                "It lists the state that a test in a worker pool may leave changed for the next test.\n"
                f"Write cwd {ENV_PREFIX}TOKENIZERS_PARALLELISM, for example; {ENV_PREFIX}OMP_* names several variables."
            )
    return tuple(map(str, listed))
