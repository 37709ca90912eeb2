"""The end of a rank's groups, which depends on what their backends declare."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch.distributed as dist

from dist_testing.core.rank.groups import backend_of_groups, end_groups


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How groups were ended: "destroyed" or "aborted"."""
    calls: list[str] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroyed"))
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: calls.append("aborted"))
    return calls


def have(monkeypatch: pytest.MonkeyPatch, *backends: str) -> None:
    """Give this process a group for each torch backend string."""
    groups = {object(): (backend, None) for backend in backends}
    world = SimpleNamespace(pg_map=groups, pg_backend_config=dict.fromkeys(groups, "cpu:gloo"))
    monkeypatch.setattr(dist.distributed_c10d, "_world", world)


def test_a_group_without_a_named_backend_counts_by_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it no hang of a program that calls `init_process_group()` without an argument is ever proven."""
    have(monkeypatch, "undefined", "nccl")
    assert [name for _, name in backend_of_groups(dist.distributed_c10d)] == ["cpu:gloo", "nccl"]


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        (("gloo",), []),
        (("gloo", "fake"), []),
        (("nccl",), ["destroyed"]),
        (("gloo", "nccl"), ["destroyed"]),
        (("cpu:gloo,cuda:nccl",), ["destroyed"]),
        (("cpu:gloo,cuda:gloo",), []),
        # An undeclared plug-in has no facts, and to destroy its group is always right.
        (("somebodys",), ["destroyed"]),
    ],
)
def test_a_process_that_ends_destroys_the_groups_that_need_it(
    monkeypatch: pytest.MonkeyPatch, ended: list[str], backends: tuple[str, ...], expected: list[str]
) -> None:
    """To destroy gloo's takes 20 to 40 ms of each case; not to destroy NCCL's loses what it holds."""
    have(monkeypatch, *backends)
    assert [name for _, name in backend_of_groups(dist.distributed_c10d)] == list(backends)
    end_groups()
    assert ended == expected
