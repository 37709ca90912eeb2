"""Places of ranks on simulated nodes, cases that cannot be spread, and the fates of packets between nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_testing.core.engine.hooks import ResourceWish
from dist_testing.core.ground.backends import backend_named
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.layout import LOOPBACK, Layout
from dist_testing.core.ground.record import LinkEnds
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK
from dist_testing.nodes.check import Spread, check, places_of
from dist_testing.nodes.links import (
    CUT,
    HOLD_S,
    MAX_NODES,
    MAX_OVERTAKING,
    MILLION,
    WHOLE,
    Fate,
    LinkQueue,
    LinkRule,
    fate,
    links_between,
)
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


_LINK = LinkEnds(0, 1)
_BAD = LinkRule(delay_us=1000, jitter_us=500, loss_ppm=100_000, reorder_ppm=200_000, seed=42)

# Its first packets.
_FIRST = [Fate(False, 1154, 0), Fate(False, 1500, 0), Fate(False, 1108, 0), Fate(False, 1468, 3)]


def _lost(rule: LinkRule, link: LinkEnds = _LINK) -> list[int]:
    return [number for number in range(2000) if fate(rule, link, number).is_lost]


def test_a_seed_gives_the_same_fates_on_every_machine() -> None:
    """If this fails, a failure in CI cannot be repeated at home: these are the fates of the first release."""
    assert [fate(_BAD, _LINK, number) for number in range(4)] == _FIRST
    once = [fate(_BAD, _LINK, number) for number in range(200)]
    assert all([fate(_BAD, _LINK, number) for number in range(200)] == once for _ in range(100))
    # These need no seed.
    assert fate(WHOLE, _LINK, 5) == Fate(False, 0, 0)
    assert fate(CUT, _LINK, 5).is_lost


def test_shares_are_kept_and_other_seeds_and_links_have_other_fates() -> None:
    """If this fails, a loss of 10 % loses all, none, or the same packets whatever the seed."""
    lost = _lost(_BAD)
    assert 140 < len(lost) < 260
    assert lost != _lost(LinkRule(loss_ppm=100_000, seed=43))
    assert lost != _lost(_BAD, LinkEnds(1, 0))
    overtaken = [fate(_BAD, _LINK, number).overtaken_by for number in range(2000)]
    assert set(overtaken) == set(range(MAX_OVERTAKING + 1))
    assert 320 < sum(map(bool, overtaken)) < 480


@given(st.integers(0, MILLION), st.integers(0, 10**9), st.integers(0, 63), st.integers(0, 10**6))
def test_the_limits_of_a_share_are_exact(ppm: int, seed: int, node: int, number: int) -> None:
    """If this fails, loss = 0 loses a packet, or loss = 1 lets one through."""
    link = LinkEnds(node, 0)
    assert not fate(LinkRule(jitter_us=9, seed=seed), link, number).is_lost
    assert fate(LinkRule(loss_ppm=MILLION, seed=seed), link, number).is_lost
    # A packet that a small loss takes is taken by a larger one, too.
    if fate(LinkRule(loss_ppm=ppm, seed=seed), link, number).is_lost:
        assert fate(LinkRule(loss_ppm=min(MILLION, ppm + 1), seed=seed), link, number).is_lost


@pytest.mark.parametrize(
    ("near", "far", "both", "expected"),
    [
        ([0], [1, 2], False, [(0, 1), (0, 2)]),
        ([0], [1], True, [(0, 1), (1, 0)]),
        ([0, 1], [0, 1], False, [(0, 1), (1, 0)]),
        ([0, 1], [0, 1], True, [(0, 1), (1, 0)]),
    ],
)
def test_links_have_two_ends_and_come_once(
    near: list[int], far: list[int], both: bool, expected: list[tuple[int, int]]
) -> None:
    """If this fails, a partition leaves a way open, or a rule is set twice and its packets counted anew."""
    assert links_between(near, far, both=both) == tuple(LinkEnds(*ends) for ends in expected)


def _queue(rule: LinkRule) -> LinkQueue:
    queue = LinkQueue(_LINK)
    queue.set_rule(rule)
    return queue


def _sent(queue: LinkQueue, count: int) -> list[bytes]:
    arriving = [packet for number in range(count) for packet in queue.send(bytes([number]), 1.0)]
    return [packet for _, packet in sorted(arriving + queue.overdue(1.0 + HOLD_S), key=lambda one: one[0])]


def test_reordered_packets_arrive_after_those_that_overtake_them_and_none_is_lost() -> None:
    """If this fails, a reordered packet is lost, above all the last one, or is not reordered."""
    rule = LinkRule(reorder_ppm=300_000, seed=1)
    got = _sent(_queue(rule), 100)
    assert sorted(got) == [bytes([number]) for number in range(100)]
    for number in range(100 - MAX_OVERTAKING):
        later = fate(rule, _LINK, number).overtaken_by
        if later:
            behind = [other for other in range(number + 1, number + later + 1) if not fate(rule, _LINK, other)[2]]
            assert all(got.index(bytes([other])) < got.index(bytes([number])) for other in behind)
    assert got != sorted(got)
    assert _sent(_queue(WHOLE), 50) == [bytes([number]) for number in range(50)]


def test_a_rate_spreads_packets_and_refuses_what_no_link_could_hold() -> None:
    """If this fails, a slow link is a fast one, a flood fills the memory, or a link stays slow after a new rule."""
    queue = _queue(LinkRule(rate_kbit=8))
    # 8000 bits per second: a packet of 100 bytes takes 0.1 s.
    times = [queue.send(bytes(100), 0.0)[0][0] for _ in range(3)]
    assert times == pytest.approx([0.1, 0.2, 0.3])
    assert queue.send(bytes(20 * 1024 * 1024), 0.0)
    assert queue.send(b"x", 0.0) == []
    queue.set_rule(LinkRule(rate_kbit=8000))
    assert queue.send(bytes(100), 0.0)[0][0] == pytest.approx(0.0001)


def test_a_new_rule_counts_from_zero_and_frees_what_was_held() -> None:
    """If this fails, the packets after a change depend on what was sent before it, or a held one is lost."""
    queue = _queue(LinkRule(reorder_ppm=MILLION))
    assert queue.send(b"held", 1.0) == []
    queue.set_rule(WHOLE)
    assert [packet for _, packet in queue.send(b"next", 1.0)] == [b"next", b"held"]
    lossy = LinkRule(loss_ppm=500_000, seed=3)
    queue.set_rule(lossy)
    got = [bool(queue.send(b"x", 2.0)) for _ in range(20)]
    assert got == [not fate(lossy, _LINK, number).is_lost for number in range(20)]
    # A packet does not arrive after the cable was cut.
    queue.set_rule(LinkRule(reorder_ppm=MILLION))
    queue.send(b"held", 1.0)
    queue.set_rule(CUT)
    assert queue.overdue(9.0) == []
    assert queue.next_s is None


def test_rules_are_told_in_words() -> None:
    """If this fails, a report does not say what was done to the network."""
    assert CUT.describe() == "cut"
    assert WHOLE.describe() == "whole"
    assert _BAD.describe() == "delay 1 ms, jitter 0.5 ms, loss 0.1, reorder 0.2"
    assert LinkRule(rate_kbit=100).describe() == "rate 100 kbit/s"
