"""Assignment of cases to shards."""

from __future__ import annotations

import math
from collections import Counter

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


def test_cases_without_durations_are_assigned_in_turn() -> None:
    """If this fails, shards have very different numbers of cases."""
    assigned = assign_shards(_cases("a", "b", "c", "d", "e"), 2, {})
    assert assigned == {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}


def test_cases_with_zero_durations_are_assigned_in_turn() -> None:
    """If this fails, timings from a machine with a coarse clock put all cases into the first shard."""
    keys = [f"{number:02}" for number in range(12)]
    assigned = assign_shards(_cases(*keys), 4, dict.fromkeys(keys, 0.0))
    assert Counter(assigned.values()) == {0: 3, 1: 3, 2: 3, 3: 3}


def test_one_long_case_has_a_shard_to_itself() -> None:
    """If this fails, recorded timings do not shorten the run."""
    assigned = assign_shards(
        _cases("long", "a", "b", "c", "d"), 2, {"long": 4.0, "a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
    )
    assert {key for key, shard in assigned.items() if shard == assigned["long"]} == {"long"}


def test_a_case_without_a_duration_counts_as_the_median() -> None:
    """If this fails, a new case counts as free or as endless and spoils the balance."""
    durations = {"a": 10.0, "b": 10.0, "c": 10.0}
    assigned = assign_shards(_cases("a", "b", "c", "new"), 2, durations)
    assert Counter(assigned.values()) == {0: 2, 1: 2}


def test_shard_0_has_a_case_if_there_is_one() -> None:
    """If this fails, the target fails: the first shard must have a case, a later one may be empty."""
    assert assign_shards(_cases("only"), 5, {}) == {"only": 0}


def test_cases_that_share_ranks_stay_together_if_balanced() -> None:
    """If this fails, more shards than necessary start the ranks of a pool."""
    cases = _cases("a1", "a2", "a3", group="A") | _cases("b1", "b2", "b3", group="B")
    assigned = assign_shards(cases, 2, {})
    assert assigned["a1"] == assigned["a2"] == assigned["a3"] != assigned["b1"] == assigned["b2"] == assigned["b3"]


@pytest.mark.parametrize("shards", [2, 3])
def test_cases_that_share_ranks_are_split_if_unbalanced(shards: int) -> None:
    """If this fails, a target with one class runs in one shard while the others are idle."""
    assigned = assign_shards(_cases(*"abcdef", group="A"), shards, {})
    assert Counter(assigned.values()) == dict.fromkeys(range(shards), 6 // shards)


def test_cases_that_share_ranks_stay_together_if_they_take_no_time() -> None:
    """If this fails, a coarse clock splits a worker pool, and each shard starts its ranks."""
    assigned = assign_shards(_cases("a", "b", group="A"), 2, {"a": 0.0, "b": 0.0})
    assert assigned["a"] == assigned["b"]


@pytest.mark.parametrize(("seconds", "shards_of_a"), [(0.575, 2), (0.5, 1)])
def test_a_pool_may_make_the_longest_shard_a_tenth_longer(seconds: float, shards_of_a: int) -> None:
    """If this fails, users wait longer than the documentation says, or pools are split for nothing."""
    cases = _cases("a1", "a2", group="A") | _cases("alone")
    assigned = assign_shards(cases, 3, {"a1": seconds, "a2": seconds, "alone": 1.0})
    assert len({assigned["a1"], assigned["a2"]}) == shards_of_a


def test_an_empty_list_of_cases_is_accepted() -> None:
    """If this fails, a filter that leaves no case ends the run with an error."""
    assert assign_shards({}, 3, {"gone": 1.0}) == {}
