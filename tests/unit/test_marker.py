"""`@pytest.mark.distributed` and its arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dist_testing.core.ground.backends import backend_named
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import MAX_WORLD_SIZE
from dist_testing.core.launch.isolation import POOL, isolation_names
from dist_testing.core.pytest.marker import Distributed, read_marker
from dist_testing.core.pytest.options import argument_texts, marker_help

NODEID = "tests/test_a.py::test_b"
Marks = Sequence[dict[str, Any]]


class Definition:
    """A test function with marks, closest first, and those of its parameter."""

    nodeid = NODEID
    config = SimpleNamespace(getini=lambda option: "")

    def __init__(self, *marks: dict[str, Any], args: tuple[object, ...] = (), of_parameter: Marks = ()) -> None:
        self._nodes = [SimpleNamespace(own_markers=[_mark(kwargs, args)]) for kwargs in reversed(marks)]
        self.callspec = SimpleNamespace(marks=[_mark(kwargs, args) for kwargs in of_parameter])

    def listchain(self) -> list[SimpleNamespace]:
        """Return what pytest has collected, the function last: each has a mark."""
        return self._nodes


def _mark(kwargs: dict[str, Any], args: tuple[object, ...]) -> SimpleNamespace:
    return SimpleNamespace(name="distributed", args=args, kwargs=kwargs)


def read(**arguments: object) -> Distributed:
    """Return the marker with these arguments."""
    marker = read_marker(Definition(arguments))
    assert marker is not None
    return marker


def refused(definition: Definition) -> str:
    """Return the error text for a wrong marker, and check that it names the test."""
    with pytest.raises(UsageError) as caught:
        read_marker(definition)
    text = str(caught.value)
    assert NODEID in text.partition("\n")[0]
    return text


def test_a_test_without_the_marker_is_a_plain_test() -> None:
    """If this fails, a plain test runs on ranks."""
    assert read_marker(Definition()) is None


def test_a_test_is_for_backends_with_its_features() -> None:
    """A name in its place would leave out every backend that comes later."""
    marker = read(features=["monitored_barrier", "moves_data"])
    assert marker.is_for(backend_named("gloo"))
    assert not marker.is_for(backend_named("nccl"))
    assert not read(features=["moves_data"], backends=["nccl"]).is_for(backend_named("gloo"))
    assert read().is_for(backend_named("fake"))


def test_every_argument_is_read() -> None:
    """If this fails, an argument is accepted and ignored."""
    marker = read(
        world_size=[2, 4],
        init=False,
        timeout=5,
        isolation=POOL.name,
        expected_exits={1: -9, 0: 3},
        backends=["gloo"],
    )
    assert marker == Distributed((2, 4), False, 5.0, POOL.name, {1: -9, 0: 3}, ("gloo",))
    assert (read(timeout=0.1).timeout, read(timeout=1).timeout) == (0.1, 1.0)


@pytest.mark.parametrize("name", argument_texts())
def test_none_is_the_default(name: str) -> None:
    """If this fails, a helper that passes its own optional arguments on gets an error."""
    assert read(**{name: None}) == read() == Distributed()


@pytest.mark.parametrize(("value", "sizes"), [(4, (4,)), ([4], (4,)), ((4, 2), (4, 2)), (1, (1,)), (1024, (1024,))])
def test_a_world_size_is_one_number_or_several(value: object, sizes: tuple[int, ...]) -> None:
    """If this fails, world sizes run in another order than the one in the marker, or are refused."""
    assert read(world_size=value).world_size == sizes


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "world_size",
            [0, -1, MAX_WORLD_SIZE + 1, True, 2.0, "4", [], (), [2, 0], [2, "4"], [[2]], {2, 4}, range(2, 4), [2, 2]],
        ),
        # Without a limit, only Bazel ends a hang.
        ("timeout", [0, -1, math.nan, math.inf, -math.inf, True, "5", [5], 10**400]),
        # `init="False"` would mean true.
        ("init", [0, 1, "False", "yes"]),
        ("strict_collectives", [0, 1, "yes"]),
        ("isolation", ["Fork", "threads", "", 1, ["fork"], True]),
        ("expected_exits", [[1], 1, "1: -9", {"1": -9}, {1: "-9"}, {-1: 0}, {True: 0}, {1: False}, {1: 256}, {1: -65}]),
        # `backends="gloo"` would mean four backends of one letter.
        ("backends", ["gloo", 3, [3], [None], {"gloo": 1}, []]),
        # Mistyped arguments, which would leave the defaults in force.
        *((name, [4]) for name in ("worldsize", "world", "Init", "device")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_impossible_argument_is_refused_with_its_value(name: str, values: list[object]) -> None:
    """If this fails, ranks start on another world than the user meant, or the error names no test."""
    for value in values:
        assert f"{name} = {value!r}" in refused(Definition({name: value}))


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        (Definition({"isolation": "threads"}), ", ".join(isolation_names())),
        # No target would collect the test, and its absence goes unnoticed.
        (Definition({"backends": ["gloo", "ncll"]}), "Did you mean 'nccl'?"),
        (Definition({"features": ["move_data"]}), "Did you mean 'moves_data'"),
        (Definition({"worldsize": 4}), "world_size, init, timeout"),
        (Definition({}, args=(4,)), "(4,)"),
        # Of a class, behind the function's own mark.
        (Definition({"world_size": 2}, {"worldsize": 4}), "worldsize"),
    ],
)
def test_a_refusal_helps(definition: Definition, said: str) -> None:
    """If this fails, the user does not learn what would be right, or which mark is wrong."""
    assert said in refused(definition)


def test_the_closest_mark_wins_argument_by_argument() -> None:
    """If this fails, a class's argument overrides the function's, or is lost where the function sets none."""
    marker = read_marker(Definition({"world_size": 2}, {"world_size": 4, "timeout": 9}, {"timeout": 5, "init": False}))
    assert marker == Distributed((2,), False, 9.0)
    assert read_marker(Definition({"timeout": 9, "init": False}, of_parameter=[{"timeout": 5}])) == Distributed(
        init=False, timeout=5
    )


@pytest.mark.parametrize("name", argument_texts())
def test_the_help_describes_every_argument(name: str) -> None:
    """If this fails, `pytest --markers` and docs/reference.md do not tell the type or the default of an argument."""
    assert re.search(rf"\b{name} \([\w\[\], ]+\): .+? \(default: [^()]+\)\.", marker_help())
