"""Measures the runner and all ranks for `bazel coverage`, and writes one LCOV file."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dist_testing.core.ground.errors import ReportError
from dist_testing.core.rank.hooks import RankService

if TYPE_CHECKING:
    from coverage import Coverage


# Bazel merges every .dat file in COVERAGE_DIR.
_LCOV_NAME = "dist_testing.dat"
# Warnings of the coverage package concern Bazel's choices, and `-W error` would raise them.
_quiet = functools.partial(warnings.catch_warnings, action="ignore")
# $DIST_TESTING_COVERAGE (internal): file with the arguments of `_measure`, for ranks; not set in a run without
# coverage.
_VARIABLE = "DIST_TESTING_COVERAGE"
_PATTERN_SIGN = re.compile(r"[][*]")


def start_coverage(
    directory: Path, manifest: Path, rlocation: Callable[[str], str | None], workspace: str
) -> Callable[[], None] | None:
    """Start to measure this process and its ranks; raises ReportError if that is impossible.

    Return what writes the LCOV file; None if Bazel wants no file of this target. `rlocation` finds a file by its path
    in the runfiles; `workspace` is the main repository's name there.
    """
    try:
        from coverage import Coverage
    except ImportError as error:
        raise ReportError(
            f"coverage is not measured: {error}.\n"
            "`bazel coverage` needs the Python package `coverage`, which this target does not have.\n"
            "Add it to the lock file of the hub that dist_testing.packages() names; or to .bazelrc: "
            "coverage --@dist_testing//dist_testing/config:coverage=@pypi//coverage"
        ) from error
    try:
        names = sources_wanted(manifest.read_text(encoding="utf-8"), rlocation, workspace)
        if not names:
            return None
        folder = Path(tempfile.mkdtemp(prefix="dist-coverage-", dir=directory))
        data_file, settings = str(folder / "data"), folder / "settings.json"
        settings.write_text(json.dumps([data_file, list(names)]), encoding="utf-8")
        os.environ[_VARIABLE] = str(settings)
        # A coverage tool in the Python toolchain already measures this process.
        own = _measure(data_file, names) if Coverage.current() is None else None
        return functools.partial(_finish, folder, settings, own, directory / _LCOV_NAME, names)
    except (OSError, ValueError) as error:
        raise ReportError(
            f"coverage is not measured: {error}.\n"
            "Bazel sets COVERAGE_DIR and COVERAGE_MANIFEST; a program between Bazel and the test has changed them.\n"
            "Run the target with `bazel coverage`, without wrappers that touch these variables."
        ) from error


def _finish(folder: Path, settings: Path, own: Coverage | None, lcov_file: Path, names: Mapping[str, str]) -> None:
    """Write the LCOV file of all processes that have saved their data; raises ReportError if that is impossible."""
    from coverage import Coverage, CoverageException
    from coverage.exceptions import NoDataError

    try:
        # Without this file, ranks have not measured themselves.
        settings.stat()
        lcov = folder / _LCOV_NAME
        with _quiet():
            if own is not None:
                own.stop()
                own.save()
            merged = Coverage(data_file=str(folder / "merged"), config_file=False, branch=True)
            merged.combine([str(path) for path in sorted(folder.glob("data.*"))])
            merged.lcov_report(outfile=str(lcov), ignore_errors=True)
        lcov_file.write_text(_with_bazels_names(lcov.read_text(encoding="utf-8"), names), encoding="utf-8")
    except NoDataError:
        # No code that Bazel asked for has run.
        return
    except (OSError, CoverageException) as error:
        raise ReportError(
            f"{lcov_file}: the coverage cannot be written: {error}.\n"
            "The disk is full, or a test has removed files of COVERAGE_DIR.\n"
            "Make room, and run the target again."
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(data_file: str, sources: Iterable[str]) -> Coverage:
    """Start to measure these files in this process, and stop any other measurement of it."""
    from coverage import Coverage

    if (other := Coverage.current()) is not None:
        # Inherited from the runner; a process has only one tracer.
        other.stop()
    coverage = Coverage(
        data_file=data_file,
        # Each process has a file of its own.
        data_suffix=True,
        branch=True,
        # The user's own settings could exclude files that Bazel asks for.
        config_file=False,
        # These are patterns that cannot escape a sign, so "?" stands for it. If the pattern also matches another file,
        # Bazel drops that file from the report.
        include=[_PATTERN_SIGN.sub("?", source) for source in sources],
    )
    with _quiet():
        coverage.start()
    return coverage


class RankCoverage(RankService):
    """Measures this rank. It saves the data itself, because a rank ends without exit handlers."""

    _coverage: Coverage | None = None

    def start(self) -> None:
        """Start to measure, if the run asks for it and no test has removed the settings (the runner reports that)."""
        if _VARIABLE in os.environ:
            with contextlib.suppress(FileNotFoundError):
                self._coverage = _measure(*json.loads(Path(os.environ[_VARIABLE]).read_text(encoding="utf-8")))

    def close(self) -> None:
        """Write which code has run until now."""
        if self._coverage is None:
            return
        from coverage import CoverageException

        try:
            with _quiet():
                self._coverage.stop()
                self._coverage.save()
        except (OSError, CoverageException) as error:
            # Lost coverage does not concern the outcome of the test.
            print(f"WARNING: the coverage of this rank is lost: {error}", file=sys.stderr)


def sources_wanted(manifest: str, rlocation: Callable[[str], str | None], workspace: str) -> Mapping[str, str]:
    """Return Bazel's name of each Python file of a manifest, by the file's real path.

    The manifest has paths relative to the execution root. The other arguments are those of `start_coverage`.
    """
    names = {}
    for name in manifest.split("\n"):
        if name.endswith(".py") and (path := rlocation(_runfiles_path(name, workspace))) and os.path.exists(path):
            # `coverage` names each file by its real path.
            names[os.path.realpath(path)] = name
    return names


def _runfiles_path(name: str, workspace: str) -> str:
    parts = name.split("/")
    if parts[0] == "bazel-out":
        # bazel-out/<configuration>/bin/: a generated file.
        parts = parts[3:]
    return "/".join(parts[1:] if parts[0] == "external" else [workspace, *parts])


def _with_bazels_names(lcov: str, names: Mapping[str, str]) -> str:
    def named(line: re.Match[str]) -> str:
        # The path is relative if the file is below the working directory.
        path = os.path.realpath(line[1])
        return f"SF:{names.get(path, path)}"

    return re.sub(r"^SF:(.*)$", named, lcov, flags=re.MULTILINE)
