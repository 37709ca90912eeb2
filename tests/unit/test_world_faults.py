"""What `world.faults` and planned faults ask the runner for, and what is refused before it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dist_testing import World
from dist_testing.core.engine.hooks import CaseStart
from dist_testing.core.ground.backends import backend_named, default_backend
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import Layout
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from dist_testing.core.ground.record import LinkEnds
from dist_testing.core.ground.spec import Spec
from dist_testing.core.ground.world import NoRunner, WorldSettings
from dist_testing.nodes.fault_desk import FaultDesk
from dist_testing.nodes.faults import (
    FAULT_REQUESTS,
    LINK_ANSWERS,
    Faults,
    LinkFault,
    LinksChanged,
    Request,
    SignalFault,
)
from dist_testing.nodes.links import CUT, WHOLE, LinkRule
from dist_testing.nodes.planned import PlannedFault, check, plan_of, read_fault_plan
from tests.support.results import case_of, refusal, result_of


def _faults(asked: list[Any], layout: Layout) -> Faults:
    """Faults that note what they ask for."""

    def note(request: Request) -> None:
        if isinstance(request, SignalFault):
            asked.append((request.action, list(request.ranks)))
        else:
            asked.append((list(request.links), request.rule))

    return Faults(layout, note, lambda *delay: asked.append(delay))


_BOTH = [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        ("kill(3)", [("kill", [3])]),
        ("stop(0)", [("stop", [0])]),
        ("cont(0)", [("cont", [0])]),
        ("delay(1, 'step', 2)", [(1, "step", 2.0)]),
        ("node_down(1)", [(_BOTH[::-1], CUT), ("power off", [2, 3])]),
        ("partition(0)", [(_BOTH, CUT)]),
        ("partition([0], [1])", [(_BOTH, CUT)]),
        ("partition(0, 1, one_way=True)", [([(0, 1)], CUT)]),
        ("heal()", [(_BOTH, WHOLE)]),
        ("wire(delay_ms=1.5)", [(_BOTH, LinkRule(delay_us=1500))]),
        ("wire(1, loss=0.25, seed=9, one_way=True)", [([(1, 0)], LinkRule(loss_ppm=250_000, seed=9))]),
        ("wire(reorder=1, jitter_ms=2)", [(_BOTH, LinkRule(reorder_ppm=1_000_000, jitter_us=2000))]),
        ("wire(0, 1, rate_kbit=8)", [(_BOTH, LinkRule(rate_kbit=8))]),
    ],
)
def test_a_call_asks_for_what_it_says(call: str, asked: list[Any]) -> None:
    """If this fails, a test of one fault tests another."""
    noted: list[Any] = []
    eval(f"faults.{call}", {"faults": _faults(noted, Layout(4, (0, 0, 1, 1)))})
    assert noted == asked


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("kill(4)", "kill of rank 4 in a world of 4 ranks"),
        ("kill(-1)", "kill of rank -1"),
        ("kill(True)", "kill of rank True"),
        ("stop('1')", "stop of rank '1'"),
        ("cont(None)", "cont of rank None"),
        ("delay(9, 'x', 1)", "delay of rank 9"),
        ("delay(1, '', 1)", "delay at barrier ''"),
        ("delay(1, 5, 1)", "delay at barrier 5"),
        ("delay(1, 'x', -1)", "delay of -1 seconds"),
        ("delay(1, 'x', float('nan'))", "delay of nan seconds"),
        ("delay(1, 'x', 1e9)", "delay of 1000000000.0 seconds"),
        ("node_down(2)", "node_down of node 2 in a world of 2 nodes"),
        ("node_down('node1')", "node_down of node 'node1'"),
        ("partition([0, 7])", "partition of node [0, 7]"),
        ("partition([[]])", "partition of node [[]]"),
        ("partition([])", "partition of node []"),
        ("partition(0, 0)", "partition between nodes [0] and [0]"),
        ("partition([0, 1])", "partition between nodes [0, 1] and []"),
        ("wire(loss=1.5)", "wire with loss = 1.5"),
        ("wire(loss=-0.1)", "wire with loss = -0.1"),
        ("wire(reorder=float('nan'))", "wire with reorder = nan"),
        ("wire(delay_ms=True)", "wire with delay_ms = True"),
        ("wire(jitter_ms=1e9)", "wire with jitter_ms = 1000000000.0"),
        ("wire(rate_kbit=1.5)", "wire with rate_kbit = 1.5"),
        ("wire(seed=-1)", "wire with seed = -1"),
        ("wire(loss='1%')", "wire with loss = '1%'"),
        ("wire(others=1)", "wire with others = 1 and one_way = False, but without nodes"),
        ("wire(one_way=True)", "wire with others = None and one_way = True, but without nodes"),
    ],
)
def test_an_impossible_fault_is_refused_in_three_lines(call: str, said: str) -> None:
    """If this fails, a mistyped fault harms another rank, ends in a traceback, or happens never and in silence."""
    noted: list[Any] = []
    first = refusal(lambda: eval(f"faults.{call}", {"faults": _faults(noted, Layout(4, (0, 0, 1, 1)))})).splitlines()[0]
    assert first == f"world.faults: {said}." or first.startswith(f"world.faults: {said} ")
    assert noted == []


@pytest.mark.parametrize("call", ["node_down(0)", "partition(0)", "heal()", "wire(loss=0.1)"])
def test_a_world_without_nodes_has_no_network_to_break(call: str) -> None:
    """If this fails, a fault of the network that cannot happen looks as if it had."""
    with pytest.raises(UsageError, match=r"without simulated nodes\.\n.*\n.*nodes=2"):
        eval(f"faults.{call}", {"faults": _faults([], Layout(4))})


def test_a_world_that_cannot_have_faults_says_why() -> None:
    """If this fails, a rank of torchrun, or one that is a thread, gets an error without a way out."""
    settings = WorldSettings(backend_named("gloo"), 60.0, init=False)
    refused = NoRunner("The cause.", "The way out.")
    world = World(1, Layout(4), settings, directory=Path(), store_port=0, store_fd=None, runner=refused)
    with pytest.raises(UsageError, match=r"^world\.faults on rank 1 of 4: not possible here\.\n.+\n.+$"):
        assert world.faults


def _case(*calls: str, nodes: int = 2, isolation: str = "fork", pool: str = "") -> Case:
    plan = tuple(PlannedFault(1.0, call) for call in calls)
    settings = {"faults": plan, "nodes": nodes}
    return case_of(4, name="test_x", isolation=isolation, settings=settings, pool=pool)


def test_a_plan_is_in_the_order_of_its_times() -> None:
    """If this fails, a network heals before it is cut."""
    plan = read_fault_plan("test_x", {5: "heal()", 0: "kill(1)", 2.5: "partition(0)"})
    assert [str(planned) for planned in plan] == ["kill(1) after 0 s", "partition(0) after 2.5 s", "heal() after 5 s"]


@pytest.mark.parametrize(
    "value", [[], "kill(1)", {"1": "kill(1)"}, {-1: "kill(1)"}, {1: 5}, {True: "heal()"}, {float("nan"): "heal()"}, 3]
)
def test_what_is_no_plan_is_refused_in_three_lines(value: object) -> None:
    """If this fails, a mistyped plan is a plan without faults, and the test passes."""
    first, _, way_out = refusal(lambda: read_fault_plan("test_x", value)).splitlines()
    assert first == f"test_x: faults = {value!r}."
    assert way_out.startswith("Write faults={")


@pytest.mark.parametrize(
    ("call", "requests"),
    [
        ("kill(3)", (SignalFault("kill", (3,)),)),
        (" wire(0, 1, loss=0.5, one_way=True) ", (LinkFault((LinkEnds(0, 1),), LinkRule(loss_ppm=500_000)),)),
        (
            # First the cable, so that no peer hears of the end of the ranks.
            "node_down(1)",
            (LinkFault((LinkEnds(1, 0), LinkEnds(0, 1)), CUT), SignalFault("power off", (2, 3))),
        ),
    ],
)
def test_a_planned_fault_asks_for_what_a_rank_would_ask_for(call: str, requests: tuple[Any, ...]) -> None:
    """If this fails, a plan and a test with the same fault see different ones."""
    assert [part.request for part in plan_of(_case(call))] == list(requests)


@pytest.mark.parametrize(
    "call",
    ["", "kill", "kill(", "kill(1) or heal()", "open('x')", "faults.kill(1)", "kill(rank)", "kill(1, 2)", "wire(los=1)",
     "delay(1, 'x', 1)", "__init__(1, 2, 3)", "kill(*[1])", "wire(**{})", "(" * 9999, "kill(\0)"],
)  # fmt: skip
def test_only_plain_calls_of_faults_are_planned(call: str) -> None:
    """If this fails, the text of a plan runs as code, or a mistyped call happens never and in silence."""
    first, cause, way_out = refusal(lambda: plan_of(_case(call))).splitlines()
    assert first.startswith("test_x: world.faults: planned fault ")
    assert "node_down" in cause
    assert way_out.startswith("Write")


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (_case("kill(4)"), "kill of rank 4 in a world of 4 ranks"),
        (_case("heal()", nodes=1), "without simulated nodes"),
        (_case("kill(1)", isolation="pool", pool="a"), 'with isolation "pool"'),
        (_case("kill(1)", isolation="thread"), 'with isolation "thread"'),
    ],
)
def test_a_fault_that_the_world_cannot_have_is_refused(case: Case, said: str) -> None:
    """If this fails, ranks start for a fault that cannot happen."""
    assert said in refusal(lambda: check(case, Spec("", default_backend(), (4,), "fork"))).splitlines()[0]


def test_a_fault_of_the_network_that_nothing_carries_out_is_refused() -> None:
    """If this fails, a rank whose fault was on its way when the link process died waits for the limit of its case."""
    records = [mock.MagicMock(rank=rank, **{"channel.fileno.return_value": 0}) for rank in range(3)]
    desk = FaultDesk(mock.Mock(records=records, is_running=True))
    desk.begin_case(CaseStart(case_of(3, settings={"nodes": 3}), 0.0, keeps_ranks=False))
    order = FAULT_REQUESTS.to_wire(LinkFault((LinkEnds(0, 1),), CUT)).decode()
    for rank in range(3):
        desk.on_message(rank, order)
    desk.poll(1.0)
    for text in ("", "world.faults: it has ended.\nWhy.\nWay out."):
        desk.on_answer(LINK_ANSWERS.to_wire(LinksChanged(text)).decode())
    assert [record.answer.call_args.args for record in records] == [("faults", ""), *[("faults", text)] * 2]
    # It tells without an order, too.
    desk.on_answer(LINK_ANSWERS.to_wire(LinksChanged(text)).decode())
    assert desk.explain(result_of([RankOutcome(0, Kind.PASSED)])).notes[-1] == text.replace("\n", " ")


@pytest.mark.parametrize("is_first_part_done", [False, True])
def test_a_planned_fault_of_two_parts_is_told_once(is_first_part_done: bool) -> None:
    """If this fails, a node whose cable was cut before the case ended counts twice, or as untouched."""
    records = [mock.MagicMock(rank=rank, has_begun_test=True, has_ended=False) for rank in range(4)]
    desk = FaultDesk(mock.Mock(records=records, is_running=True))
    desk.begin_case(CaseStart(_case("node_down(1)", "heal()"), 0.0, keeps_ranks=False))
    for now_s in (0.0, 1.0):
        desk.poll(now_s)
    if is_first_part_done:
        desk.on_answer(LINK_ANSWERS.to_wire(LinksChanged("")).decode())
    verdict = desk.explain(result_of([RankOutcome(0, Kind.PASSED)])).verdict
    told = "node_down(1) after 1 s: the case ended during it; heal() after 1 s: the case ended before"
    assert verdict.reason == f"planned faults did not happen: {told}"
