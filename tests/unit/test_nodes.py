"""The places of ranks on simulated nodes, and cases whose ranks cannot be spread over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.engine.hooks import ResourceWish
from dist_testing.core.ground.backends import backend_named
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.layout import LOOPBACK, Layout
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK
from dist_testing.nodes.check import Spread, check, places_of
from dist_testing.nodes.links import MAX_NODES
from dist_testing.nodes.namespaces import node_address, node_name
from tests.support.results import case_of, refusal


def _case(nodes: Any, size: int = 4, isolation: str = "fork") -> Case:
    return case_of(size, name="test_x", isolation=isolation, settings={"nodes": nodes})


@pytest.mark.parametrize(
    ("places", "ranks"),
    [
        # As torchrun places them.
        (places_of(_case(3, 6)), [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2), (2, 0, 2), (2, 1, 2)]),
        # As the ranks of a cluster tell, with uneven nodes.
        ((1, 0, 1, 1), [(1, 0, 3), (0, 0, 1), (1, 1, 3), (1, 2, 3)]),
    ],
)
def test_every_rank_knows_its_place(places: tuple[int, ...], ranks: list[tuple[int, int, int]]) -> None:
    """If this fails, a test that maps ranks to nodes and devices is right here and wrong on a cluster."""
    layout = Layout(len(ranks), places)
    for rank, (node, local, size) in enumerate(ranks):
        assert (layout.group_of(rank), layout.local_rank(rank), layout.local_size(rank)) == (node, local, size)
        assert layout.rank_env(rank) == {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "GROUP_RANK": str(node),
            "LOCAL_WORLD_SIZE": str(size),
        }
    env = layout.world_env()
    assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == (str(len(ranks)), str(ranks[0][2]))
    assert env["GROUP_WORLD_SIZE"] == str(len(set(places)))
    # One node is the machine itself, where the store is.
    assert places_of(_case(1)) == ()
    assert (Layout(4).groups, Layout(4).address) == (1, LOOPBACK)


def _spec(backend: str = "gloo") -> Spec:
    return Spec("", backend_named(backend), (4,), "fork")


@pytest.mark.parametrize(
    ("nodes", "isolation", "backend", "problem", "way_out"),
    [
        (0, "fork", "gloo", "nodes = 0; expected a number from 1 to 64.", "leave it out"),
        (True, "fork", "gloo", "nodes = True; expected a number from 1 to 64.", "leave it out"),
        ("2", "fork", "gloo", "nodes = '2'; expected a number from 1 to 64.", "leave it out"),
        (2.0, "fork", "gloo", "nodes = 2.0; expected a number from 1 to 64.", "leave it out"),
        (None, "fork", "gloo", "nodes = None; expected a number from 1 to 64.", "leave it out"),
        (MAX_NODES + 1, "fork", "gloo", "nodes = 65; expected a number from 1 to 64.", "leave it out"),
        (3, "fork", "gloo", "nodes = 3 with world_size = 4.", "Set world_size = 6"),
        (8, "fork", "gloo", "nodes = 8 with world_size = 4.", "Set world_size = 8"),
        (2, "thread", "gloo", 'nodes = 2 with isolation "thread".', 'Set isolation = "fork"'),
        (2, "fork", "cuda_gloo", 'nodes = 2 with backend "cuda_gloo".', "a backend for CPUs"),
    ],
)
def test_a_case_that_cannot_be_spread_is_refused(
    nodes: Any, isolation: str, backend: str, problem: str, way_out: str
) -> None:
    """If this fails, ranks start on nodes of different sizes, or all of a node's ranks take the same GPU."""
    for good in (1, 2, 4, MAX_NODES):
        check(_case(good, MAX_NODES), _spec())
    first, _, last = refusal(lambda: check(_case(nodes, isolation=isolation), _spec(backend))).splitlines()
    assert first == f"test_x: {problem}"
    assert way_out in last


def test_nodes_are_named_and_numbered_from_the_first_address() -> None:
    """If this fails, a test that names another node by the documented address or host name reaches nothing."""
    assert [node_address(node) for node in (0, 1, 63)] == ["10.0.0.1", "10.0.0.2", "10.0.0.64"]
    assert [node_name(node) for node in (0, 12)] == ["node0", "node12"]
    nodes = range(MAX_NODES)
    assert len({node_address(node) for node in nodes}) == len({node_name(node) for node in nodes}) == MAX_NODES
    variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    wish = ResourceWish(_case(2), _spec(), FORK, 60.0, Path(), print)
    held = Spread().acquire(wish)
    assert (held.places, held.host) == ((0, 0, 1, 1), "10.0.0.1")
    assert held.env == dict.fromkeys(variables, "eth0")
