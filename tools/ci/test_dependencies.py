"""The command of tools/ci needs Python, and for its pages jinja2."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

_LIST = os.environ.get("CI_FILES")


@pytest.mark.skipif(_LIST is None, reason="Bazel makes the list: ./bazelw test //tools/ci:test_dependencies")
def test_the_command_needs_no_torch_and_no_pytest() -> None:
    """If it fails, a CI job downloads torch in order to count results."""
    assert _LIST is not None
    files = Path(_LIST).read_text(encoding="utf-8").splitlines()
    assert {"tools/ci/ci.py", "tools/ci/timings.py", "dist_testing/core/ground/errors.py"} <= set(files)
    # `dist_testing/__init__.py` imports torch.
    unwanted = re.compile(r"torch/|pytest|pypi(?!_report)|^dist_testing/__init__\.py$")
    assert [file for file in files if unwanted.search(file)] == []
