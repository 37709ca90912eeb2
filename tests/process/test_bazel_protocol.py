"""The main program of the build rules speaks Bazel's test protocol: log, XML, exit code, files, shards, filter."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.support.children import Bazel, Target, write_file
from tests.support.starter import Starter

_MANY = """
    import os
    import threading
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.distributed
    def test_passes(world):
        protocol = ("BAZEL_TEST", "TEST_PREMATURE", "TEST_SHARD", "TEST_TOTAL", "TEST_UNDECLARED_OUTPUTS_ANNO",
                    "TEST_WARNINGS", "TESTBRIDGE", "XML_OUTPUT")
        assert not [name for name in os.environ if name.startswith(protocol)]
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(os.environ["TEST_TMPDIR"])

    @pytest.mark.distributed
    @pytest.mark.parametrize("value", ["a", "\\x01&<"])
    def test_takes(world, value): ...

    @pytest.mark.skip(reason="not today")
    @pytest.mark.distributed
    def test_skipped(world): ...

    @pytest.mark.distributed
    def test_skips_on_ranks(world):
        pytest.skip("not on ranks")

    @pytest.mark.xfail(reason="known")
    @pytest.mark.distributed
    def test_known(world):
        raise ValueError

    def test_plain():
        assert "RANK" not in os.environ

    @pytest.mark.distributed
    def test_fails(world):
        print(f"said by rank {world.rank}")
        if world.rank == 1:
            raise ValueError("planted")
        dist.all_reduce(torch.ones(1))

    class TestGroup:
        @pytest.mark.distributed
        def test_dies(self, world):
            if world.rank == 0:
                os._exit(3)
            dist.all_reduce(torch.ones(1))

    @pytest.mark.distributed(timeout=6)
    def test_hangs(world):
        if world.rank == 1:
            threading.Event().wait()
        dist.all_reduce(torch.ones(1))

    @pytest.mark.distributed
    def test_last(world): ...
"""


def test_every_case_is_in_the_log_and_in_the_xml(starter: Starter, tmp_path: Path) -> None:
    """If this fails, dashboards, which read the XML, or users, who read the end of the log, miss a case."""
    target = Target(tmp_path, {"test_many.py": _MANY})
    began_s = time.monotonic()
    ended = target.run(starter)
    whole_s = time.monotonic() - began_s
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert ended.log.startswith("dist_testing: //pkg:cases_gloo: gloo, world size 2, fork\n")
    results = target.check(
        passed="test_passes test_takes[a] test_takes[\\x01&<] test_plain test_last",
        skipped="test_skipped test_skips_on_ranks test_known",
        failure="test_fails test_dies test_hangs",
    )
    assert results["test_skipped"].message == "not today"
    assert results["test_skips_on_ranks"].message == "not on ranks"
    assert results["test_known"].message == "xfail: known"
    assert results["test_passes"].properties == {"world_size": "2"}
    # Seconds: each duration is a part of the whole run's.
    assert all(0 < results[name].time_s < whole_s for name in ("test_passes", "test_fails", "test_hangs"))

    fails = results["test_fails"]
    assert "rank 1 raised ValueError: planted in call" in fails.message
    assert "\n" not in fails.message
    assert fails.properties["culprit"] == "1"
    assert fails.properties["rank_1"] == "raised ValueError: planted in call"
    assert "ValueError: planted" in "".join(fails.text.splitlines()[-3:])
    assert "said by rank 1" in fails.text
    assert "bazel test //pkg:cases_gloo --test_filter=test_fails" in fails.text
    assert "rank 0 exited with code 3 in call" in results["test_dies"].message
    # A hang ends at the case's limit: at the limit of the group or the backend, rank 0 would have raised.
    # On a busy machine the ranks may not have told their ledgers by then; the rank is the same without them.
    late = r"rank 1 (has not reached the call \(test_many\.py:|did not come to where the others waited)"
    assert re.search(late, results["test_hangs"].message), results["test_hangs"].message
    assert results["test_hangs"].properties["culprit"] == "1"
    assert "in test_hangs" in results["test_hangs"].text

    assert not target.premature_exit_file.exists()

    # All reports are at the end, in the order of the cases; a line for each follows them.
    log, _, headlines = ended.log.partition(" 3 failures ")
    assert re.findall(r"::(test_\w+): rank", headlines) == ["test_fails", "test_dies", "test_hangs"]
    assert list(ended.failures()) == ["test_fails", "test_dies", "test_hangs"]
    assert results["test_hangs"].text.rstrip().splitlines()[-1] in log.splitlines()[-3:]


_GPUS = {"gpus": {"archs": [], "per_rank": 1, "ranks_per_gpu": 1}}


@pytest.mark.parametrize(
    ("spec", "env", "said"),
    [
        (None, {"DIST_TESTING_SPEC": None}, "DIST_TESTING_SPEC=None"),
        ('{"schema": 2, "backend": {', {}, "is not JSON"),
        ({"srcs": ["//pkg:test_gone.py"]}, {}, "the source //pkg:test_gone.py is not in the runfiles"),
        ({"srcs": ["//pkg"]}, {}, "says srcs has '//pkg'; expected a label"),
        ({"srcs": [""]}, {}, "says srcs has ''; expected a label"),
        (None, {"DIST_TESTING_SPEC_SRCS": "_main/pkg/test_gone.py"}, "the source _main/pkg/test_gone.py is not in the"),
        (None, {"DIST_TESTING_SPEC_SRCS": "'_main/pkg/test_many.py"}, "DIST_TESTING_SPEC_SRCS="),
        (None, {"DIST_TESTING_TIMINGS": "'_main/pkg/cut off"}, 'DIST_TESTING_TIMINGS="\'_main/pkg/cut off"'),
        (None, {"DIST_TESTING_TIMINGS": "two words"}, "DIST_TESTING_TIMINGS='two words'"),
        ({"settings": _GPUS}, {"DIST_TESTING_GPU_PROMISE": "_main/pkg/gone.json"}, "gone.json cannot be read"),
        (None, {"TEST_TIMEOUT": "soon"}, "TEST_TIMEOUT='soon'"),
    ],
)
def test_what_the_rules_did_not_write_is_a_clear_error(
    starter: Starter, tmp_path: Path, spec: dict[str, object] | str | None, env: dict[str, str | None], said: str
) -> None:
    """If this fails, runfiles and an environment of two builds cause a traceback, run other tests, or run none."""
    target = Target(tmp_path, {"test_many.py": _MANY}, spec=spec)
    ended = target.run(starter, env=env)
    assert ended.code not in (0, None)
    assert said in ended.log
    assert "Traceback" not in ended.log
    assert 3 <= len(ended.log.splitlines()) <= 5, f"subject, cause, way out: {ended.log}"
    assert not target.premature_exit_file.exists(), "the runner ended on purpose, with a reason"


def test_selected_sources_run(bazel: Bazel) -> None:
    """If this fails, a `select()` in srcs runs other files than Bazel chose."""
    source = "import pytest\n\ndef test_{}():\n    pass\n"
    files = {"test_one.py": source.format("one"), "test_other name.py": source.format("other")}
    _, ended = bazel.run(
        files, spec={"srcs": ["//pkg:cases.srcs"]}, env={"DIST_TESTING_SPEC_SRCS": "'_main/pkg/test_other name.py'"}
    )
    assert re.search(r"^collected 1 item$", ended.log, re.MULTILINE)
    assert "test_other name.py" in ended.log


def test_sources_of_the_same_name_in_two_repositories_have_distinct_names(starter: Starter, tmp_path: Path) -> None:
    """If this fails, two cases share one name in results, timings, shards and filters."""
    source = "import pytest\n\n@pytest.mark.distributed\ndef test_a(world):\n    pass\n"
    labels = ["//pkg:test_one.py", "@@theirs~//pkg:test_one.py"]
    target = Target(tmp_path, {"test_one.py": source}, spec={"srcs": labels})
    write_file(target.package.parents[1] / "theirs~" / "pkg", "test_one.py", source)
    assert target.run(starter).code == 0
    assert target.xml_keys() == ["_main.pkg.test_one.test_a", "theirs~.pkg.test_one.test_a"]
    assert target.run(starter, env={"TESTBRIDGE_TEST_ONLY": "theirs~/pkg/test_one.py::test_a"}).code == 0
    assert target.xml_keys() == ["theirs~.pkg.test_one.test_a"]


def test_sources_of_one_other_repository_keep_their_names(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a target loses the names of its cases, and its timings, when another repository runs it."""
    target = Target(tmp_path, {}, spec={"srcs": ["@@theirs~//pkg:test_one.py"]})
    folder = target.package.parents[1] / "theirs~" / "pkg"
    write_file(folder, "test_one.py", "def test_a():\n    pass\n")
    assert target.run(starter).code == 0
    assert target.xml_keys() == ["pkg.test_one.test_a"]


_FOR_OTHERS = 'import pytest\n\n@pytest.mark.distributed(backends=["nccl"])\ndef test_other(world): ...\n'
_LARGE = "import pytest\n\n@pytest.mark.distributed(world_size=3)\ndef test_large(world): ...\n"


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        (
            "def helper(): ...\n",
            pytest.ExitCode.NO_TESTS_COLLECTED,
            "//pkg:cases_gloo: nothing ran: pytest found 0 case(s)",
        ),
        (_FOR_OTHERS, pytest.ExitCode.NO_TESTS_COLLECTED, "//pkg:cases_gloo: nothing ran: pytest found 1 case(s)"),
        # It would use more CPUs than Bazel reserved for the target.
        (_LARGE, pytest.ExitCode.INTERRUPTED, "world_size = 3, but //pkg:cases_gloo declares 2"),
        ("import nothing_of_this_name\n", pytest.ExitCode.INTERRUPTED, "nothing_of_this_name"),
    ],
    ids=["no tests", "for another backend", "too large", "broken"],
)
def test_target_whose_cases_cannot_run_fails(bazel: Bazel, source: str, code: int, said: str) -> None:
    """If this fails, a target without cases is always green, or its file is taken for one without tests."""
    target, ended = bazel.run(source, code=code)
    (result,) = target.xml().values()
    assert result.outcome == "error"
    assert said in ended.log
    # Only the log has pytest's error about a wrong mark.
    assert said in result.message or source is _LARGE
    assert "Traceback" not in ended.log or source is not _LARGE


def test_fail_fast_stops_at_the_first_failure(bazel: Bazel) -> None:
    """If this fails, `--test_runner_fail_fast` has no effect."""
    target, _ = bazel.run(
        {"test_many.py": _MANY}, code=pytest.ExitCode.TESTS_FAILED, env={"TESTBRIDGE_TEST_RUNNER_FAIL_FAST": "1"}
    )
    assert next(reversed(target.xml())) == "test_fails"


_ON_GPUS = "import pytest\n\n@pytest.mark.distributed\ndef test_on_gpus(world): ..."
_CLASS_ON_GPUS = "import dist_testing\nclass Test(dist_testing.MultiProcessTestCase):\n    def test_on_gpus(self): ..."


@pytest.mark.parametrize(
    ("source", "promised", "outcome", "code"),
    [(_ON_GPUS, 2, "failure", 1), (_ON_GPUS, 1, "skipped", 0), (_CLASS_ON_GPUS, 2, "failure", 1)],
    ids=["promised", "less promised", "unittest"],
)
def test_missing_gpus_are_a_failure_only_where_they_were_promised(
    starter: Starter, tmp_path: Path, source: str, promised: int, outcome: str, code: int
) -> None:
    """If this fails, a pool that lost its GPUs makes every GPU test green."""
    target = Target(tmp_path, {"test_gpus.py": source}, backend="nccl", promised_gpus=promised)
    infrastructure = tmp_path / "infrastructure"
    # Hide the GPUs, in case the machine has some.
    env = {"CUDA_VISIBLE_DEVICES": "", "TEST_INFRASTRUCTURE_FAILURE_FILE": str(infrastructure)}
    ended = target.run(starter, env=env)
    assert ended.code == code, ended.log
    (result,) = target.xml().values()
    assert result.outcome == outcome
    # The executor learns that the machine is at fault, and not a test.
    assert infrastructure.exists() == (outcome == "failure")
    lacking = "Need at least 2 CUDA devices (found 0; CUDA_VISIBLE_DEVICES='' hides every device)"
    if promised == 2:
        assert f"promised hardware missing: {lacking}" in result.message
    else:
        assert result.message == lacking


def test_arguments_of_the_target_go_to_pytest(bazel: Bazel, starter: Starter, tmp_path: Path) -> None:
    """If this fails, `args` and `--test_arg` have no effect."""
    target, ended = bazel.run({"test_many.py": _MANY}, "-k", "test_passes", "--dist-world-size=1")
    assert target.xml()["test_passes"].properties == {"world_size": "1"}
    ended = target.run(starter, "--no-such-option")
    assert ended.code == pytest.ExitCode.USAGE_ERROR
    first, second, *_ = ended.log.splitlines()
    assert first == "dist_testing: //pkg:cases_gloo: gloo, world size 2, fork"
    assert second.startswith("ERROR: usage: ")
    assert "--no-such-option" in ended.log
    assert "Traceback" not in ended.log


def test_repeated_runs_are_distinguishable(bazel: Bazel) -> None:
    """If this fails, ranks of `--runs_per_test` do not get their seed, or results do not name their run."""
    source = """
        import os
        import pytest

        @pytest.mark.distributed
        def test_seed(world):
            assert os.environ["TEST_RANDOM_SEED"] == "3"
    """
    target, ended = bazel.run(source, env={"TEST_RUN_NUMBER": "3", "TEST_RANDOM_SEED": "3"})
    assert ended.log.startswith("dist_testing: //pkg:cases_gloo: gloo, world size 2, fork, run 3\n")
    assert target.suite_properties() == {"run_number": "3", "random_seed": "3"}


def test_process_that_a_test_forks_is_no_second_runner(bazel: Bazel) -> None:
    """If this fails, it runs the later tests, too, overwrites the results, and ends the run for Bazel."""
    source = """
        import os

        def test_forks():
            if os.fork() == 0:
                raise ValueError("planted")
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 1

        def test_later():
            assert os.path.exists(os.environ["TEST_PREMATURE_EXIT_FILE"])
    """
    target, ended = bazel.run(source)
    target.check(passed="test_forks test_later")
    assert ended.log.count("ValueError: planted") == 1
