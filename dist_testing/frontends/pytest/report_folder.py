"""Says where reports go that are too long for the log of a pytest session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dist_testing.engine.kept_reports import ReportFolder

__all__ = ["report_folder"]

_NAME = "dist_testing-reports"


def report_folder(config: pytest.Config, outputs: Path | None) -> ReportFolder:
    """Return the folder: among Bazel's outputs of the test, else in pytest's cache, else one for temporary files.

    Args:
        config: Configuration of pytest.
        outputs: The folder that Bazel keeps; None outside Bazel.
    """
    if outputs is not None:
        return ReportFolder(lambda: outputs, "in test.outputs, beside the log (bazel-testlogs)")
    cache: Any = getattr(config, "cache", None)
    if cache is None:
        return ReportFolder()
    return ReportFolder(lambda: Path(cache.mkdir(_NAME)))
