"""A target that is green although no rank, or no test at all, ran says so first in its log, and to Bazel.

Skips are a contract: they fail where hardware was promised. tests/unit/test_conclusion.py has every combination of
outcomes, shards, filters and promises; here each fact that they are concluded from comes from a real run.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.support.children import Bazel, Ended, Target, run_pytest, write_file
from tests.support.starter import Starter

_NO_GPUS = {"CUDA_VISIBLE_DEVICES": ""}
_LACKING = "Need at least 2 CUDA devices (found 0; CUDA_VISIBLE_DEVICES='' hides every device)"
_HEAD = "dist_testing: //pkg:cases_gloo: gloo, world size 2, fork"
_FIRST_OF_TWO = {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "0"}
_SECOND_OF_TWO = {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "1"}

_PLAIN = """
    import unittest
    import pytest

    def test_plain(): ...

    class PlainTest(unittest.TestCase):
        def test_method(self): ...
"""
_ON_RANKS = """
    import pytest

    @pytest.mark.distributed
    def test_skips(world):
        pytest.skip("no such thing here")
"""
_MODULE = """
    import pytest

    pytest.importorskip("package_of_this_name_is_nowhere")
"""
_NEEDS = """
    import os
    import pytest

    # The fork server is forked; no rank is.
    os.register_at_fork(after_in_child=lambda: os.mkdir(os.path.join(os.environ["FORKS"], str(os.getpid()))))

    @pytest.mark.distributed
    @pytest.mark.parametrize("number", range(3))
    def test_on_gpus(world, number): ...
"""
# A mark of the user, which the library cannot recognise as a hardware check.
_OWN_MARK = """
    import pytest
    import torch

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="our own check")
    @pytest.mark.distributed(init=False)
    def test_on_gpus(world): ...
"""


def _first_line(ended: Ended) -> str:
    return ended.log.partition("\n")[0]


@pytest.mark.parametrize(
    ("source", "backend", "reason"),
    [
        (_ON_RANKS, "gloo", "no such thing here"),
        (_MODULE, "gloo", "could not import 'package_of_this_name_is_nowhere'"),
        (_NEEDS, "nccl", _LACKING),
        (_OWN_MARK, "nccl", "our own check"),
        # A reason with a line break would break the first line of the log.
        (
            "import pytest\n\n@pytest.mark.parametrize('why', ['a\\nb', 'c', 'd', 'e'])\ndef test_skips(why):\n"
            "    pytest.skip(why)\n",
            "gloo",
            "a b; c; d; and 1 more",
        ),
    ],
    ids=["on ranks", "module", "needs", "own mark", "several reasons"],
)
def test_target_that_skips_everything_is_reported_in_the_first_line(
    starter: Starter, tmp_path: Path, source: str, backend: str, reason: str
) -> None:
    """If this fails, a green target that tested nothing goes unnoticed, because users read the first line."""
    target = Target(tmp_path, {"test_skips.py": source}, backend=backend)
    forks = tmp_path / "forks"
    forks.mkdir()
    ended = target.run(starter, env={**_NO_GPUS, "FORKS": str(forks)})
    assert ended.code == 0, ended.log
    assert _first_line(ended).startswith(f"dist_testing: //pkg:cases_{backend}: {backend}, world size 2")
    assert f": EVERY CASE WAS SKIPPED: {reason}" in _first_line(ended)
    assert f"every case of //pkg:cases_{backend} was skipped: {reason}" in target.warnings_file.read_text()
    results = target.xml().values()
    assert {result.outcome for result in results} == {"skipped"}
    # Needs are checked before a rank starts, in the runner.
    assert len(list(forks.iterdir())) <= 1
    assert source is not _NEEDS or {result.message for result in results} == {_LACKING}


@pytest.mark.parametrize(
    ("promised", "env", "fails"),
    [(2, {}, True), (1, {}, False), (None, {}, False), (2, {"TESTBRIDGE_TEST_ONLY": "test_on_gpus"}, False)],
    ids=["promised", "too few promised", "not promised", "filter"],
)
def test_promised_hardware_with_no_case_run_is_a_failure(
    bazel: Bazel, promised: int | None, env: dict[str, str], fails: bool
) -> None:
    """If this fails, a user's own check keeps a GPU job green for ever, although the library's checks do not."""
    target, ended = bazel.run(
        {"test_gpus.py": _OWN_MARK}, code=int(fails), backend="nccl", promised_gpus=promised, env={**_NO_GPUS, **env}
    )
    target.check(skipped="test_on_gpus", **({"error": "//pkg:cases_nccl"} if fails else {}))
    assert ("promised hardware, and every case was skipped: our own check" in ended.log) == fails


_SHARDED = """
    import pytest

    @pytest.mark.skip(reason="our own check")
    @pytest.mark.distributed
    def test_a(world): ...

    {mark}
    @pytest.mark.distributed
    def test_b(world): ...
"""


@pytest.mark.parametrize(("mark", "fails"), [("@pytest.mark.skip", True), ("", False)], ids=["skips too", "runs"])
def test_shard_decides_for_the_target_if_the_others_are_known_to_skip(bazel: Bazel, mark: str, fails: bool) -> None:
    """If this fails, a sharded target that skips everything by marks passes under a promise, shard by shard."""
    _, ended = bazel.run(
        {"test_gpus.py": _SHARDED.format(mark=mark)},
        code=int(fails),
        backend="nccl",
        promised_gpus=2,
        env={**_NO_GPUS, **_FIRST_OF_TWO},
    )
    assert ("promised hardware, and every case was skipped" in ended.log) == fails


# What the runner knows of each test before it runs, as its name says: whether it runs on ranks, whether it will skip.
_KNOWN = {
    "plain": """
        def test_plain(): ...

        class Plain(unittest.TestCase):
            def test_plain_method(self): ...

        @pytest.mark.skip
        def test_plain_skip(): ...

        class SkippedMethod(unittest.TestCase):
            @unittest.skip("ours")
            def test_plain_skip_method(self): ...

        @unittest.skip("ours")
        class SkippedClass(unittest.TestCase):
            def test_plain_skip_class(self): ...

        @pytest.mark.skipif("nothing_of_this_name")
        def test_plain_condition_that_fails(): ...

        @pytest.mark.xfail(reason="known")
        def test_plain_expected_failure(): ...
    """,
    "marked": """
        @pytest.mark.distributed
        def test_ranks(world): ...

        @pytest.mark.distributed(isolation="thread")
        def test_ranks_threads(world): ...

        @pytest.mark.skipif(True, reason="ours")
        @pytest.mark.distributed
        def test_ranks_skip_by_condition(world): ...
    """,
    "classes": """
        class Processes(dist_testing.MultiProcessTestCase):
            def test_ranks_processes(self): ...

        class Continuous(dist_testing.MultiProcContinuousTest):
            def test_ranks_continuous(self): ...

        class Threads(dist_testing.MultiThreadedTestCase):
            def test_ranks_thread_class(self): ...
    """,
    "decorated": """
        class Decorated(unittest.TestCase):
            @dist_testing.spawn_threads_and_init_comms(world_size=2)
            def test_ranks_decorated(self): ...
    """,
    "derived": """
        from base import Base

        class Derived(Base):
            pass
    """,
    "inside": """
        def test_ranks_inside():
            dist_testing.spawn_threads_and_init_comms(world_size=2)(list)()
    """,
}
_BASE = """
    import unittest
    from dist_testing import spawn_threads_and_init_comms

    class Base(unittest.TestCase):
        @spawn_threads_and_init_comms(world_size=2)
        def test_ranks_of_base(self): ...
"""
_ASKS = """
    from dist_testing.core.pytest.plugin import runner_plugin

    def pytest_collection_modifyitems(config, items):
        runner = runner_plugin(config)
        for item in items:
            name = item.name
            assert runner.runs_on_ranks(item) == name.startswith("test_ranks"), name
            assert runner.skips_by_mark(item) == ("_skip" in name), name
        print(len(items), "tests are as their names say")
"""


def test_what_is_known_of_a_test_before_it_runs(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a target warns that it has no ranks, or a shard takes the cases of others for skipped ones."""
    write_file(tmp_path, "conftest.py", _ASKS)
    write_file(tmp_path, "base.py", _BASE)
    for name, source in _KNOWN.items():
        head = "import unittest\nimport pytest\nimport dist_testing\n"
        write_file(tmp_path, f"test_{name}.py", head + textwrap.dedent(source))
    ended = run_pytest(starter, tmp_path, "--collect-only", "-q")
    assert ended.code == 0, ended.log
    assert "17 tests are as their names say" in ended.log


@pytest.mark.parametrize("wanted", ["nonesuch", "test_print[", "test_with[a b]", "theirs~/pkg/test_x.py::test_y"])
def test_filter_that_matches_nothing_is_reported(bazel: Bazel, wanted: str) -> None:
    """If this fails, a misspelt name tests nothing and goes unnoticed. It passes, as a filter goes to all targets."""
    target, ended = bazel.run(_PLAIN, env={"TESTBRIDGE_TEST_ONLY": wanted})
    assert _first_line(ended).endswith(f": NOTHING RAN: no case matches --test_filter={wanted!r}")
    assert target.warnings_file.read_text() == (
        f"nothing of //pkg:cases_gloo ran: no case matches --test_filter={wanted!r}\n"
    )


@pytest.mark.parametrize("options", [(), ("-s",)], ids=["captured", "not captured"])
def test_target_without_a_distributed_case_is_reported(bazel: Bazel, options: tuple[str, ...]) -> None:
    """If this fails, a test whose marker was forgotten passes once in the runner, without any rank."""
    target, ended = bazel.run(_PLAIN, *options)
    assert _first_line(ended) == (_HEAD if options else f"{_HEAD}: NO CASE RAN ON RANKS")
    first, *rest = target.warnings_file.read_text().splitlines()
    assert first == "//pkg:cases_gloo: no case ran on ranks: none is distributed for backend gloo."
    assert "@pytest.mark.distributed" in rest[0]
    assert "py_test" in rest[1]
    assert f"WARNING: {first}" in ended.log


@pytest.mark.parametrize("env", [{"TESTBRIDGE_TEST_ONLY": "test_plain"}, _FIRST_OF_TWO], ids=["filter", "shard"])
@pytest.mark.parametrize(("arguments", "has_ranks"), [('(backends=["nccl"])', False), ("", True)])
def test_a_part_of_a_target_is_reported_as_the_whole_is(
    bazel: Bazel, arguments: str, has_ranks: bool, env: dict[str, str]
) -> None:
    """If this fails, a filter or a shard hides a forgotten marker, or one with plain tests only is a false warning."""
    ranks = f"    @pytest.mark.distributed{arguments}\n    def test_other(world):\n        pass\n"
    target, ended = bazel.run(f"{_PLAIN}\n{ranks}", env=env)
    assert (": NO CASE RAN ON RANKS" in _first_line(ended)) != has_ranks
    assert target.warnings_file.exists() != has_ranks


# JUnit's format calls an expected failure skipped.
_KNOWN_BUG = (
    "import pytest\n\n@pytest.mark.xfail(reason='known')\n@pytest.mark.distributed\ndef test_known(world): 1 / 0\n"
)


@pytest.mark.parametrize(
    ("sources", "env", "code", "cases"),
    [
        ({"test_a.py": _ON_RANKS, "test_b.py": "def test_plain(): ...\n"}, {}, 0, 2),
        ({"test_a.py": _KNOWN_BUG}, {}, 0, 1),
        # What was not read may have cases on ranks.
        ({"test_a.py": _PLAIN, "test_b.py": _MODULE}, {}, 0, 3),
        ({"test_a.py": _PLAIN, "test_b.py": "import nothing_of_this_name\n"}, {}, pytest.ExitCode.INTERRUPTED, 1),
        # A filter for a case of another shard, or of a file that was not read.
        ({"test_a.py": _PLAIN}, {"TESTBRIDGE_TEST_ONLY": "test_plain", **_SECOND_OF_TWO}, 0, 0),
        ({"test_a.py": _MODULE}, {"TESTBRIDGE_TEST_ONLY": "test_x", **_SECOND_OF_TWO}, 0, 0),
    ],
    ids=["one passes", "expected failure", "skips itself", "broken", "another shard", "a file not read"],
)
def test_nothing_is_reported_where_something_may_have_run(
    bazel: Bazel, sources: dict[str, str], env: dict[str, str], code: int, cases: int
) -> None:
    """If this fails, a target warns although it ran a case, or each shard calls a filter for one case misspelt."""
    target, ended = bazel.run(sources, code=code, env=env)
    assert re.fullmatch(rf"{_HEAD}(, shard 2 of 2)?", _first_line(ended)), ended.log
    assert not target.warnings_file.exists()
    assert len(target.xml()) == cases
