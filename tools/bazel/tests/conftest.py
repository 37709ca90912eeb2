"""Fixtures of bazelw's tests."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# For the tests of single modules, and for the helpers that the test modules share.
sys.path[:0] = [str(TESTS), str(TESTS.parent), str(TESTS.parent.parent / "debian_prefix")]

from bazelw_testing import ReleaseServer, Workspace, parent_outside_tmp  # noqa: E402 (needs the path above)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A copy of the wrapper with an empty user cache and nothing but base tools on PATH."""
    return Workspace.create(tmp_path)


@pytest.fixture
def server(workspace: Workspace) -> Iterator[ReleaseServer]:
    """A release server that `workspace` asks, and whose file it accepts."""
    with ReleaseServer.started() as started:
        workspace.use_server(started)
        yield started


@pytest.fixture
def directory_outside_tmp() -> Iterator[Path]:
    """An empty directory where Debian's Bazel may be put."""
    directory = Path(tempfile.mkdtemp(prefix="bazelw-test-", dir=parent_outside_tmp()))
    yield directory
    shutil.rmtree(directory)
