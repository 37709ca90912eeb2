"""Bazel's test protocol: the variables that Bazel sets for a test, read once, checked, and spoken by the runner alone.

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

from dist_testing.errors import UsageError

__all__ = ["CoverageRequest", "Protocol", "read_protocol"]


@dataclass(frozen=True, slots=True)
class CoverageRequest:
    """What `bazel coverage` wants.

    Attributes:
        directory: `COVERAGE_DIR`: every LCOV file in it goes into the target's report.
        manifest: `COVERAGE_MANIFEST`: lists the sources whose coverage is wanted.
    """

    directory: Path
    manifest: Path


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
        run_number: `TEST_RUN_NUMBER`: which of `--runs_per_test` this is, from 1.
        random_seed: `TEST_RANDOM_SEED`: as it came. Tests read it from their environment; here it is for the XML.
        coverage: What `bazel coverage` wants.
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
    run_number: int | None = None
    random_seed: str = ""
    coverage: CoverageRequest | None = None

    @property
    def is_whole_target(self) -> bool:
        """Whether this run has all the target's cases, and not a shard or a selection of them."""
        return self.shard[1] == 1 and not self.test_filter

    @property
    def properties(self) -> list[tuple[str, object]]:
        """What tells this run of the target from others; for the XML."""
        values: list[tuple[str, object]] = []
        if self.shard[1] > 1:
            values += [("shard_index", self.shard[0]), ("total_shards", self.shard[1])]
        if self.run_number is not None:
            values.append(("run_number", self.run_number))
        if self.random_seed:
            values.append(("random_seed", self.random_seed))
        return values

    def time_left_s(self) -> float | None:
        """What is left of `timeout_s`: it runs since this process was started, and a lot may have been loaded since."""
        if self.timeout_s is None:
            return None
        age_s = time.time() - psutil.Process().create_time()
        # Clocks are set; a wrong one must not take everything.
        return self.timeout_s - min(max(age_s, 0.0), self.timeout_s / 2)

    @contextlib.contextmanager
    def not_over_yet(self) -> Iterator[None]:
        """Keep the premature-exit file for as long as the body runs: if the process vanishes, Bazel sees it."""
        if self.premature_exit_file is None:
            yield
            return
        _touch(self.premature_exit_file, "TEST_PREMATURE_EXIT_FILE")
        # An exception that leaves the body is an end that shows; only a process that vanishes leaves the file.
        try:
            yield
        finally:
            self.premature_exit_file.unlink(missing_ok=True)


def read_protocol(env: Mapping[str, str]) -> Protocol:
    """Read the variables, and tell Bazel that sharding is understood before anything can fail.

    Raises:
        UsageError: If a variable has a value that Bazel cannot have meant.
    """
    shard = (0, 1)
    if "TEST_TOTAL_SHARDS" in env:
        if (status := _path(env, "TEST_SHARD_STATUS_FILE")) is not None:
            _touch(status, "TEST_SHARD_STATUS_FILE")
        shard = (_number(env, "TEST_SHARD_INDEX", 0), _number(env, "TEST_TOTAL_SHARDS", 1))
        if shard[0] >= shard[1]:
            raise _changed(f"TEST_SHARD_INDEX={shard[0]} with TEST_TOTAL_SHARDS={shard[1]}: there is no such shard.")
    directory, manifest = _path(env, "COVERAGE_DIR"), _path(env, "COVERAGE_MANIFEST")
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
        run_number=_number(env, "TEST_RUN_NUMBER", 0) if "TEST_RUN_NUMBER" in env else None,
        random_seed=env.get("TEST_RANDOM_SEED", ""),
        coverage=CoverageRequest(directory, manifest) if directory and manifest else None,
    )


def _touch(path: Path, name: str) -> None:
    try:
        path.touch()
    except OSError as error:
        raise _changed(f"{name}={str(path)!r}: the file cannot be made: {error}.") from error


def _changed(observed: str) -> UsageError:
    return UsageError(
        f"{observed}\n"
        "Bazel sets the variable; something between Bazel and the test has changed it.\n"
        "Run the target with `bazel test`, without wrappers that touch TEST_ variables."
    )


def _path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def _number(env: Mapping[str, str], name: str, smallest: int) -> int:
    text = env.get(name, "")
    if re.fullmatch(r"[0-9]{1,9}", text) is None or int(text) < smallest:
        raise _changed(f"{name}={text!r}: expected a whole number from {smallest}.")
    return int(text)
