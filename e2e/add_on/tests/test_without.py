"""A test that gets no server."""

import os

import pytest


@pytest.mark.distributed
def test_no_server(world):
    assert "KEY_VALUE_ADDRESS" not in os.environ
