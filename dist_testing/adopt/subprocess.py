"""A plugin of pytest for suites that start torchrun or accelerate: `pytest -p dist_testing.adopt.subprocess`.

`subprocess` and `asyncio` start such a command as before, with the same arguments, environment, folder and streams. But
its process is forked from one that has torch loaded, and its ranks run on the engine, with a verdict over all of them.
"""

from __future__ import annotations

import pytest

from dist_testing.adopt.launch_client import close_host, install_popen, preload

_INI = "dist_preload"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini option with the modules that all launched scripts import."""
    parser.addini(_INI, "modules that the process imports from which launched ranks are forked", type="args")


def pytest_configure(config: pytest.Config) -> None:
    """Replace `subprocess.Popen`, before tests are collected."""
    preload(config.getini(_INI))
    install_popen()


def pytest_unconfigure() -> None:
    """End the process from which the launched ranks were forked."""
    close_host()
