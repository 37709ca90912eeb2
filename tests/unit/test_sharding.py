"""Assignment of cases to shards."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_testing.core.bazel.sharding import assign_shards

_NAMES = st.text("abc[]:.", min_size=1, max_size=6)
_CASES = st.dictionaries(_NAMES, st.sampled_from(["", "", "A", "B"]), max_size=20)
_DURATIONS = st.dictionaries(_NAMES, st.floats(0, 100), max_size=20)


def _cases(*keys: str, group: str = "") -> dict[str, str]:
    return dict.fromkeys(keys, group)


@given(_CASES, st.integers(1, 8), _DURATIONS, st.randoms())
def test_every_case_is_in_one_shard_whatever_the_order(
    cases: dict[str, str], shards: int, durations: dict[str, float], random: object
) -> None:
    """If this fails, two shards assign cases differently, and a case silently runs in none of them."""
    assigned = assign_shards(cases, shards, durations)
    assert set(assigned) == set(cases)
    assert set(assigned.values()) <= set(range(shards))
    shuffled = list(cases.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis' own Random
    assert assign_shards(dict(shuffled), shards, durations) == assigned


@given(st.dictionaries(_NAMES, st.tuples(st.sampled_from(["", "A", "B"]), st.floats(0, 100))), st.integers(1, 8))
def test_no_shard_is_much_longer_than_it_must_be(cases: dict[str, tuple[str, float]], shards: int) -> None:
    """If this fails, users wait longer than necessary for the longest shard."""
    durations = {key: seconds for key, (_, seconds) in cases.items()}
    assigned = assign_shards({key: group for key, (group, _) in cases.items()}, shards, durations)
    loads = [math.fsum(durations[key] for key in assigned if assigned[key] == shard) for shard in range(shards)]
    # The bound of giving each case to the least loaded shard: a fair share and at most one case more.
    # A tenth is added for keeping groups together.
    bound = math.fsum(durations.values()) / shards + max(durations.values(), default=0.0)
    assert max(loads) <= 1.1 * bound + 1e-6


_TWELVE = [f"{number:02}" for number in range(12)]


@pytest.mark.parametrize(
    ("cases", "shards", "durations", "expected"),
    [
        pytest.param(_cases(*"abcde"), 2, {}, [0, 1, 0, 1, 0], id="in turn without durations"),
        # Timings from a machine with a coarse clock.
        pytest.param(_cases(*_TWELVE), 4, dict.fromkeys(_TWELVE, 0.0), [0, 1, 2, 3] * 3, id="in turn with zeros"),
        pytest.param(_cases(*"abcde"), 2, {"a": 4.0, **dict.fromkeys("bcde", 1.0)}, [0, 1, 1, 1, 1], id="a long case"),
        pytest.param(_cases(*"abcd"), 2, dict.fromkeys("abc", 10.0), [0, 1, 0, 1], id="a new one counts as the median"),
        # The first shard must have a case, a later one may be empty.
        pytest.param(_cases("only"), 5, {}, [0], id="one case"),
        pytest.param({}, 3, {"gone": 1.0}, [], id="a filter leaves none"),
        # More shards than necessary would start the ranks of a pool; one shard would leave the others idle.
        pytest.param(_cases(*"abc", group="A") | _cases(*"def", group="B"), 2, {}, [0, 0, 0, 1, 1, 1], id="two pools"),
        pytest.param(_cases(*"abcdef", group="A"), 2, {}, [0, 1] * 3, id="a pool in 2 shards"),
        pytest.param(_cases(*"abcdef", group="A"), 3, {}, [0, 1, 2] * 2, id="a pool in 3 shards"),
        pytest.param(_cases("a", "b", group="A"), 2, {"a": 0.0, "b": 0.0}, [0, 0], id="a pool that takes no time"),
    ],
)
def test_shards_take_as_long_as_each_other(
    cases: dict[str, str], shards: int, durations: dict[str, float], expected: list[int]
) -> None:
    """If this fails, recorded timings do not shorten the run, or the first shard has no case and fails the target."""
    assigned = assign_shards(cases, shards, durations)
    assert [assigned[case] for case in cases] == expected
    assert len(assigned) == len(cases)


@pytest.mark.parametrize(("seconds", "shards_of_a"), [(0.575, 2), (0.5, 1)])
def test_a_pool_may_make_the_longest_shard_a_tenth_longer(seconds: float, shards_of_a: int) -> None:
    """If this fails, users wait longer than the documentation says, or pools are split for nothing."""
    cases = _cases("a1", "a2", group="A") | _cases("alone")
    assigned = assign_shards(cases, 3, {"a1": seconds, "a2": seconds, "alone": 1.0})
    assert len({assigned["a1"], assigned["a2"]}) == shards_of_a
