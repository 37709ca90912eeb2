"""A rank's own environment variables."""

from __future__ import annotations

import os
from unittest import mock

import pytest

from dist_testing.rank.environment import become, torchrun_env
from dist_testing.world import LOOPBACK

# RANK and LOCAL_RANK are set by the rank.
BASE = {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"}


@pytest.mark.parametrize("size", [1, 4, 64])
def test_variables_are_those_of_torchrun_on_one_node(size: int) -> None:
    """Code under test reads them to learn who it is."""
    env = torchrun_env(size, 29500)
    assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == (str(size), str(size))
    assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == ("0", "1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == (LOOPBACK, "29500")


def test_env_rendezvous_uses_the_store_that_serves_already() -> None:
    """Without this rank 0 would try to bind a port that is taken."""
    assert torchrun_env(2, 29500)["TORCHELASTIC_USE_AGENT_STORE"] == "True"


def test_a_world_without_a_store_has_no_address() -> None:
    """An address that nobody serves would make env:// wait for it."""
    env = torchrun_env(2, 0)
    assert env.keys() >= BASE
    assert not [name for name in env if name.startswith(("MASTER_", "TORCHELASTIC_"))]


def test_become_makes_the_environment_exactly_that() -> None:
    """What the runner has unset since the template was forked must be unset on the rank."""
    with mock.patch.dict(os.environ, {"KEPT": "1", "CHANGED": "old", "GONE": "1"}, clear=True):
        become({"KEPT": "1", "CHANGED": "new", "ADDED": "", "UNICODE": "\u00fc\udcff"})
        assert dict(os.environ) == {"KEPT": "1", "CHANGED": "new", "ADDED": "", "UNICODE": "\u00fc\udcff"}


def test_become_leaves_alone_what_is_right_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on every rank's path, and nearly all of it is inherited."""
    written: list[str] = []

    class Spy(dict[str, str]):
        def __setitem__(self, name: str, value: str) -> None:
            written.append(name)
            super().__setitem__(name, value)

    monkeypatch.setattr(os, "environ", Spy(KEPT="1", CHANGED="old"))
    become({"KEPT": "1", "CHANGED": "new", "ADDED": "1"})
    assert written == ["CHANGED", "ADDED"]
