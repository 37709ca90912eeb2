"""Reads and checks the variables of Bazel's test protocol. Only the runner uses them.

Source: Bazel's test encyclopedia, "Initial conditions" and "Test sharding".
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from dist_testing.core.ground.budget import MAX_TIMEOUT_S
from dist_testing.core.ground.errors import UsageError

# $DIST_TESTING_PROGRAM_DEBUG_RANK (internal): the rank of a program that gets the terminal. The arguments of a program
# are its own.
DEBUG_RANK_VARIABLE = "DIST_TESTING_PROGRAM_DEBUG_RANK"


@dataclass(frozen=True, slots=True)
class Protocol:
    """Bazel's settings of this run. A field is empty if Bazel has not set its variable."""

    # $TEST_TIMEOUT (Bazel): seconds until Bazel ends the test.
    timeout_s: float | None = None
    # $XML_OUTPUT_FILE (Bazel): file for the results in JUnit's format.
    xml_file: Path | None = None
    # $TEST_UNDECLARED_OUTPUTS_DIR (Bazel): directory that Bazel keeps and shows to the user.
    outputs: Path | None = None
    # $TEST_PREMATURE_EXIT_FILE (Bazel): file that exists while the test is not over.
    premature_exit_file: Path | None = None
    # $TEST_INFRASTRUCTURE_FAILURE_FILE (Bazel): file that tells executors that the machine failed, and not the test.
    infrastructure_file: Path | None = None
    # $TEST_WARNINGS_OUTPUT_FILE (Bazel): file with warnings, which Bazel prints.
    warnings_file: Path | None = None
    # $TESTBRIDGE_TEST_ONLY (Bazel): value of --test_filter.
    test_filter: str = ""
    # $TESTBRIDGE_TEST_RUNNER_FAIL_FAST (Bazel): 1 with --test_runner_fail_fast: the run ends after the first failure.
    fail_fast: bool = False
    # $TEST_SHARD_INDEX, $TEST_TOTAL_SHARDS (Bazel): number of this shard, from 0, and of all shards.
    # $TEST_SHARD_STATUS_FILE (Bazel): file that the runner makes to tell Bazel that it supports shards.
    shard: tuple[int, int] = (0, 1)
    # $TEST_RUN_NUMBER (Bazel): number of this run among --runs_per_test, from 1.
    run_number: int | None = None
    # $TEST_RANDOM_SEED (Bazel): seed of this run, for tests; the library copies it into the XML.
    random_seed: str = ""
    # $COVERAGE_DIR (Bazel): directory whose LCOV files all go into the coverage report of the target.
    # $COVERAGE_MANIFEST (Bazel): file with the sources to measure.
    coverage: tuple[Path, Path] | None = None

    @property
    def is_whole_target(self) -> bool:
        """Whether this run has all cases of the target, and not only a shard or a selection."""
        return self.shard[1] == 1 and not self.test_filter

    @property
    def properties(self) -> list[tuple[str, object]]:
        """Properties for the XML that tell this run of the target from others."""
        values: list[tuple[str, object]] = []
        if self.shard[1] > 1:
            values += [("shard_index", self.shard[0]), ("total_shards", self.shard[1])]
        if self.run_number is not None:
            values.append(("run_number", self.run_number))
        if self.random_seed:
            values.append(("random_seed", self.random_seed))
        return values

    def time_left_s(self) -> float | None:
        """Return the rest of `timeout_s`, which runs from the start of this process; None without a limit. Seconds."""
        if self.timeout_s is None:
            return None
        age_s = time.time() - psutil.Process().create_time()
        # The clock may have been changed, so the age takes at most half of the time.
        return self.timeout_s - min(max(age_s, 0.0), self.timeout_s / 2)

    @contextlib.contextmanager
    def not_over_yet(self) -> Iterator[None]:
        """Keep the premature-exit file while the body runs. If the process vanishes, Bazel sees the file."""
        _touch(self.premature_exit_file, "TEST_PREMATURE_EXIT_FILE")
        # An exception is a visible end, so only a process that vanishes leaves the file.
        try:
            yield
        finally:
            if self.premature_exit_file is not None:
                self.premature_exit_file.unlink(missing_ok=True)


def read_protocol(env: Mapping[str, str]) -> Protocol:
    """Read the variables. Before an error can occur, tell Bazel that the runner supports sharding."""
    shard = (0, 1)
    if "TEST_TOTAL_SHARDS" in env:
        _touch(_path(env, "TEST_SHARD_STATUS_FILE"), "TEST_SHARD_STATUS_FILE")
        shard = (_number(env, "TEST_SHARD_INDEX", 0), _number(env, "TEST_TOTAL_SHARDS", 1))
        if shard[0] >= shard[1]:
            raise _changed(f"TEST_SHARD_INDEX={shard[0]} with TEST_TOTAL_SHARDS={shard[1]}: there is no such shard.")
    directory, manifest = _path(env, "COVERAGE_DIR"), _path(env, "COVERAGE_MANIFEST")
    return Protocol(
        timeout_s=min(float(_number(env, "TEST_TIMEOUT", 1)), MAX_TIMEOUT_S) if "TEST_TIMEOUT" in env else None,
        xml_file=_path(env, "XML_OUTPUT_FILE"),
        outputs=_path(env, "TEST_UNDECLARED_OUTPUTS_DIR"),
        premature_exit_file=_path(env, "TEST_PREMATURE_EXIT_FILE"),
        infrastructure_file=_path(env, "TEST_INFRASTRUCTURE_FAILURE_FILE"),
        warnings_file=_path(env, "TEST_WARNINGS_OUTPUT_FILE"),
        test_filter=env.get("TESTBRIDGE_TEST_ONLY", ""),
        fail_fast=env.get("TESTBRIDGE_TEST_RUNNER_FAIL_FAST") == "1",
        shard=shard,
        run_number=_number(env, "TEST_RUN_NUMBER", 0) if "TEST_RUN_NUMBER" in env else None,
        random_seed=env.get("TEST_RANDOM_SEED", ""),
        coverage=(directory, manifest) if directory and manifest else None,
    )


def _touch(path: Path | None, name: str) -> None:
    try:
        if path is not None:
            path.touch()
    except OSError as error:
        raise _changed(f"{name}={str(path)!r}: the file cannot be created: {error}.") from error


def _changed(observed: str) -> UsageError:
    return UsageError(
        f"{observed}\n"
        "Bazel sets this variable; a program between Bazel and the test has changed it.\n"
        "Run the target with `bazel test`, without wrappers that touch TEST_ variables."
    )


def _path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def _number(env: Mapping[str, str], name: str, smallest: int) -> int:
    text = env.get(name, "")
    if re.fullmatch(r"[0-9]{1,18}", text) is None or int(text) < smallest:
        raise _changed(f"{name}={text!r}: expected a whole number from {smallest}.")
    return int(text)
