"""A rank's own environment variables."""

from __future__ import annotations

import os

import pytest

from dist_testing.core.ground.layout import LOOPBACK, Layout
from dist_testing.core.rank.bootstrap import become, world_env


@pytest.mark.parametrize("size", [1, 4, 64])
def test_variables_are_those_of_torchrun_on_one_node(size: int) -> None:
    """If this fails, code under test that reads these variables learns a wrong rank or world size."""
    layout = Layout(size)
    env = {**world_env({}, layout, 29500), **layout.rank_env(size - 1)}
    assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == (str(size), str(size))
    assert (env["RANK"], env["LOCAL_RANK"]) == (str(size - 1), str(size - 1))
    assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == ("0", "1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == (LOOPBACK, "29500")


@pytest.mark.parametrize(("store_port", "is_told"), [(29500, False), (0, True)])
def test_store_of_torchrun_is_not_the_store_of_a_world(store_port: int, is_told: bool) -> None:
    """If this fails, under torchrun no rank serves a store at a test's own port, or none where the world has none."""
    env = world_env({"TORCHELASTIC_USE_AGENT_STORE": "True", "KEPT": "1"}, Layout(2), store_port)
    assert ("TORCHELASTIC_USE_AGENT_STORE" in env) is is_told
    assert env["KEPT"] == "1"
    assert env.items() >= world_env({}, Layout(2), store_port).items()
    # Without a store, env:// must not wait for an address at which no store listens.
    assert any(name.startswith("MASTER_") for name in env) is (store_port > 0)


def test_become_sets_exactly_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a rank has a variable that the runner unset after it started the fork server, or takes longer."""
    written: list[str] = []

    class Spy(dict[str, str]):
        def __setitem__(self, name: str, value: str) -> None:
            written.append(name)
            super().__setitem__(name, value)

    wanted = {"KEPT": "1", "CHANGED": "new", "ADDED": "", "UNICODE": "\u00fc\udcff"}
    monkeypatch.setattr(os, "environ", Spy(KEPT="1", CHANGED="old", GONE="1"))
    become(wanted)
    assert os.environ == wanted
    assert written == ["CHANGED", "ADDED", "UNICODE"], "most variables are right already"
