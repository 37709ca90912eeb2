"""Measures the runner and all ranks for `bazel coverage`, and writes one LCOV file."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from dist_testing.core.ground.errors import ReportError
from dist_testing.coverage.rank_coverage import CoverageSettings, quiet, start_measuring

# Bazel merges every .dat file in COVERAGE_DIR.
_LCOV_NAME = "dist_testing.dat"


def start_coverage(
    directory: Path, manifest: Path, rlocation: Callable[[str], str | None], workspace: str
) -> Callable[[], None] | None:
    """Start to measure this process and its ranks.

    Returns:
        What writes the LCOV file; None if Bazel wants no file of this target.

    `rlocation` finds a file by its path in the runfiles; `workspace` is the main repository's name there.

    Raises:
        ReportError: If coverage cannot be measured.
    """
    try:
        import coverage
    except ImportError as error:
        raise ReportError(
            f"coverage is not measured: {error}.\n"
            "`bazel coverage` needs the Python package `coverage`, which this target does not have.\n"
            "Add it to the lock file of the hub that dist_testing.packages() names; or to .bazelrc: "
            "coverage --@dist_testing//dist_testing/config:coverage=@pypi//coverage"
        ) from error
    del coverage
    try:
        names = sources_wanted(manifest.read_text(encoding="utf-8"), rlocation, workspace)
        return _Run(directory, names).finish if names else None
    except (OSError, ValueError) as error:
        raise ReportError(
            f"coverage is not measured: {error}.\n"
            "Bazel sets COVERAGE_DIR and COVERAGE_MANIFEST; a program between Bazel and the test has changed them.\n"
            "Run the target with `bazel coverage`, without wrappers that touch these variables."
        ) from error


class _Run:
    """Measures a run from its construction to `finish`."""

    def __init__(self, directory: Path, names: Mapping[str, str]) -> None:
        """Start to measure the files that `names` maps to Bazel's names. The LCOV file goes into the folder."""
        from coverage import Coverage

        self._lcov_file = directory / _LCOV_NAME
        self._names = names
        self._folder = Path(tempfile.mkdtemp(prefix="dist-coverage-", dir=directory))
        settings = CoverageSettings(str(self._folder / "data"), tuple(names))
        self._settings_file = self._folder / "settings.json"
        settings.publish(self._settings_file)
        # A coverage tool in the Python toolchain already measures this process.
        self._coverage = start_measuring(settings) if Coverage.current() is None else None

    def finish(self) -> None:
        """Write the LCOV file of all processes that have saved their data.

        Raises:
            ReportError: If the file cannot be written.
        """
        from coverage import Coverage, CoverageException
        from coverage.exceptions import NoDataError

        try:
            # Without this file, ranks have not measured themselves.
            self._settings_file.stat()
            lcov = self._folder / _LCOV_NAME
            with quiet():
                if self._coverage is not None:
                    self._coverage.stop()
                    self._coverage.save()
                merged = Coverage(data_file=str(self._folder / "merged"), config_file=False, branch=True)
                merged.combine([str(path) for path in sorted(self._folder.glob("data.*"))])
                merged.lcov_report(outfile=str(lcov), ignore_errors=True)
            text = lcov.read_text(encoding="utf-8")
            self._lcov_file.write_text(_with_bazels_names(text, self._names), encoding="utf-8")
        except NoDataError:
            # No code that Bazel asked for has run.
            return
        except (OSError, CoverageException) as error:
            raise ReportError(
                f"{self._lcov_file}: the coverage cannot be written: {error}.\n"
                "The disk is full, or a test has removed files of COVERAGE_DIR.\n"
                "Make room, and run the target again."
            ) from error
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


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
