"""`isolation="thread"` under pytest: ranks are threads of a process that is not the runner."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.children import Target, run_cases, write_file
from tests.support.starter import Starter

_THREADED = "--dist-backend=threaded"

_FAILURES = """
    import ctypes
    import os
    import sys
    import threading
    from pathlib import Path
    import pytest
    import torch.distributed as dist

    NOTES = Path.cwd()
    pytestmark = pytest.mark.distributed(world_size=3)

    def note(world):
        with (NOTES / "pids").open("a") as pids:
            pids.write(f"{os.getpid()}\\n")
        print(f"hello from rank {world.rank}")
        dist.barrier()

    def test_pass_1(world):
        note(world)

    def test_pass_2(world):
        note(world)

    def test_raise(world):
        note(world)
        if world.rank == 1:
            raise ValueError("planted")
        dist.barrier()

    def test_segfault(world):
        note(world)
        if world.rank == 2:
            ctypes.string_at(0)
        dist.barrier()

    def test_skip(world):
        pytest.skip("planted reason")

    def test_skip_by_code(world):
        sys.exit(74)

    def test_skip_of_one(world):
        if world.rank == 1:
            pytest.skip("alone")
        dist.barrier()

    @pytest.mark.distributed(timeout=20)
    def test_one_hangs_after_a_failure(world):
        if world.rank == 0:
            raise ValueError("planted beside a sleeper")
        threading.Event().wait()

    @pytest.mark.xfail(strict=True)
    def test_expected_failure(world):
        assert world.rank != 1

    @pytest.mark.xfail(strict=True, raises=ValueError)
    def test_last_rank_passes(world):
        if world.rank == 0:
            raise ValueError("planted before the others end")
        for thread in threading.enumerate():
            if thread.name == "rank-0":
                thread.join()

    def test_pass_3(world):
        note(world)
"""


def test_failure_costs_one_case_and_never_the_runner(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a crash or hang of one thread ends the runner, or costs the next test."""
    ended = run_cases(starter, tmp_path, _FAILURES, _THREADED)
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    ended.check(
        passed="test_pass_1 test_pass_2 test_pass_3",
        # The last rank of the second one passes, and is not blamed.
        xfail="test_expected_failure test_last_rank_passes",
        failed="test_raise test_segfault test_skip_of_one test_one_hangs_after_a_failure",
        log=["2 skipped"],
    )
    for said in (
        "rank 1 raised ValueError: planted in call",
        "ranks 0, 2: each lost a peer in barrier (PeerFailedError)",
        "hello from rank 1",
        "rank 2 was killed by SIGSEGV (11) in call",
        "ranks 0, 1: each went down in call with the process that all ranks share",
        "in test_segfault",
        "planted reason",
        "CUDA is not available.",
        "ranks disagree about a skip: rank 0 was in barrier and waited for a rank that had skipped",
        "rank 1 skipped: alone",
        "rank 0 raised ValueError: planted beside a sleeper in call",
        "ranks 1, 2: each was in call and was stopped by the runner",
    ):
        assert said in ended.log, f"{said!r} is not in:\n{ended.log}"
    quoted = re.findall(r"output of rank (\d):\nhello from rank (\d)\n", ended.log)
    assert {"1", "2"} <= {rank for rank, _ in quoted}
    assert all(rank == said for rank, said in quoted), "each rank has its own log"
    pids = (tmp_path / "pids").read_text().split()
    by_case = [pids[start : start + 3] for start in range(0, len(pids), 3)]
    assert all(len(set(case)) == 1 for case in by_case), "the ranks of a case are one process"
    assert by_case[0] == by_case[1] == by_case[2], "the same process after a pass"
    assert len({case[0] for case in by_case}) == 3, "a new process after a failure"


def test_fixtures_belong_to_one_rank(starter: Starter, tmp_path: Path) -> None:
    """If this fails, ranks share a fixture, or a fixture that a test requests by name is not resolved."""
    source = """
        import os
        import threading
        from pathlib import Path
        import pytest
        import torch.distributed as dist

        pytestmark = pytest.mark.distributed(world_size=4)
        NOTES = Path.cwd()

        @pytest.fixture(scope="session")
        def of_session():
            yield threading.get_ident()
            (NOTES / f"torn-down-{threading.get_ident()}").touch()

        @pytest.fixture(scope="module", params=["a", "b"])
        def of_module(request, of_session):
            return request.param, of_session

        @pytest.fixture
        def with_teardown(world, of_module):
            yield world.rank
            (NOTES / f"torn-down-rank-{world.rank}-{of_module[0]}").touch()

        @pytest.fixture
        def by_name(request, world):
            dist.barrier()
            return world.rank

        @pytest.fixture(autouse=True)
        def always(world):
            world.barrier()

        def test_fixtures(world, with_teardown, of_module, request):
            assert with_teardown == world.rank == dist.get_rank()
            assert of_module[1] == threading.get_ident()
            assert request.getfixturevalue("by_name") == world.rank
            request.addfinalizer((NOTES / f"finalised-{world.rank}").touch)

        class TestClass:
            @pytest.fixture(autouse=True)
            def keep(self, world):
                self.rank = world.rank

            @pytest.mark.parametrize("number", [1, 2])
            def test_instance(self, world, number):
                dist.barrier()
                assert self.rank == world.rank

        def test_folders(world, tmp_path, tmp_path_factory):
            for path in (tmp_path, world.rank_tmp_path, tmp_path_factory.mktemp("more")):
                assert not list(path.iterdir())
                (path / "own").write_text(str(world.rank))
                world.barrier()
                assert (path / "own").read_text() == str(world.rank)
            (world.tmp_path / f"rank-{world.rank}").touch()
            world.barrier()
            assert len(list(world.tmp_path.iterdir())) == 4

        def test_folders_are_new_for_each_case(world):
            assert not list(world.tmp_path.iterdir())

        def test_no_variables_of_a_process(world):
            assert "RANK" not in os.environ
            assert os.environ["WORLD_SIZE"] == "4"

        def test_store(world):
            world.store.set(f"rank-{world.rank}", "here")
            world.store.wait([f"rank-{rank}" for rank in range(world.size)])
            # It serves by libuv, which keeps a pipe for its process.
            dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)

        @pytest.mark.distributed(init=False)
        def test_own_group(world):
            assert not dist.is_initialized()
            dist.init_process_group("threaded", store=world.store, rank=world.rank, world_size=world.size)
            dist.barrier()

        @pytest.mark.distributed(world_size=[2, 3])
        def test_sizes(world, world_size):
            assert world.size == world_size == dist.get_world_size()
    """
    ended = run_cases(starter, tmp_path, source, _THREADED)
    assert ended.code == 0, ended.log
    notes = {path.name for path in tmp_path.iterdir()}
    assert {f"torn-down-rank-{rank}-{param}" for rank in range(4) for param in "ab"} <= notes
    assert {f"finalised-{rank}" for rank in range(4)} <= notes


def test_options_that_contradict_each_other_are_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the rendezvous hangs, or ranks use another backend than the user asked for."""
    source = "import pytest\n\n@pytest.mark.distributed\ndef test_it(): ...\n"
    ended = run_cases(starter, tmp_path, source, "--dist-isolation=thread")
    assert ended.code == pytest.ExitCode.USAGE_ERROR
    assert 'isolation "thread" with backend "gloo"' in ended.log
    assert "Traceback" not in ended.log


_CANNOT = """
    import pytest
    import dist_testing

    marked = pytest.mark.distributed(world_size=2)

    @pytest.mark.distributed(isolation="fork")
    def test_fork(): ...

    @pytest.mark.distributed(expected_exits={1: -9})
    def test_expected_exits(): ...

    class TestProcesses(dist_testing.MultiProcessTestCase):
        def test_process_class(self): ...

    @marked
    @pytest.mark.parametrize("name", ["capsys", "capfd", "caplog", "recwarn", "monkeypatch"])
    def test_asked_for(world, request, name):
        request.getfixturevalue(name)

    @marked
    def test_named(world, capsys): ...
"""


def test_what_threads_cannot_have_is_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a fixture that changes the whole process mixes up the ranks, or no text says what to use."""
    ended = run_cases(starter, tmp_path, _CANNOT, _THREADED)
    names = ["capsys", "capfd", "caplog", "recwarn", "monkeypatch"]
    ended.check(
        failed=" ".join(f"test_asked_for[{name}]" for name in names)
        + " test_named test_fork test_expected_exits test_process_class",
        log=[
            *(f"A rank that is a thread uses the fixture `{name}`." for name in names),
            'isolation "fork" with backend "threaded"',
            'expected_exits = {1: -9} with isolation "thread"',
            "Derive the class from MultiThreadedTestCase",
        ],
    )
    assert "uses the fixture `capsys`" in ended.failures()["test_named"]


def test_under_bazel(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the XML does not name the culprit of a crash, or the logs of a rank are missing."""
    target = Target(
        tmp_path, {"test_cases.py": _FAILURES}, backend="threaded", world_size=3, spec={"isolation": "thread"}
    )
    ended = target.run(starter, env={"TESTBRIDGE_TEST_ONLY": "segfault or pass_3"})
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    cases = target.xml()
    assert cases["test_pass_3"].outcome == "passed"
    assert cases["test_segfault"].outcome == "failure"
    assert cases["test_segfault"].properties["culprit"] == "2"
    assert cases["test_segfault"].properties["cause"] == "crash"
    logs = {path.name.rpartition(".rank-")[2]: path.read_text() for path in target.outputs.glob("*.rank-*.log")}
    assert "hello from rank 2" in logs["2.log"]
    assert "Segmentation fault" in logs["0.log"], "the output of the process itself is in the log of rank 0"


def test_collective_error_begins_at_the_test(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the report hides the user's own lines, or a plug-in's wrapper of a test is left out."""
    conftest = """
        import functools

        def pytest_collection_modifyitems(items):
            for item in items:
                item.obj = functools.wraps(item.obj)(functools.partial(item.obj, wrapped=True))
    """
    write_file(tmp_path, "conftest.py", conftest)
    source = """
        import pytest
        import torch
        import torch.distributed as dist

        def reduce(size):
            dist.all_reduce(torch.ones(size))

        @pytest.mark.distributed(world_size=2)
        def test_differs(world, wrapped=False):
            assert wrapped
            reduce(2 + world.rank)
    """
    ended = run_cases(starter, tmp_path, source, _THREADED)
    ended.check(failed="test_differs")
    tracebacks = ended.log.split("Traceback (most recent call last):\n")[1:]
    assert [text.splitlines()[0].rpartition(", in ")[2] for text in tracebacks] == ["test_differs"], ended.log
    assert "lines left out" not in ended.log
    assert "pluggy" not in ended.log.partition("= FAILURES =")[2]
