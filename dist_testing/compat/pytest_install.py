"""A pytest plugin that does `dist_testing.compat.install()`: `pytest -p dist_testing.compat.pytest_install`."""

from __future__ import annotations

from dist_testing import compat
from dist_testing.errors import UsageError

# When pytest imports the plugin, which it does before it collects anything.
try:
    compat.install()
except UsageError as error:
    import pytest

    # Printed as it is; any other exception would come with a traceback through pytest.
    raise pytest.UsageError(str(error)) from None
