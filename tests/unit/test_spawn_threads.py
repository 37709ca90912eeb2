"""`spawn_threads_and_init_comms`: its arguments, and how pytest knows its tests."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from dist_testing import spawn_threads_and_init_comms
from dist_testing.core.pytest.marked_items import starts_ranks
from tests.support.results import refusal


async def _waits() -> None: ...


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("func", _waits),
        ("world_size", 0),
        ("world_size", 1025),
        ("world_size", "four"),
        ("timeout", 0),
        ("timeout", True),
        ("func", 7),
    ],
)
def test_impossible_argument_is_refused_when_the_function_is_decorated(name: str, value: Any) -> None:
    """If this fails, a wrong argument is a hang, or a world of another size, or an async def passes without a run."""
    assert f"{name} = {value!r}" in refusal(lambda: spawn_threads_and_init_comms(**{name: value}))


def test_a_decorated_function_is_called_as_before() -> None:
    """If this fails, all decorated tests have one name, or unittest reports an error and not a failure."""

    class Seconds(float):
        """A limit that numpy has computed: numpy.float64 is one."""

    @spawn_threads_and_init_comms(world_size=2, timeout=Seconds(60.0))
    def original() -> None:
        """The original's docstring."""
        raise ValueError("planted")

    assert (original.__name__, original.__doc__) == ("original", "The original's docstring.")
    # `assertRaises(RuntimeError)` holds, too.
    with pytest.raises(RuntimeError, match="planted") as caught:
        original()
    assert isinstance(caught.value, AssertionError)


def test_threads_of_a_test_are_known_before_it_runs(tmp_path: Path) -> None:
    """If this fails, a target with thread ranks is reported as one without ranks, or the reverse."""

    def plain() -> None:
        pass

    file = tmp_path / "test_x.py"
    file.write_text("def test_plain(): pass")
    assert not starts_ranks(plain, file)
    assert not starts_ranks(None, tmp_path / "no file")
    for text, expected in (
        ("dist_testing.run(f)", True),
        ("from dist_testing import World, run", True),
        ("dist_testing.run_tests()", False),
        ("subprocess.run(['a'])", False),
    ):
        named = tmp_path / f"test_{len(text)}.py"
        named.write_text(text, encoding="utf-8")
        assert starts_ranks(plain, named) is expected, text
    decorated = spawn_threads_and_init_comms(world_size=2)(plain)
    assert starts_ranks(decorated, file)
    assert starts_ranks(functools.wraps(decorated)(lambda: None), file)
    nested = tmp_path / "test_y.py"
    nested.write_text("def test_nested():\n    dist_testing.spawn_threads_and_init_comms(list)()")
    assert starts_ranks(plain, nested)
