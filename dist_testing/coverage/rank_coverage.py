"""Measures a rank for `bazel coverage`. A rank ends without exit handlers, so it saves the data before its end."""

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

from dist_testing.core.rank.hooks import RankService, ServedRank

if TYPE_CHECKING:
    from coverage import Coverage

# Tells ranks the path of the settings; not set in a run without coverage.
_VARIABLE = "DIST_TESTING_COVERAGE"
_PATTERN_SIGN = re.compile(r"[][*]")


@dataclass(frozen=True, slots=True)
class CoverageSettings:
    """Which files to measure, and where the results go.

    Attributes:
        data_file: Path that each process extends by a suffix of its own for its result file.
        sources: Absolute paths of the files to measure.
    """

    data_file: str
    sources: tuple[str, ...]

    def publish(self, path: Path) -> None:
        """Write the settings to `path`, for the ranks that this process starts."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.environ[_VARIABLE] = str(path)


def start_measuring(settings: CoverageSettings) -> Coverage:
    """Start to measure this process, and stop any other measurement of it."""
    from coverage import Coverage

    if (other := Coverage.current()) is not None:
        # Inherited from the runner; a process has only one tracer.
        other.stop()
    coverage = Coverage(
        data_file=settings.data_file,
        data_suffix=True,
        branch=True,
        # The user's own settings could exclude files that Bazel asks for.
        config_file=False,
        # These are patterns that cannot escape a sign, so "?" stands for it. If the pattern also matches another file,
        # Bazel drops that file from the report.
        include=[_PATTERN_SIGN.sub("?", source) for source in settings.sources],
    )
    with quiet():
        coverage.start()
    return coverage


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings of the coverage package: they concern Bazel's choices, and `-W error` would raise them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class RankCoverage(RankService):
    """Measures this rank if the run asks for it, and if no test has removed the settings (the runner reports that)."""

    def __init__(self, rank: ServedRank | None = None) -> None:
        del rank
        self._coverage: Coverage | None = None

    def start(self) -> None:
        """Start to measure."""
        path = os.environ.get(_VARIABLE)
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                settings = json.loads(Path(path).read_text(encoding="utf-8"))
                self._coverage = start_measuring(CoverageSettings(settings["data_file"], tuple(settings["sources"])))

    def close(self) -> None:
        """Write which code has run until now."""
        if self._coverage is None:
            return
        from coverage import CoverageException

        try:
            with quiet():
                self._coverage.stop()
                self._coverage.save()
        except (OSError, CoverageException) as error:
            # Lost coverage does not concern the outcome of the test.
            print(f"WARNING: the coverage of this rank is lost: {error}", file=sys.stderr)
