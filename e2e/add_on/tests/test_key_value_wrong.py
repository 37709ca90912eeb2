"""Each test fails on purpose. Without the add-on only the first one would."""

import pytest
from key_value import Client


@pytest.mark.distributed
def test_key_value_is_unknown(world):
    with Client() as client:
        if world.rank == 1:
            client.get("learning_rate")


@pytest.mark.distributed(init=False)
def test_key_value_server_overflows(world):
    with Client() as client:
        number = 0
        while True:
            client.ask("set", f"{world.rank}.{number}", "1")
            number += 1


@pytest.mark.distributed
def test_key_value_lock_is_left(world):
    with Client() as client:
        if world.rank == 1:
            client.ask("set", "lock:model", "1")
