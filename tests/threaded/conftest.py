"""What the tests of the group of threads share."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture
def go_on() -> threading.Event:
    """What one rank sets when another one may go on."""
    return threading.Event()
