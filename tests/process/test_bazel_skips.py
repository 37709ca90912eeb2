"""Skips are a contract: skipped cases are reported first, and fail where hardware was promised."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Target
from tests.support.starter import Starter

_NO_GPUS = {"CUDA_VISIBLE_DEVICES": ""}
_LACKING = "Need at least 2 CUDA devices (found 0; CUDA_VISIBLE_DEVICES='' hides every device)"

_ON_RANKS = """
    import pytest

    @pytest.mark.distributed
    def test_skips(world):
        pytest.skip("no such thing here")
"""

_MODULE = """
    import pytest

    pytest.importorskip("package_of_this_name_is_nowhere")

    @pytest.mark.distributed
    def test_never(world):
        pass
"""

_NEEDS = """
    import pytest

    @pytest.mark.distributed
    def test_on_gpus(world):
        pass

    @pytest.mark.distributed
    def test_on_gpus_too(world):
        pass
"""

# A mark of the user, which the library cannot recognise as a hardware check.
_OWN_MARK = """
    import pytest
    import torch

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="our own check")
    @pytest.mark.distributed(init=False)
    def test_on_gpus(world):
        pass
"""


@pytest.mark.parametrize(
    ("source", "backend", "reason"),
    [
        (_ON_RANKS, "gloo", "no such thing here"),
        (_MODULE, "gloo", "could not import 'package_of_this_name_is_nowhere'"),
        (_NEEDS, "nccl", _LACKING),
        (_OWN_MARK, "nccl", "our own check"),
    ],
    ids=["on ranks", "module", "needs", "own mark"],
)
def test_target_that_skips_everything_is_reported_in_the_first_line(
    starter: Starter, tmp_path: Path, source: str, backend: str, reason: str
) -> None:
    """If this fails, a green target that tested nothing goes unnoticed, because users read the first line."""
    target = Target(tmp_path, {"test_skips.py": source}, backend=backend)
    ended = target.run(starter, env=_NO_GPUS)
    assert ended.code == 0, ended.log
    first = ended.log.partition("\n")[0]
    assert first.startswith(f"dist_testing: //pkg:cases_{backend}: {backend}, world size 2")
    assert f": EVERY CASE WAS SKIPPED: {reason}" in first
    assert f"every case of //pkg:cases_{backend} was skipped: {reason}" in target.warnings_file.read_text()
    results = target.xml().values()
    assert results
    assert all(result.outcome == "skipped" and reason in result.message for result in results)


def test_reasons_are_always_on_one_line(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a reason with a line break breaks the first line of the log."""
    source = "import pytest\n\n@pytest.mark.parametrize('why', ['a\\nb', 'c', 'd', 'e'])\n"
    source += "def test_skips(why):\n    pytest.skip(why)\n"
    target = Target(tmp_path, {"test_skips.py": source})
    ended = target.run(starter)
    assert ended.code == 0, ended.log
    first = ended.log.partition("\n")[0]
    assert first.endswith(": EVERY CASE WAS SKIPPED: a b; c; d; and 1 more")


def test_needs_are_checked_before_a_rank_starts(starter: Starter, tmp_path: Path) -> None:
    """If this fails, ranks cost seconds only to find that they must skip, and may find different reasons."""
    source = """
        import os

        import pytest

        RUNNER = os.getpid()

        os.register_at_fork(after_in_child=lambda: os.write(2, b"a process was forked\\n"))

        @pytest.mark.distributed
        @pytest.mark.parametrize("number", range(3))
        def test_on_gpus(world, number):
            pass
    """
    target = Target(tmp_path, {"test_gpus.py": source}, backend="nccl")
    ended = target.run(starter, env=_NO_GPUS)
    assert ended.code == 0, ended.log
    # The fork server is forked; no rank is.
    assert ended.log.count("a process was forked") <= 1
    assert {result.message for result in target.xml().values()} == {_LACKING}


def test_target_that_runs_something_gives_no_warning(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a target warns although it ran a case; the summary shows the skipped one and its reason."""
    source = _ON_RANKS + "\n\n    def test_plain():\n        pass\n"
    target = Target(tmp_path, {"test_skips.py": source})
    ended = target.run(starter)
    assert ended.code == 0, ended.log
    assert ended.log.startswith("dist_testing: //pkg:cases_gloo: gloo, world size 2, fork\n")
    assert "1 passed, 1 skipped" in ended.log
    assert "no such thing here" in ended.log
    assert not target.warnings_file.exists()


def test_expected_failures_have_run(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a target of expected failures warns that nothing ran. JUnit's format calls them skipped."""
    source = "import pytest\n\n@pytest.mark.xfail(reason='known')\n@pytest.mark.distributed\n"
    source += "def test_known(world):\n    raise ValueError\n"
    target = Target(tmp_path, {"test_known.py": source})
    ended = target.run(starter)
    assert ended.code == 0, ended.log
    assert "EVERY CASE" not in ended.log
    assert not target.warnings_file.exists()


@pytest.mark.parametrize(
    ("promised", "env", "fails"),
    [
        (2, {}, True),
        (1, {}, False),
        (None, {}, False),
        # All cases of a part may skip; a lack of hardware has failed by name already.
        (2, {"TESTBRIDGE_TEST_ONLY": "test_on_gpus"}, False),
        (2, {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "0", "TESTBRIDGE_TEST_ONLY": "test_on_gpus"}, False),
        # The other shard has no case.
        (2, {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "0"}, True),
    ],
    ids=["promised", "too few promised", "not promised", "filter", "filter and shard", "shard"],
)
def test_promised_hardware_with_no_case_run_is_a_failure(
    starter: Starter, tmp_path: Path, promised: int | None, env: dict[str, str], fails: bool
) -> None:
    """If this fails, a user's own check keeps a GPU job green for ever, although the library's checks do not."""
    target = Target(tmp_path, {"test_gpus.py": _OWN_MARK}, backend="nccl", promised_gpus=promised)
    ended = target.run(starter, env={**_NO_GPUS, **env})
    assert ended.code == int(fails), ended.log
    assert "EVERY CASE WAS SKIPPED: our own check" in ended.log.partition("\n")[0]
    outcomes = {name: result.outcome for name, result in target.xml().items()}
    if fails:
        assert outcomes == {"test_on_gpus": "skipped", "//pkg:cases_nccl": "error"}
        assert "promised hardware, and every case was skipped: our own check" in ended.log
    else:
        assert outcomes == {"test_on_gpus": "skipped"}


_SKIPPED_HERE = """
    import unittest

    import pytest

    @pytest.mark.skipif(True, reason="our own check")
    @pytest.mark.distributed
    def test_a(world):
        pass
"""
# The case of the other shard, and whether it is known to skip as well.
_ELSEWHERE = {
    "skipif": ("@pytest.mark.skipif(True, reason='ours')\n    @pytest.mark.distributed\n    def test_b(world):", True),
    "plain skip": ("@pytest.mark.skip\n    def test_b():", True),
    "unittest method": (
        "class tests_b(unittest.TestCase):\n        @unittest.skip('ours')\n        def test_b(self):",
        True,
    ),
    "unittest class": (
        "@unittest.skip('ours')\n    class tests_b(unittest.TestCase):\n        def test_b(self):",
        True,
    ),
    "runs": ("@pytest.mark.distributed\n    def test_b(world):", False),
    "plain test": ("def test_b():", False),
    "condition that fails": ("@pytest.mark.skipif('nothing_of_this_name')\n    def test_b():", False),
    "expected failure": ("@pytest.mark.xfail(reason='known')\n    def test_b():", False),
}


@pytest.mark.parametrize("elsewhere", _ELSEWHERE)
def test_shard_decides_for_the_target_if_the_others_are_known_to_skip(
    starter: Starter, tmp_path: Path, elsewhere: str
) -> None:
    """If this fails, a sharded target that skips everything by marks passes under a promise, shard by shard."""
    other, fails = _ELSEWHERE[elsewhere]
    source = f"{_SKIPPED_HERE}\n\n    {other}\n            pass\n"
    target = Target(tmp_path, {"test_gpus.py": source}, backend="nccl", promised_gpus=2)
    ended = target.run(starter, env={**_NO_GPUS, "TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "0"})
    assert ended.code == int(fails), ended.log
    assert "EVERY CASE WAS SKIPPED: our own check" in ended.log.partition("\n")[0]
    assert ("promised hardware, and every case was skipped" in ended.log) == fails


def test_ranks_that_disagree_about_a_skip_fail(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the ranks that continue wait for the others, or pass without them."""
    source = """
        import pytest

        @pytest.mark.distributed
        def test_disagrees(world):
            if world.rank == 1:
                pytest.skip("not here")
    """
    target = Target(tmp_path, {"test_skips.py": source})
    ended = target.run(starter)
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    (result,) = target.xml().values()
    assert result.outcome == "failure"
    assert "not here" in result.text
