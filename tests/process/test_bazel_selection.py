"""Which cases of a target run: `--test_filter`, names as users copy them and pytest's expressions; and shards."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from tests.support.children import Bazel, Ended, Target, write_file
from tests.support.starter import Starter

_CASES = """
    import unittest
    import pytest

    def test_one(): ...

    def test_one_more(): ...

    @pytest.mark.parametrize("value", ["a b", "c::d", "(e)"])
    def test_with(value): ...

    class PlainTest(unittest.TestCase):
        def test_one(self): ...

        def test_two(self): ...
"""


@pytest.mark.parametrize(
    ("wanted", "ran"),
    [
        ("test_one_more", ["test_one_more"]),
        # A name alone means that name in any class, and not all names that begin with it.
        ("test_one", ["test_one", "PlainTest.test_one"]),
        ("PlainTest.test_one", ["PlainTest.test_one"]),
        ("PlainTest", ["PlainTest.test_one", "PlainTest.test_two"]),
        ("pkg.test_cases.PlainTest.test_two", ["PlainTest.test_two"]),
        ("pkg/test_cases.py::test_one", ["test_one"]),
        ("test_with", ["test_with[a b]", "test_with[c::d]", "test_with[(e)]"]),
        ("test_with[c::d]", ["test_with[c::d]"]),
        ("test_with[(e)]", ["test_with[(e)]"]),
        # pytest's expressions.
        ("one_mo or two", ["test_one_more", "PlainTest.test_two"]),
    ],
)
def test_filter_runs_the_cases_that_it_names(bazel: Bazel, wanted: str, ran: list[str]) -> None:
    """If this fails, a filter copied from a report runs other cases or none, and a failure looks repaired."""
    target, _ = bazel.run(_CASES, env={"TESTBRIDGE_TEST_ONLY": wanted})
    assert [name.removeprefix("pkg.test_cases.") for name in target.xml_keys()] == ran


def test_filter_is_added_to_the_targets_own_selection(bazel: Bazel) -> None:
    """If this fails, a filter runs cases that the BUILD file's `args` leave out, or `args` replace the filter."""
    target, _ = bazel.run(_CASES, "-k", "not two", env={"TESTBRIDGE_TEST_ONLY": "one_more or two"})
    assert target.xml_keys() == ["pkg.test_cases.test_one_more"]


def test_filter_that_is_not_an_expression_is_an_error(bazel: Bazel) -> None:
    """If this fails, an invalid expression passes like a filter that matches nothing."""
    _, ended = bazel.run(_CASES, code=pytest.ExitCode.USAGE_ERROR, env={"TESTBRIDGE_TEST_ONLY": "test_one and ("})
    lines = ended.log.splitlines()
    (position,) = (number for number, line in enumerate(lines) if line.startswith("ERROR: "))
    error, cause, way_out = lines[position : position + 3]
    assert error.startswith("ERROR: --test_filter: test_one and (: at column ")
    assert cause == "It names no case of //pkg:cases_gloo, and pytest cannot parse it as an expression."
    assert way_out == "Write a name as reports do, or parts of names joined by `and`, `or` and `not`."
    assert "Traceback" not in ended.log


def test_command_of_a_report_runs_only_that_case(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the command copied from a report passes, because it runs another case or none."""
    source = """
        import pytest

        class TestOne:
            @pytest.mark.distributed(world_size=1)
            @pytest.mark.parametrize("value", ["c::d"])
            def test_fails(self, world, value):
                raise ValueError("planted")

        class TestOther:
            def test_fails(self): ...
    """
    target = Target(tmp_path, {"test_cases.py": source})
    ended = target.run(starter)
    (command,) = re.findall(r"^This case alone: (.*)$", ended.log, re.MULTILINE)
    wanted = shlex.split(command)[-1].removeprefix("--test_filter=")
    ended = target.run(starter, env={"TESTBRIDGE_TEST_ONLY": wanted})
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert target.xml_keys() == ["pkg.test_cases.TestOne.test_fails[c::d]"]


_MANY = """
    import pytest

    @pytest.mark.distributed
    @pytest.mark.parametrize("number", {"one", "two", "three", "four", "five", "six"})
    def test_many(world, number): ...
"""


def _run_shards(
    starter: Starter,
    folder: Path,
    source: str,
    shards: int,
    timings: str | None = None,
    fresh: bool = False,
    **spec: str,
) -> tuple[list[Target], list[Ended]]:
    targets, ended = [], []
    for index in range(shards):
        (folder / str(index)).mkdir()
        target = Target(folder / str(index), {"test_shards.py": source}, spec=spec)
        env = {"TEST_TOTAL_SHARDS": str(shards), "TEST_SHARD_INDEX": str(index)}
        if timings is not None:
            # A name that Bazel quotes for a shell, which does not read it.
            write_file(target.package, "it's $5.json", timings)
            env["DIST_TESTING_TIMINGS"] = shlex.quote("_main/pkg/it's $5.json")
        ended.append(target.run(starter, env=env, fresh=fresh))
        assert ended[-1].code == 0, ended[-1].log
        targets.append(target)
    return targets, ended


def _timings(**seconds: float) -> str:
    cases = {f"pkg.test_shards.{name}": value for name, value in seconds.items()}
    return json.dumps({"schema": 1, "targets": {"//pkg:cases_gloo": cases}})


def test_parameters_in_no_order_are_complete_and_disjoint(starter: Starter, tmp_path: Path) -> None:
    """If this fails, parameters from a set, whose order differs per process, run twice or never."""
    # Each fresh interpreter has its own hash seed.
    targets, ended = _run_shards(starter, tmp_path, _MANY, 3, fresh=True)
    shares = [list(target.xml()) for target in targets]
    names = [f"test_many[{number}]" for number in ("one", "two", "three", "four", "five", "six")]
    assert sorted(itertools.chain(*shares)) == sorted(names)
    assert [len(share) for share in shares] == [2, 2, 2]
    assert [target.suite_properties() for target in targets] == [
        {"shard_index": str(index), "total_shards": "3"} for index in range(3)
    ]
    assert "fork, shard 2 of 3\n" in ended[1].log


def test_recorded_durations_balance_the_shards(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the target takes as long as one overloaded shard."""
    source = "import pytest\n\n" + "".join(
        f"@pytest.mark.distributed\ndef test_{name}(world):\n    pass\n\n" for name in ("a", "b", "long", "y", "z")
    )
    # As usual, timings are older than the tests.
    timings = _timings(test_long=40.0, test_a=10.0, test_b=10.0, test_y=10.0, test_z=10.0, test_gone=1000.0)
    targets, ended = _run_shards(starter, tmp_path, source, 2, timings)
    assert all("WARNING" not in one.log for one in ended)
    assert [list(target.xml()) for target in targets] == [["test_long"], ["test_a", "test_b", "test_y", "test_z"]]


def test_unusable_timings_are_a_warning_and_every_case_still_runs(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a file that was merged wrongly costs tests instead of time.

    tests/unit/test_timings.py has every wrong file.
    """
    targets, ended = _run_shards(starter, tmp_path, _MANY, 2, "{")
    assert Counter(name for target in targets for name in target.xml()).most_common(1)[0][1] == 1
    assert [len(target.xml()) for target in targets] == [3, 3]
    for target, one in zip(targets, ended, strict=True):
        assert "it's $5.json: no usable timings: Expecting" in one.log
        assert "no usable timings" in target.warnings_file.read_text(encoding="utf-8")
        assert "Traceback" not in one.log


def test_cases_of_a_pool_stay_together(starter: Starter, tmp_path: Path) -> None:
    """If this fails, two shards start the ranks of one class."""
    source = """
        import pytest

        class TestB:
            @pytest.mark.distributed
            @pytest.mark.parametrize("number", range(2))
            def test_pooled(self, world, number): ...

        class TestA:
            @pytest.mark.distributed
            @pytest.mark.parametrize("number", range(2))
            def test_pooled_too(self, world, number): ...
    """
    targets, _ = _run_shards(starter, tmp_path, source, 2, isolation="pool")
    assert [list(target.xml()) for target in targets] == [
        ["test_pooled_too[0]", "test_pooled_too[1]"],
        ["test_pooled[0]", "test_pooled[1]"],
    ]


def test_file_that_skips_itself_is_reported_by_one_shard(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the file counts as skipped once per shard, because it cannot be assigned to one."""
    source = """
        import pytest

        pytest.skip("planted", allow_module_level=True)
    """
    targets, _ = _run_shards(starter, tmp_path, source, 2)
    assert [[result.outcome for result in target.xml().values()] for target in targets] == [["skipped"], []]
