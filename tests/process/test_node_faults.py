"""Faults of the network between simulated nodes, as gloo, sockets and stores see them."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from dist_testing import World
from dist_testing.core.engine.engine import Engine
from dist_testing.core.events.event import WorldEnded
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Status
from dist_testing.core.ground.record import LinkEnds
from dist_testing.core.rank.reporter import RunnerClient
from dist_testing.nodes.faults import LinkFault, ask
from dist_testing.nodes.links import CUT, MAX_OVERTAKING, LinkRule, fate
from dist_testing.nodes.namespaces import node_address
from tests.support.cluster import needs_nodes
from tests.support.worlds import engine_for, run

pytestmark = needs_nodes

# A proof that does not come ends the whole test.
_LIMIT_S = 300.0
# The limit of a group that must give up. Seconds.
_SHORT_S = 2.0
# For what must not arrive. Seconds.
_SILENCE_S = 1.0
# Until the kernel has sent the acknowledgements of all that was sent before. Seconds.
_QUIET_S = 0.3
_PORT = 4567
_Arguments = dict[str, Any]


def _total(world: World, group: dist.ProcessGroup | None = None, count: int = 1) -> None:
    total = torch.full((count,), float(world.rank + 1))
    dist.all_reduce(total, group=group)
    assert set(total.tolist()) == {sum(range(1, world.size + 1))}


def _total_of(group: dist.ProcessGroup, size: int) -> None:
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    assert total.item() == size


def _repeat(world: World, group: dist.ProcessGroup) -> None:
    """Reduce until it fails: what was sent before the cut still arrives."""
    while True:
        _total(world, group)


def _partition_heals(world: World, _: _Arguments) -> None:
    """With its own limit gloo gives up on both sides; what has a longer one goes on after the network has healed."""
    short = dist.new_group(timeout=timedelta(seconds=_SHORT_S))
    _total(world)
    if world.rank == 0:
        world.faults.partition(0)
    # Who gives up second may see the end of the other's connection when the network has healed.
    with pytest.raises(RuntimeError, match=r"[Tt]imed out|[Cc]onnection"):
        _repeat(world, short)
    if world.rank == 0:
        world.faults.heal()
    _total(world)


def _partition_stays(world: World, _: _Arguments) -> None:
    if world.rank == 0:
        world.faults.partition(0, 1)
    while True:
        _total(world)


def _udp(world: World) -> socket.socket:
    """A socket at a known port of the own node, which everything reaches that its links let through."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    receiver.bind((node_address(world.node), _PORT))
    receiver.settimeout(_SILENCE_S)
    # The first packet asks for the other node's address, and the answer must be on its way before anything is cut.
    world.barrier()
    for node in range(world.size):
        if node != world.node:
            receiver.sendto(b"hello", (node_address(node), _PORT))
    for _ in range(world.size - 1):
        assert receiver.recv(99) == b"hello"
    world.barrier()
    return receiver


def _one_way(world: World, _: _Arguments) -> None:
    """Three nodes: only the way from node 0 to node 1 is lost. The network heals, as the store needs both ways."""
    with _udp(world) as receiver:
        if world.rank == 0:
            world.faults.partition(0, 1, one_way=True)
            receiver.sendto(b"from 0", (node_address(1), _PORT))
            receiver.sendto(b"from 0", (node_address(2), _PORT))
            assert receiver.recv(99) == b"from 1"
            world.faults.heal()
        elif world.rank == 1:
            time.sleep(_QUIET_S)
            receiver.sendto(b"from 1", (node_address(0), _PORT))
            with pytest.raises(TimeoutError):
                receiver.recv(99)
        else:
            assert receiver.recv(99) == b"from 0"
        world.barrier()


def _half_open(world: World, _: _Arguments) -> None:
    """The peer of a node that is switched off sees nothing: no end of the stream, no error. That of a rank does."""
    if world.rank == 0:
        with socket.create_server((node_address(0), _PORT)) as server:
            world.store.set("listening", "1")
            peers = [server.accept()[0] for _ in range(2)]
        by_rank = {peer.recv(1): peer for peer in peers}
        world.faults.kill(1)
        assert by_rank[b"1"].recv(1) == b""
        world.faults.node_down(2)
        by_rank[b"2"].settimeout(_SILENCE_S)
        by_rank[b"2"].send(b"are you there?")
        with pytest.raises(TimeoutError):
            by_rank[b"2"].recv(1)
    else:
        world.store.get("listening")
        with socket.create_connection((node_address(0), _PORT)) as connection:
            connection.send(str(world.rank).encode())
            world.store.get("never")


def _store_goes_down(world: World, _: _Arguments) -> None:
    """Groups of the living nodes work. A client of torch's store waits beyond its limit.

    It wants the server to confirm that it has given up, and that answer never comes.
    """
    world.store.set(f"here {world.rank}", "1")
    world.store.wait([f"here {rank}" for rank in range(world.size)])
    if world.rank == 1:
        short = dist.new_group([1, 2], timeout=timedelta(seconds=_SHORT_S), use_local_synchronization=True)
        world.faults.node_down(0)
        _total_of(short, 2)
        wait = threading.Thread(target=world.store.wait, args=(["never"], timedelta(seconds=_SHORT_S)), daemon=True)
        wait.start()
        wait.join(2 * _SHORT_S)
        assert wait.is_alive(), "torch has mended its store: say so in docs/faults.md"
    elif world.rank == 2:
        short = dist.new_group([1, 2], timeout=timedelta(seconds=_SHORT_S), use_local_synchronization=True)
        _total_of(short, 2)
    else:
        world.store.get("never")


def _hears_nothing(world: World, _: _Arguments) -> None:
    """As in a deadlock, each rank waits for the other, and no packet is on its way. The limit of the group ends it."""
    pair = dist.new_group(timeout=timedelta(seconds=3))
    dist.all_reduce(torch.ones(1), group=pair)
    if world.rank == 0:
        world.faults.partition(0, 1)
    with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
        dist.recv(torch.ones(1), 1 - world.rank, group=pair)


def _is_bad(world: World, arguments: _Arguments) -> None:
    """Gloo's results are right whatever a wire does to its packets."""
    if world.rank == 0:
        world.faults.wire(**arguments["wire"])
    world.barrier()
    for _ in range(3):
        _total(world, count=20_000)
    world.barrier()


def _takes_its_time(world: World, _: _Arguments) -> None:
    """Delay and rate: what passes takes at least the time that they say."""
    with _udp(world) as receiver:
        if world.rank == 0:
            world.faults.wire(delay_ms=200)
            _there_and_back(receiver, least_s=0.4)
            world.faults.wire(rate_kbit=100)
            # 20 packets of more than 1000 bytes: 160,000 bits.
            receiver.settimeout(60)
            _there_and_back(receiver, least_s=1.6, packets=[bytes(1000)] * 20)
            world.faults.heal()
        else:
            receiver.settimeout(60)
            for _packet in range(21):
                receiver.recv(2000)
                receiver.sendto(b"", (node_address(0), _PORT))
        world.barrier()


def _there_and_back(receiver: socket.socket, least_s: float, packets: list[bytes] | None = None) -> None:
    began_s = time.monotonic()
    for packet in packets or [b""]:
        receiver.sendto(packet, (node_address(1), _PORT))
    for _ in packets or [b""]:
        receiver.recv(99)
    assert time.monotonic() - began_s >= least_s


_LOSSY: _Arguments = {"loss": 0.3, "seed": 7}
_MIXED: _Arguments = {"reorder": 0.2, "seed": 8}
_PACKETS = 64


def _meets_its_fates(world: World, _: _Arguments) -> None:
    """Exactly those packets are lost, and exactly those overtaken, that the seed names."""
    with _udp(world) as receiver:
        for rule in (_LOSSY, _MIXED):
            world.barrier()
            # Nothing else may be on the link, because each packet has a number.
            time.sleep(_QUIET_S)
            if world.rank == 0:
                world.faults.wire(0, 1, one_way=True, **rule)
                for number in range(_PACKETS):
                    receiver.sendto(bytes([number]), (node_address(1), _PORT))
                time.sleep(_SILENCE_S)
                world.faults.heal()
            else:
                got = _received(receiver)
                assert got == _predicted(rule), (got, _predicted(rule))


def _received(receiver: socket.socket) -> list[int]:
    got = []
    receiver.settimeout(60)
    while True:
        try:
            got.append(receiver.recv(99)[0])
        except TimeoutError:
            return got
        receiver.settimeout(_SILENCE_S)


def _predicted(rule: dict[str, Any]) -> list[int]:
    """The numbers that arrive, in order. A packet that k later ones overtake comes after the k-th of them."""
    millionths = {f"{name}_ppm": round(share * 1e6) for name, share in rule.items() if name != "seed"}
    link_rule = LinkRule(seed=rule["seed"], **millionths)
    places = []
    for number in range(_PACKETS):
        is_lost, _, overtaken_by = fate(link_rule, LinkEnds(0, 1), number)
        if not is_lost:
            places.append((number + overtaken_by, bool(overtaken_by), number))
    assert MAX_OVERTAKING < _PACKETS
    return [number for _, _, number in sorted(places)]


def _loses_its_wire(world: World, _: _Arguments) -> None:
    """A test kills the process that carries the packets: the next fault says so, and the case is still judged."""
    pids: list[Any] = [None] * world.size
    dist.all_gather_object(pids, os.getpid())
    if world.rank == 0:
        world.faults.heal()
        (wire,) = [child for child in psutil.Process(os.getppid()).children() if child.pid not in pids]
        wire.send_signal(signal.SIGKILL)
        while wire.is_running() and wire.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        with pytest.raises(UsageError, match="process that carries the packets"):
            world.faults.heal()


def _asks_for_strangers(world: World, _: _Arguments) -> None:
    if world.rank == 0:
        assert isinstance(world._runner, RunnerClient)
        for link in (LinkEnds(0, 2), LinkEnds(1, 1), LinkEnds(-1, 0)):
            with pytest.raises(UsageError, match=r"world\.faults: links .* in a world of 2 ranks\.\n.*\nName ranks"):
                ask(world._runner, LinkFault((link,), CUT))
    _total(world)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for all cases. At its end no process and no descriptor may be left of their nodes."""
    functions = {name: value for name, value in globals().items() if name.startswith("_") and callable(value)}
    with engine_for(functions) as engine:
        yield engine


def _case(engine: Engine, function: str, nodes: int = 2, **more: Any) -> CaseResult:
    limit_s = more.pop("timeout_s", _LIMIT_S)
    return run(engine, function, world_size=nodes, settings={"nodes": nodes}, timeout_s=limit_s, **more)


def _check_passed(result: CaseResult) -> None:
    assert result.verdict.status is Status.PASSED, (result.verdict, [outcome.text for outcome in result.outcomes])


@pytest.mark.parametrize(
    ("function", "nodes", "exits"),
    [
        ("_partition_heals", 2, {}),
        ("_one_way", 3, {}),
        ("_half_open", 3, {1: -9, 2: -9}),
        ("_store_goes_down", 3, {0: -9}),
        ("_takes_its_time", 2, {}),
        ("_meets_its_fates", 2, {}),
        ("_loses_its_wire", 2, {}),
        ("_asks_for_strangers", 2, {}),
    ],
)
def test_a_world_sees_the_fault_and_nothing_else(
    engine: Engine, function: str, nodes: int, exits: dict[int, int]
) -> None:
    """If this fails, a test of a broken network tests another fault, or none."""
    _check_passed(_case(engine, function, nodes, expected_exits=exits))


def test_faults_of_the_network_are_in_the_record() -> None:
    """If this fails, who reads the events of a run sees a world that waits, and not that a node was switched off."""
    told: list[WorldEnded] = []
    with engine_for({"_half_open": _half_open}) as engine:
        engine.events.subscribe(told.append, WorldEnded, name="the test")
        _check_passed(_case(engine, "_half_open", 3, expected_exits={1: -9, 2: -9}))
    both = {LinkEnds(*ends) for ends in ((2, 0), (2, 1), (0, 2), (1, 2))}
    assert [(event.action, event.ranks, set(event.links), event.rule, event.by) for event in told[0].record.faults] == [
        ("kill", (1,), set(), "", 0),
        ("links", (), both, "cut", 0),
        ("power off", (2,), set(), "", 0),
    ]


def test_gloo_computes_the_same_over_a_bad_wire(engine: Engine) -> None:
    """If this fails, packets are damaged on their way, or a slow link counts as a deadlock."""
    wire = {"delay_ms": 2, "jitter_ms": 1, "loss": 0.02, "reorder": 0.1, "rate_kbit": 100_000, "seed": 2}
    _check_passed(_case(engine, "_is_bad", arguments={"wire": wire}))


def test_ranks_that_hear_nothing_are_no_proven_hang(engine: Engine) -> None:
    """If this fails, a test that handles the limit of a group never gets that far."""
    _check_passed(_case(engine, "_hears_nothing"))


def test_a_partition_that_stays_ends_at_the_limit_and_is_told(engine: Engine) -> None:
    """If this fails, a cut cable counts as a proven deadlock, or the report does not say that it was cut."""
    result = _case(engine, "_partition_stays", timeout_s=6.0)
    assert result.verdict.status is Status.FAILED
    assert not result.verdict.is_proven
    assert {outcome.collateral for outcome in result.outcomes} == {"late"}, result.outcomes
    assert any("links between nodes 0->1, 1->0: cut" in note for note in result.notes), result.notes
