"""A target that is green although no rank, or no test at all, ran says so first in its log, and to Bazel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Ended, Target, write_file
from tests.support.starter import Starter

_PLAIN = """
    import unittest

    import pytest

    def test_plain():
        pass

    class PlainTest(unittest.TestCase):
        def test_method(self):
            pass
"""

# The ways in which a test can be distributed; here each one is only collected and never run.
_ON_RANKS = {
    "marker": """
        @pytest.mark.distributed
        def test_ranks(world):
            pass
    """,
    "threads": """
        @pytest.mark.distributed(isolation="thread")
        def test_ranks(world):
            pass
    """,
    "skipped": """
        @pytest.mark.skip(reason="not today")
        @pytest.mark.distributed
        def test_ranks(world):
            pass
    """,
    "process class": """
        class RanksTest(dist_testing.MultiProcessTestCase):
            def test_ranks(self):
                pass
    """,
    "continuous class": """
        class RanksTest(dist_testing.MultiProcContinuousTest):
            def test_ranks(self):
                pass
    """,
    "thread class": """
        class RanksTest(dist_testing.MultiThreadedTestCase):
            def test_ranks(self):
                pass
    """,
    "decorated method": """
        class RanksTest(unittest.TestCase):
            @dist_testing.spawn_threads_and_init_comms(world_size=2)
            def test_ranks(self):
                pass
    """,
    "decorated in a base class": """
        import os
        import sys

        sys.path.append(os.path.dirname(__file__))

        from base import Base

        class RanksTest(Base):
            pass
    """,
    "decorator in a test": """
        def test_ranks():
            dist_testing.spawn_threads_and_init_comms(world_size=2)(list)()
    """,
}

_BASE = """
    import unittest

    from dist_testing import spawn_threads_and_init_comms

    class Base(unittest.TestCase):
        @spawn_threads_and_init_comms(world_size=2)
        def test_ranks(self):
            pass
"""

_HEAD = "dist_testing: //pkg:cases_gloo: gloo, world size 2, fork"
_FIRST_OF_TWO = {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "0"}
_SECOND_OF_TWO = {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "1"}


def _first_line(ended: Ended) -> str:
    return ended.log.partition("\n")[0]


def _warnings(target: Target) -> str:
    return target.warnings_file.read_text() if target.warnings_file.exists() else ""


def _mixed(tmp_path: Path, kind: str) -> Target:
    """Return a target with plain tests, and one distributed test in a file of its own."""
    head = "import unittest\n\nimport pytest\n\nimport dist_testing\n\n"
    target = Target(tmp_path, {"test_plain.py": _PLAIN}, spec={"srcs": ["//pkg:test_plain.py", "//pkg:test_ranks.py"]})
    path = write_file(target.package, "test_ranks.py", _ON_RANKS[kind])
    path.write_text(head + path.read_text())
    write_file(target.package, "base.py", _BASE)
    return target


@pytest.mark.parametrize("wanted", ["nonesuch", "test_print[", "test_with[a b]", "theirs~/pkg/test_x.py::test_y"])
@pytest.mark.parametrize("env", [{}, _FIRST_OF_TWO], ids=["whole", "shard"])
def test_filter_that_matches_nothing_is_reported(
    starter: Starter, tmp_path: Path, wanted: str, env: dict[str, str]
) -> None:
    """If this fails, a misspelt name tests nothing and goes unnoticed.

    It passes, because a filter goes to all targets.
    """
    target = Target(tmp_path, {"test_cases.py": _PLAIN})
    ended = target.run(starter, env={"TESTBRIDGE_TEST_ONLY": wanted, **env})
    assert ended.code == 0, ended.log
    assert _first_line(ended).endswith(f": NOTHING RAN: no case matches --test_filter={wanted!r}")
    assert _warnings(target) == f"nothing of //pkg:cases_gloo ran: no case matches --test_filter={wanted!r}\n"


def test_filter_that_matches_cases_of_another_shard_is_not_reported(starter: Starter, tmp_path: Path) -> None:
    """If this fails, most shards report a filter for one case as misspelt."""
    target = Target(tmp_path, {"test_cases.py": _PLAIN})
    ended = target.run(starter, env={"TESTBRIDGE_TEST_ONLY": "test_plain", **_SECOND_OF_TWO})
    assert ended.code == 0, ended.log
    assert target.xml() == {}
    assert "NOTHING RAN" not in ended.log
    assert not target.warnings_file.exists()


def test_second_shard_leaves_the_warning_to_the_first(starter: Starter, tmp_path: Path) -> None:
    """If this fails, Bazel prints the same warning for each of fifty shards."""
    target = Target(tmp_path, {"test_cases.py": _PLAIN})
    ended = target.run(starter, env={"TESTBRIDGE_TEST_ONLY": "nonesuch", **_SECOND_OF_TWO})
    assert ended.code == 0, ended.log
    assert "NOTHING RAN" in _first_line(ended)
    assert not target.warnings_file.exists()


def test_filter_is_not_reported_if_a_file_skips_itself(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a filter is reported as misspelt although its case may be in the file that was not read."""
    target = Target(tmp_path, {"test_cases.py": "import pytest\n\npytest.skip('not here', allow_module_level=True)\n"})
    ended = target.run(starter, env={"TESTBRIDGE_TEST_ONLY": "test_x", **_SECOND_OF_TWO})
    assert ended.code == 0, ended.log
    assert "NOTHING RAN" not in ended.log


@pytest.mark.parametrize("options", [(), ("-s",)], ids=["captured", "not captured"])
def test_target_without_a_distributed_case_is_reported(
    starter: Starter, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """If this fails, a test whose marker was forgotten passes once in the runner, without any rank."""
    target = Target(tmp_path, {"test_cases.py": _PLAIN})
    ended = target.run(starter, *options)
    assert ended.code == 0, ended.log
    assert _first_line(ended) == (_HEAD if options else f"{_HEAD}: NO CASE RAN ON RANKS")
    first, *rest = _warnings(target).splitlines()
    assert first == "//pkg:cases_gloo: no case ran on ranks: none is distributed for backend gloo."
    assert "@pytest.mark.distributed" in rest[0]
    assert "py_test" in rest[1]
    assert f"WARNING: {first}" in ended.log


def test_forgotten_marker_is_reported_in_every_part_of_the_target(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a filter, a shard or marked tests for other backends hide a forgotten marker."""
    source = _PLAIN + '\n\n    @pytest.mark.distributed(backends=["nccl"])\n    def test_other(world):\n        pass\n'
    target = Target(tmp_path, {"test_cases.py": source})
    for env in ({"TESTBRIDGE_TEST_ONLY": "test_plain"}, _FIRST_OF_TWO):
        ended = target.run(starter, env=env)
        assert ended.code == 0, ended.log
        assert _first_line(ended).endswith(": NO CASE RAN ON RANKS")
        assert "none is distributed for backend gloo" in _warnings(target)
        target.warnings_file.unlink()


@pytest.mark.parametrize("kind", _ON_RANKS)
def test_plain_tests_beside_a_distributed_one_cause_no_warning(starter: Starter, tmp_path: Path, kind: str) -> None:
    """If this fails, a filter, a shard or a skip that leaves only plain tests causes a false warning."""
    target = _mixed(tmp_path, kind)
    ended = target.run(starter, env={"TESTBRIDGE_TEST_ONLY": "test_plain.py"})
    assert ended.code == 0, ended.log
    assert [key.rpartition(".")[2] for key in target.xml_keys()] == ["test_plain", "test_method"]
    assert _first_line(ended) == _HEAD
    assert not target.warnings_file.exists()


def test_shard_of_plain_tests_causes_no_warning(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a shard warns about missing ranks although the distributed tests are in another shard."""
    target = _mixed(tmp_path, "marker")
    ran: list[str] = []
    for index in range(3):
        ended = target.run(starter, env={"TEST_TOTAL_SHARDS": "3", "TEST_SHARD_INDEX": str(index)})
        assert ended.code == 0, ended.log
        ran += target.xml()
        assert len(target.xml()) == 1
        assert "NO CASE" not in ended.log
        assert not target.warnings_file.exists()
    assert sorted(ran) == ["test_method", "test_plain", "test_ranks"]


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import pytest\n\npytest.skip('not here', allow_module_level=True)\n", 0),
        ("import nothing_of_this_name\n", pytest.ExitCode.INTERRUPTED),
    ],
    ids=["skips itself", "broken"],
)
def test_missing_ranks_are_not_reported_if_a_file_was_not_read(
    starter: Starter, tmp_path: Path, source: str, code: int
) -> None:
    """If this fails, a target warns about missing ranks although the unread file may contain distributed cases."""
    target = Target(tmp_path, {"test_cases.py": _PLAIN, "test_ranks.py": source})
    ended = target.run(starter)
    assert ended.code == code, ended.log
    assert "NO CASE" not in ended.log
    assert not target.warnings_file.exists()


def test_skips_are_reported_before_missing_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the first line mentions missing ranks instead of the more important fact that nothing ran."""
    target = Target(
        tmp_path, {"test_cases.py": "import pytest\n\n@pytest.mark.skip('today')\ndef test_x():\n    pass\n"}
    )
    ended = target.run(starter)
    assert ended.code == 0, ended.log
    assert _first_line(ended) == f"{_HEAD}: EVERY CASE WAS SKIPPED: today"
    assert "no case ran" not in _warnings(target)
