"""A target whose cases are assigned to shards, which Bazel starts one by one."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

from tests.support.children import Ended, Target, write_file
from tests.support.starter import Starter

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
            write_file(target.package, "timings.json", timings)
            env["DIST_TESTING_TIMINGS"] = "_main/pkg/timings.json"
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
        assert "no usable timings" in one.log
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
