"""Gives a fork of a pytest session files of its own for captured output."""

from __future__ import annotations

import pytest

from dist_testing.core.pytest.internals import CaptureManager


def restart_capture(config: pytest.Config) -> None:
    """Make new files for captured output, without the output so far; call it in a fork, outside tests."""
    capture: CaptureManager | None = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        # The old files are those of the parent, and its other forks write into them.
        capture.read_global_capture()
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
