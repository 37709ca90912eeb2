"""A pytest plugin that calls `dist_testing.compat.install()`: `pytest -p dist_testing.compat.pytest_install`."""

from __future__ import annotations

from dist_testing import compat
from dist_testing.core.ground.errors import UsageError

# At import: pytest imports the plugin before it collects tests.
try:
    compat.install()
except UsageError as error:
    import pytest

    # pytest prints this exception without a traceback.
    raise pytest.UsageError(str(error)) from None
