"""What a rank has executed, for `bazel coverage`: a rank ends without exit handlers, so it is saved before that."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coverage import Coverage

__all__ = ["CoverageSettings", "RankCoverage", "quiet", "start_measuring"]

# Tells ranks where the settings are; not set when nobody wants to know.
_VARIABLE = "DIST_TESTING_COVERAGE"
_PATTERN_SIGN = re.compile(r"[][*]")


@dataclass(frozen=True, slots=True)
class CoverageSettings:
    """What is measured, and where the results go.

    Attributes:
        data_file: What the paths of the result files begin with; each process has its own.
        sources: Absolute paths of the files to measure.
    """

    data_file: str
    sources: tuple[str, ...]

    def publish(self, path: Path) -> None:
        """Write the settings, for the ranks of this process."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.environ[_VARIABLE] = str(path)


def start_measuring(settings: CoverageSettings) -> Coverage:
    """Measure this process from now on, and nothing else does."""
    from coverage import Coverage

    if (other := Coverage.current()) is not None:
        # Inherited from the runner: a process has one tracer.
        other.stop()
    coverage = Coverage(
        data_file=settings.data_file,
        data_suffix=True,
        branch=True,
        # The user's own settings could leave out what Bazel has asked for.
        config_file=False,
        # These are patterns, in which a sign can only be left open. What that measures of a file beside it, whose name
        # differs in the sign alone, Bazel drops: it did not ask for it.
        include=[_PATTERN_SIGN.sub("?", source) for source in settings.sources],
    )
    with quiet():
        coverage.start()
    return coverage


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep back the package's warnings: they are about what Bazel has decided, and would be errors under `-W error`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class RankCoverage:
    """Measures this rank, if the run wants it and no test has removed what belongs to that; the runner says so then."""

    def __init__(self) -> None:
        path = os.environ.get(_VARIABLE)
        self._coverage: Coverage | None = None
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                settings = json.loads(Path(path).read_text(encoding="utf-8"))
                self._coverage = start_measuring(CoverageSettings(settings["data_file"], tuple(settings["sources"])))

    def save(self) -> None:
        """Write what was executed until now."""
        if self._coverage is None:
            return
        from coverage import CoverageException

        try:
            with quiet():
                self._coverage.stop()
                self._coverage.save()
        except (OSError, CoverageException) as error:
            # It says nothing about the test.
            print(f"WARNING: the coverage of this rank is lost: {error}", file=sys.stderr)
