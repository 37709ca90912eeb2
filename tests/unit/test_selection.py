"""Selection by need: the limits, the computed marks and the table."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.spec import Spec
from dist_testing.selection.need import Limits, Need, from_options, has_mark, is_within, table
from tests.support.results import refusal

_SPEC = Spec("", default_backend(), (4,), "fork")
_UNKNOWN = Need("t", "gloo", None, None)


@pytest.mark.parametrize(
    ("given", "inside", "outside"),
    [
        ({"--dist-min-gpus": "2"}, [(1, 2), (9, 9)], [(4, 1), (1, 0)]),
        ({"--dist-max-gpus": "0"}, [(1, 0), (8, 0)], [(1, 1)]),
        ({"--dist-min-world-size": "1"}, [(1, 0)], []),
        ({"--dist-min-world-size": "2", "--dist-max-world-size": "2"}, [(2, 0), (2, 2)], [(1, 0), (3, 3)]),
        ({"--dist-min-gpus": "2", "--dist-max-world-size": "4"}, [(4, 4)], [(5, 5), (4, 0)]),
    ],
)
def test_limits(given: Mapping[str, str], inside: list[tuple[int, int]], outside: list[tuple[int, int]]) -> None:
    """If this fails, a limit is off by one, or one option undoes another."""
    limits = from_options(_SPEC, given)
    assert all(is_within(Need("t", "gloo", *one), limits) for one in inside)
    assert not any(is_within(Need("t", "gloo", *one), limits) for one in outside)
    assert is_within(_UNKNOWN, limits), "the test itself shows what is wrong with it"


@pytest.mark.parametrize(
    "option", ["--dist-min-gpus", "--dist-max-gpus", "--dist-min-world-size", "--dist-max-world-size"]
)
@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5", " 1", "\N{SUPERSCRIPT TWO}", "\u0663", "100000", "9" * 5000, "0"]
)
def test_impossible_limits(option: str, text: str) -> None:
    """If this fails, a mistake is a silent default, or an option that selects every test looks like a selection."""
    if (option, text) == ("--dist-max-gpus", "0"):
        assert from_options(_SPEC, {option: text}).gpus == range(1)
        return
    told = refusal(lambda: from_options(_SPEC, {option: text}))
    assert told.startswith(f"{option}={text}: expected a number from ")


@pytest.mark.parametrize("what", ["gpus", "world-size"])
def test_limits_that_exclude_each_other(what: str) -> None:
    """If this fails, a run without tests is the answer to exchanged numbers."""
    exchanged = {f"--dist-min-{what}": "4", f"--dist-max-{what}": "3"}
    assert f"--dist-min-{what}=4 with --dist-max-{what}=3" in refusal(lambda: from_options(_SPEC, exchanged))
    # Bazel's banner has them.
    assert str(Limits(range(2, 5))) == "2 to 4 GPUs"
    assert str(Limits(range(1), range(2, 3))) == "0 to 0 GPUs, 2 to 2 ranks"


@pytest.mark.parametrize(
    ("mark", "having"),
    [
        ("gpus_0", [False, True, False]),
        ("gpus_ge_1", [True, False, False]),
        ("gpus_ge_2", [True, False, False]),
        ("gpus_ge_3", [False, False, False]),
        ("world_size_ge_4", [False, True, False]),
        ("world_size_ge_5", [False, False, False]),
    ],
)
def test_marks(mark: str, having: list[bool]) -> None:
    """If this fails, `-m` does not mean the same as the tags of Bazel's targets."""
    needs = [Need("t", "nccl", 2, 2), Need("t", "gloo", 4, 0), _UNKNOWN]
    assert [has_mark(need, mark) for need in needs] == having


def test_columns_of_the_table_are_aligned() -> None:
    """If this fails, nobody reads a table of a thousand tests."""
    needs = [Need("a.py::test"), Need("b.py::test_x[1 2]", "nccl", 16, 16, 2), Need("c.py::test", "gloo", None, None)]
    assert list(table(needs)) == [
        "case               backend  ranks  GPUs  nodes",
        "a.py::test         -            1     0      1",
        "b.py::test_x[1 2]  nccl        16    16      2",
        "c.py::test         gloo         ?     ?      1",
    ]
