"""Dealing cases out to shards."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_testing.bazel.sharding import ShardCase, assign_shards

_NAMES = st.text("abc[]:.", min_size=1, max_size=6)
_CASES = st.dictionaries(_NAMES, st.sampled_from(["", "", "A", "B"]), max_size=20).map(
    lambda groups: [ShardCase(key, group) for key, group in groups.items()]
)
_DURATIONS = st.dictionaries(_NAMES, st.floats(0, 100), max_size=20)


def _cases(*keys: str, group: str = "") -> list[ShardCase]:
    return [ShardCase(key, group) for key in keys]


@given(_CASES, st.integers(1, 8), _DURATIONS, st.randoms())
def test_every_case_is_in_one_shard_whatever_the_order(
    cases: list[ShardCase], shards: int, durations: dict[str, float], random: object
) -> None:
    """Each shard deals for itself: if two disagreed, a case would run in none of them, and nobody would know."""
    dealt = assign_shards(cases, shards, durations)
    assert set(dealt) == {case.key for case in cases}
    assert set(dealt.values()) <= set(range(shards))
    shuffled = list(cases)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis' own Random
    assert assign_shards(shuffled, shards, durations) == dealt


@given(st.dictionaries(_NAMES, st.tuples(st.sampled_from(["", "A", "B"]), st.floats(0, 100))), st.integers(1, 8))
def test_no_shard_is_much_longer_than_it_must_be(cases: dict[str, tuple[str, float]], shards: int) -> None:
    """The longest shard is what a user waits for."""
    durations = {key: seconds for key, (_, seconds) in cases.items()}
    dealt = assign_shards([ShardCase(key, group) for key, (group, _) in cases.items()], shards, durations)
    loads = [math.fsum(durations[key] for key in dealt if dealt[key] == shard) for shard in range(shards)]
    # Of dealing to whoever has least to do: a fair share, and at most one case more. A tenth for keeping groups.
    bound = math.fsum(durations.values()) / shards + max(durations.values(), default=0.0)
    assert max(loads) <= 1.1 * bound + 1e-6


def test_without_durations_they_are_dealt_in_turn() -> None:
    """The numbers of cases differ by one at most."""
    dealt = assign_shards(_cases("a", "b", "c", "d", "e"), 2, {})
    assert dealt == {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}


def test_cases_that_take_no_time_are_dealt_in_turn() -> None:
    """A file of timings from a machine with a coarse clock must not put everything into the first shard."""
    keys = [f"{number:02}" for number in range(12)]
    dealt = assign_shards(_cases(*keys), 4, dict.fromkeys(keys, 0.0))
    assert Counter(dealt.values()) == {0: 3, 1: 3, 2: 3, 3: 3}


def test_one_long_case_has_a_shard_to_itself() -> None:
    """That is what the timings are recorded for."""
    dealt = assign_shards(_cases("long", "a", "b", "c", "d"), 2, {"long": 4.0, "a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0})
    assert {key for key, shard in dealt.items() if shard == dealt["long"]} == {"long"}


def test_a_case_without_a_duration_counts_as_the_median() -> None:
    """A new case is in no file yet; as free, or as endless, it would spoil the balance."""
    durations = {"a": 10.0, "b": 10.0, "c": 10.0}
    dealt = assign_shards(_cases("a", "b", "c", "new"), 2, durations)
    assert Counter(dealt.values()) == {0: 2, 1: 2}


def test_shard_0_has_a_case_if_there_is_one() -> None:
    """A later shard without cases is a pass, the first is not."""
    assert assign_shards(_cases("only"), 5, {}) == {"only": 0}


def test_cases_that_share_ranks_stay_together_if_the_balance_allows_it() -> None:
    """Each shard that gets one of them has to start the ranks."""
    cases = [*_cases("a1", "a2", "a3", group="A"), *_cases("b1", "b2", "b3", group="B")]
    dealt = assign_shards(cases, 2, {})
    assert dealt["a1"] == dealt["a2"] == dealt["a3"] != dealt["b1"] == dealt["b2"] == dealt["b3"]


@pytest.mark.parametrize("shards", [2, 3])
def test_cases_that_share_ranks_are_split_rather_than_wait_for_one_shard(shards: int) -> None:
    """A target that is one class would run in one shard, and the others would be idle."""
    dealt = assign_shards(_cases(*"abcdef", group="A"), shards, {})
    assert Counter(dealt.values()) == dict.fromkeys(range(shards), 6 // shards)


def test_no_cases_are_no_problem() -> None:
    """A filter may have left none."""
    assert assign_shards([], 3, {"gone": 1.0}) == {}
