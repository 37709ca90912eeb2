"""`@pytest.mark.distributed` and its arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
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


class Definition:
    """A test function with marks, closest first, as pytest provides them."""

    nodeid = NODEID
    config = SimpleNamespace(getini=lambda option: "")

    def __init__(self, *marks: dict[str, Any], args: tuple[object, ...] = ()) -> None:
        self._marks = [SimpleNamespace(args=args, kwargs=kwargs) for kwargs in marks]

    def iter_markers(self, name: str) -> Iterator[SimpleNamespace]:
        """Yield the marks of that name."""
        assert name == "distributed"
        yield from self._marks


def read(**arguments: object) -> Distributed:
    """Return the marker with these arguments."""
    marker = read_marker(Definition(arguments))
    assert marker is not None
    return marker


def refusal(definition: Definition) -> str:
    """Return the error text for a wrong marker, and check that it names the test."""
    with pytest.raises(UsageError) as caught:
        read_marker(definition)
    text = str(caught.value)
    assert NODEID in text.partition("\n")[0]
    return text


def test_a_test_without_the_marker_is_a_plain_test() -> None:
    """If this fails, a plain test runs on ranks."""
    assert read_marker(Definition()) is None


def test_the_bare_marker_leaves_everything_to_the_target() -> None:
    """If this fails, one test cannot serve every world size and backend."""
    assert read() == Distributed()


def test_a_test_is_for_backends_with_its_features() -> None:
    """A name in its place would leave out every backend that comes later."""
    marker = read(features=["monitored_barrier", "moves_data"])
    assert marker.is_for(backend_named("gloo"))
    assert not marker.is_for(backend_named("nccl"))
    assert not read(features=["moves_data"], backends=["nccl"]).is_for(backend_named("gloo"))
    assert read().is_for(backend_named("fake"))
    assert "Did you mean 'moves_data'" in refusal(Definition({"features": ["move_data"]}))


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


@pytest.mark.parametrize("name", argument_texts())
def test_none_is_the_default(name: str) -> None:
    """If this fails, a helper that passes its own optional arguments on gets an error."""
    assert read(**{name: None}) == Distributed()


@pytest.mark.parametrize(("value", "sizes"), [(4, (4,)), ([4], (4,)), ((4, 2), (4, 2)), (1, (1,)), (1024, (1024,))])
def test_a_world_size_is_one_number_or_several(value: object, sizes: tuple[int, ...]) -> None:
    """If this fails, world sizes run in another order than the one in the marker, or are refused."""
    assert read(world_size=value).world_size == sizes


@pytest.mark.parametrize(
    "value",
    [0, -1, MAX_WORLD_SIZE + 1, True, 2.0, "4", [], (), [2, 0], [2, "4"], [[2]], {2, 4}, range(2, 4), [2, 2]],
    ids=repr,
)
def test_an_impossible_world_size_is_refused(value: object) -> None:
    """If this fails, ranks start before the wrong value is found, or the error names no test."""
    assert f"world_size = {value!r}" in refusal(Definition({"world_size": value}))


@pytest.mark.parametrize("value", [0.1, 1, 300.5])
def test_a_timeout_is_a_number_of_seconds(value: float) -> None:
    """If this fails, a limit that is a whole number, or a fraction, is refused."""
    assert read(timeout=value).timeout == float(value)


@pytest.mark.parametrize(
    "value", [0, -1, math.nan, math.inf, -math.inf, True, "5", [5], 10**400], ids=lambda value: repr(value)[:12]
)
def test_an_impossible_timeout_is_refused(value: object) -> None:
    """If this fails, a test has no limit, and only Bazel ends its hang."""
    assert f"timeout = {value!r}" in refusal(Definition({"timeout": value}))


@pytest.mark.parametrize("value", [0, 1, "False", "yes"], ids=repr)
def test_init_is_true_or_false(value: object) -> None:
    """If this fails, `init="False"` means true."""
    assert f"init = {value!r}" in refusal(Definition({"init": value}))


@pytest.mark.parametrize("value", ["Fork", "threads", "", 1, ["fork"], True], ids=repr)
def test_an_unknown_isolation_is_refused_with_the_known_ones(value: object) -> None:
    """If this fails, ranks run in another isolation than the user asked for, which may hide the bug under test."""
    text = refusal(Definition({"isolation": value}))
    assert f"isolation = {value!r}" in text
    assert ", ".join(isolation_names()) in text


@pytest.mark.parametrize("value", [[1], 1, "1: -9", {"1": -9}, {1: "-9"}, {-1: 0}, {True: 0}, {1: False}], ids=repr)
def test_impossible_expected_exits_are_refused(value: object) -> None:
    """If this fails, an expectation that can never hold fails every run without saying why."""
    assert f"expected_exits = {value!r}" in refusal(Definition({"expected_exits": value}))


@pytest.mark.parametrize("value", ["gloo", 3, [3], [None], {"gloo": 1}, []], ids=repr)
def test_impossible_backends_are_refused(value: object) -> None:
    """If this fails, `backends="gloo"` means four backends of one letter."""
    assert f"backends = {value!r}" in refusal(Definition({"backends": value}))


def test_an_undeclared_backend_is_refused() -> None:
    """If this fails, no target collects the test, and its absence goes unnoticed."""
    text = refusal(Definition({"backends": ["gloo", "ncll"]}))
    assert "'ncll'" in text
    assert "Did you mean 'nccl'?" in text


@pytest.mark.parametrize("name", ["worldsize", "world", "Init", "device"])
def test_an_unknown_argument_is_refused_with_the_known_ones(name: str) -> None:
    """If this fails, a mistyped argument lets the test run on another world than the user meant."""
    text = refusal(Definition({name: 4}))
    assert f"{name} = 4" in text
    assert "world_size, init, timeout" in text


def test_positional_arguments_are_refused() -> None:
    """If this fails, `distributed(4)` is accepted although its meaning is unclear."""
    assert "(4,)" in refusal(Definition({}, args=(4,)))


def test_the_closest_mark_wins_argument_by_argument() -> None:
    """If this fails, a class's argument overrides the function's, or is lost where the function sets none."""
    marker = read_marker(Definition({"world_size": 2}, {"world_size": 4, "timeout": 9}, {"timeout": 5, "init": False}))
    assert marker == Distributed((2,), False, 9.0)


def test_a_wrong_mark_of_a_class_is_refused_too() -> None:
    """If this fails, a wrong mark of a class stays hidden behind the function's own mark."""
    refusal(Definition({"world_size": 2}, {"worldsize": 4}))


@pytest.mark.parametrize("name", argument_texts())
def test_the_help_describes_every_argument(name: str) -> None:
    """If this fails, `pytest --markers` and docs/reference.md do not tell the type or the default of an argument."""
    assert re.search(rf"\b{name} \([\w\[\], ]+\): .+? \(default: [^()]+\)\.", marker_help())
