"""Bazel's test protocol: the variables that Bazel sets for a test, read once, checked, and spoken by the runner alone.

Source: Bazel's test encyclopedia, "Initial conditions" and "Test sharding".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dist_testing.errors import DistTestingError, UsageError

__all__ = ["Protocol", "read_protocol"]


@dataclass(frozen=True, slots=True)
class Protocol:
    """What Bazel wants of this run; every field is empty when it does not say.

    Attributes:
        timeout_s: `TEST_TIMEOUT`: seconds until Bazel ends the test.
        xml_file: `XML_OUTPUT_FILE`: where the XML goes.
        outputs: `TEST_UNDECLARED_OUTPUTS_DIR`: kept by Bazel, shown to the user.
        premature_exit_file: `TEST_PREMATURE_EXIT_FILE`: exists while the test is not over.
        infrastructure_file: `TEST_INFRASTRUCTURE_FAILURE_FILE`: tells executors that a failure is the machine's.
        warnings_file: `TEST_WARNINGS_OUTPUT_FILE`: Bazel prints what is in it.
        test_filter: `TESTBRIDGE_TEST_ONLY`: `--test_filter`.
        fail_fast: `TESTBRIDGE_TEST_RUNNER_FAIL_FAST`: `--test_runner_fail_fast`.
        shard: Which shard this is, and of how many.
    """

    timeout_s: float | None = None
    xml_file: Path | None = None
    outputs: Path | None = None
    premature_exit_file: Path | None = None
    infrastructure_file: Path | None = None
    warnings_file: Path | None = None
    test_filter: str = ""
    fail_fast: bool = False
    shard: tuple[int, int] = (0, 1)

    @contextlib.contextmanager
    def not_over_yet(self) -> Iterator[None]:
        """Keep the premature-exit file for as long as the body runs: if the process vanishes, Bazel sees it."""
        if self.premature_exit_file is None:
            yield
            return
        self.premature_exit_file.touch()
        # A refusal with a text of ours is an orderly end, too.
        try:
            yield
        except DistTestingError:
            self.premature_exit_file.unlink(missing_ok=True)
            raise
        self.premature_exit_file.unlink(missing_ok=True)


def read_protocol(env: Mapping[str, str]) -> Protocol:
    """Read the variables, and tell Bazel that sharding is understood before anything can fail.

    Raises:
        UsageError: If a variable has a value that Bazel cannot have meant.
    """
    shard = (0, 1)
    if "TEST_TOTAL_SHARDS" in env:
        shard = (_number(env, "TEST_SHARD_INDEX", 0), _number(env, "TEST_TOTAL_SHARDS", 1))
        if shard[0] >= shard[1]:
            raise UsageError(f"TEST_SHARD_INDEX={shard[0]} with TEST_TOTAL_SHARDS={shard[1]}: there is no such shard.")
        if status := env.get("TEST_SHARD_STATUS_FILE"):
            Path(status).touch()
    return Protocol(
        timeout_s=float(_number(env, "TEST_TIMEOUT", 1)) if "TEST_TIMEOUT" in env else None,
        xml_file=_path(env, "XML_OUTPUT_FILE"),
        outputs=_path(env, "TEST_UNDECLARED_OUTPUTS_DIR"),
        premature_exit_file=_path(env, "TEST_PREMATURE_EXIT_FILE"),
        infrastructure_file=_path(env, "TEST_INFRASTRUCTURE_FAILURE_FILE"),
        warnings_file=_path(env, "TEST_WARNINGS_OUTPUT_FILE"),
        test_filter=env.get("TESTBRIDGE_TEST_ONLY", ""),
        fail_fast=env.get("TESTBRIDGE_TEST_RUNNER_FAIL_FAST") == "1",
        shard=shard,
    )


def _path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def _number(env: Mapping[str, str], name: str, smallest: int) -> int:
    text = env.get(name, "")
    if re.fullmatch(r"[0-9]{1,9}", text) is None or int(text) < smallest:
        raise UsageError(
            f"{name}={text!r}: expected a whole number from {smallest}.\n"
            "Bazel sets it; something between Bazel and the test has changed it.\n"
            "Run the target with `bazel test`, without wrappers that touch TEST_ variables."
        )
    return int(text)
