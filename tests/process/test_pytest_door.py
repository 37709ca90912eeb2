"""The pytest door, from the outside: what people write, what they type, and what pytest then says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Ended, run_pytest, write_file
from tests.support.starter import Starter

_HEAD = "import pytest\n\n"
_TEST = "\ndef test_marked(world):\n    pass\n"


def _run(starter: Starter, folder: Path, source: str, *options: str, **more: str) -> Ended:
    write_file(folder, "test_cases.py", source)
    return run_pytest(starter, folder, "-rA", *options, "test_cases.py", env=more or None)


def _assert_clear(ended: Ended, *said: str) -> None:
    """The reason is there, and nothing of the library's own code is."""
    for text in said:
        assert text in ended.log, ended.log
    assert "Traceback" not in ended.log
    assert "dist_testing/" not in ended.log.replace("dist_testing/config", ""), ended.log


def test_marker_forms(starter: Starter, tmp_path: Path) -> None:
    """Function, class and module; one size, several, or the command line's; with and without a group."""
    ended = _run(
        starter,
        tmp_path,
        """
        import pytest
        import torch
        import torch.distributed as dist

        pytestmark = pytest.mark.distributed(timeout=30)


        def test_default(world, world_size):
            assert world.size == world_size == dist.get_world_size() == 3
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == 3


        @pytest.mark.distributed(world_size=1)
        def test_alone(world):
            assert (world.rank, world.size) == (0, 1)


        @pytest.mark.distributed(world_size=[1, 2])
        @pytest.mark.parametrize("letter", ["a", "b"])
        def test_sizes(world, world_size, letter):
            assert world.size == world_size


        @pytest.mark.distributed(init=False)
        def test_without_group(world):
            assert not dist.is_initialized()


        @pytest.mark.distributed(world_size=2, expected_exits={1: -9})
        def test_expected_exit(world):
            import os
            if world.rank == 1:
                os.kill(os.getpid(), 9)


        @pytest.mark.distributed(world_size=2)
        class TestClass:
            def test_inherits(self, world):
                assert world.size == 2

            @pytest.mark.distributed(world_size=1)
            def test_says_otherwise(self, world):
                assert world.size == 1


        @pytest.mark.distributed(backends=["nccl"])
        def test_elsewhere(world):
            pass


        @pytest.mark.distributed(backends=["gloo", "nccl"])
        def test_here(world):
            assert world.backend == "gloo"


        @pytest.mark.distributed(world_size=2)
        def test_without_the_fixture():
            assert dist.get_world_size() == 2
        """,
        "--dist-world-size=3",
    )
    assert ended.code == 0, ended.log
    assert ended.outcomes() == dict.fromkeys(
        [
            "test_default",
            "test_alone",
            "test_sizes[a-world_size=1]",
            "test_sizes[a-world_size=2]",
            "test_sizes[b-world_size=1]",
            "test_sizes[b-world_size=2]",
            "test_without_group",
            "test_expected_exit",
            "test_inherits",
            "test_says_otherwise",
            "test_here",
            "test_without_the_fixture",
        ],
        "PASSED",
    )
    assert "1 deselected" in ended.log


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("4", "positional arguments (4,); name them, as in world_size=4"),
        ("worldsize=4", "worldsize = 4; it takes world_size, init,"),
        ("world_size=0", "world_size = 0; it is a number from 1 to 1024"),
        ("world_size=-1", "world_size = -1"),
        ("world_size='two'", "world_size = 'two'"),
        ("world_size=True", "world_size = True"),
        ("world_size=1025", "world_size = 1025"),
        ("world_size=[]", "world_size = []"),
        ("world_size=[2, 2]", "world_size = [2, 2]; each size makes one case"),
        ("timeout=0", "timeout = 0; it is a number of seconds above 0"),
        ("timeout=-1", "timeout = -1"),
        ("timeout='long'", "timeout = 'long'"),
        ("timeout=float('nan')", "timeout = nan"),
        ("isolation='jail'", "isolation = 'jail'; it is one of fork, spawn, pool"),
        ("init='no'", "init = 'no'; it is True or False"),
        ("expected_exits={-1: 0}", "expected_exits = {-1: 0}"),
        ("expected_exits={2: -9}, world_size=2", "expected_exits = {2: -9}"),
        ("backends='gloo'", "backends = 'gloo'; it is a list of names"),
        ("backends=['glo']", "Did you mean 'gloo'?"),
    ],
)
def test_bad_marker_is_a_clear_error(starter: Starter, tmp_path: Path, arguments: str, said: str) -> None:
    """A slip in a marker must neither run something else nor show the library's insides."""
    ended = _run(starter, tmp_path, f"{_HEAD}@pytest.mark.distributed({arguments}){_TEST}")
    assert ended.code == pytest.ExitCode.INTERRUPTED, ended.log
    _assert_clear(ended, said, "test_cases.py::test_marked")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def test_it(world):\n    pass\n", "test_cases.py::test_it asks for `world` and is not marked"),
        (
            "@pytest.fixture\ndef size(world):\n    return world.size\n\ndef test_it(size):\n    pass\n",
            "asks for `world` and is not marked",
        ),
    ],
)
def test_world_without_the_marker_is_a_clear_error(starter: Starter, tmp_path: Path, source: str, said: str) -> None:
    """The most common slip of all."""
    ended = _run(starter, tmp_path, _HEAD + source)
    assert ended.code == pytest.ExitCode.INTERRUPTED
    _assert_clear(ended, said, "Mark it with @pytest.mark.distributed")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--dist-backend=glo", "Backend 'glo' is not declared. Did you mean 'gloo'?"),
        ("--dist-world-size=0", "--dist-world-size=0: expected numbers from 1 to 1024"),
        ("--dist-world-size=-1", "--dist-world-size=-1"),
        ("--dist-world-size=two", "--dist-world-size=two"),
        ("--dist-world-size=1,,2", "--dist-world-size=1,,2"),
        ("--dist-timeout=abc", "--dist-timeout=abc: expected a number of seconds above 0"),
        ("--dist-timeout=-1", "--dist-timeout=-1"),
        ("--dist-timeout=0", "--dist-timeout=0"),
        ("--dist-timeout=nan", "--dist-timeout=nan"),
        ("--dist-isolation=nonsense", "--dist-isolation=nonsense: expected one of fork, spawn, pool"),
        ("--dist-on-missing=maybe", "--dist-on-missing=maybe: expected one of skip, fail"),
    ],
)
def test_bad_option_is_a_usage_error(starter: Starter, tmp_path: Path, option: str, said: str) -> None:
    """Found before anything is collected."""
    ended = _run(starter, tmp_path, f"{_HEAD}@pytest.mark.distributed{_TEST}", option)
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
    _assert_clear(ended, said)


def test_options_decide_what_the_tests_do_not_say(starter: Starter, tmp_path: Path) -> None:
    """Several sizes, each a case; a limit; a backend that this machine cannot run."""
    source = """
        import threading
        import pytest

        @pytest.mark.distributed
        def test_hangs(world):
            threading.Event().wait()
    """
    ended = _run(starter, tmp_path, source, "--dist-world-size=1,2", "--dist-timeout=0.5")
    assert ended.outcomes() == {"test_hangs[world_size=1]": "FAILED", "test_hangs[world_size=2]": "FAILED"}
    assert "in test_hangs" in ended.log

    nccl = ("--dist-backend=nccl", "--dist-world-size=2")
    ended = _run(starter, tmp_path, source, *nccl, CUDA_VISIBLE_DEVICES="")
    assert ended.code == 0
    assert "Need at least 2 CUDA devices (found 0)" in ended.log
    ended = _run(starter, tmp_path, source, *nccl, "--dist-on-missing=fail", CUDA_VISIBLE_DEVICES="")
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    assert "promised hardware missing: Need at least 2 CUDA devices" in ended.log


def test_what_pytest_gives_works_on_ranks(starter: Starter, tmp_path: Path) -> None:
    """Fixtures of every kind, with their teardown; folders; output; patches."""
    ended = _run(
        starter,
        tmp_path,
        """
        import logging
        import os
        from pathlib import Path

        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)
        torn_down = Path(os.environ["TMPDIR"])


        @pytest.fixture(scope="module")
        def module_value():
            return os.getpid()


        @pytest.fixture
        def with_teardown(world, module_value):
            assert module_value == os.getpid(), "resolved on the rank"
            yield world.rank
            (torn_down / f"torn-down-{world.rank}").touch()


        def test_fixtures(world, with_teardown, request):
            assert with_teardown == world.rank
            request.addfinalizer(lambda: (torn_down / f"finalised-{world.rank}").touch())


        def test_tmp_path_is_the_ranks_own(world, tmp_path, tmp_path_factory):
            (tmp_path / "own").write_text(str(world.rank))
            (world.rank_tmp_path / "own").write_text(str(world.rank))
            (world.tmp_path / f"rank-{world.rank}").touch()
            world.barrier()
            assert (tmp_path / "own").read_text() == str(world.rank)
            assert (world.rank_tmp_path / "own").read_text() == str(world.rank)
            assert {path.name for path in world.tmp_path.iterdir()} >= {"rank-0", "rank-1"}
            assert tmp_path_factory.mktemp("more").exists()


        def test_capsys(world, capsys):
            print("out")
            assert capsys.readouterr().out == "out\\n"


        def test_capfd(world, capfd):
            os.write(2, b"raw")
            assert capfd.readouterr().err == "raw"


        def test_caplog(world, caplog):
            logging.getLogger("x").warning("of rank %d", world.rank)
            assert caplog.messages == [f"of rank {world.rank}"]


        def test_monkeypatch(world, monkeypatch):
            monkeypatch.setenv("PATCHED", str(world.rank))
            monkeypatch.chdir(world.rank_tmp_path)
            assert os.environ["PATCHED"] == str(world.rank)


        def test_recwarn(world):
            with pytest.warns(UserWarning, match="careful"):
                import warnings
                warnings.warn("careful")


        def test_rewritten(world):
            left, right = [1, 2, world.rank], [1, 2, 9]
            assert left == right
        """,
    )
    assert {name for name, outcome in ended.outcomes().items() if outcome == "FAILED"} == {"test_rewritten"}, ended.log
    left = {path.name for path in (tmp_path / "tmp").iterdir()}
    assert left >= {f"{what}-{rank}" for what in ("torn-down", "finalised") for rank in range(2)}
    assert "assert [1, 2, 0] == [1, 2, 9]" in ended.log, "assertions are explained on ranks, too"


_MIXED = """
    import os
    import pytest

    events = os.environ["EVENTS"]


    def note(text):
        with open(events, "a") as file:
            file.write(text + "\\n")


    @pytest.fixture(scope="module", autouse=True)
    def of_the_module():
        note("setup")
        yield
        note("teardown")


    def test_plain_before():
        note("plain before")


    @pytest.mark.distributed(world_size=1)
    def test_marked(world):
        note("marked")


    def test_plain_after():
        note("plain after")


    @pytest.mark.distributed(world_size=2)
    def test_fails(world):
        assert world.rank != 1


    @pytest.mark.distributed(world_size=1)
    def test_last(world):
        pass
"""


def test_plain_and_marked_tests_live_in_one_file(starter: Starter, tmp_path: Path) -> None:
    """A module's fixture is set up once in the runner, and once on each rank."""
    events = tmp_path / "events"
    ended = _run(starter, tmp_path, _MIXED, "-k", "not fails and not last", EVENTS=str(events))
    assert ended.code == 0, ended.log
    assert events.read_text().splitlines() == [
        *("setup", "plain before"),
        *("setup", "marked", "teardown"),
        *("plain after", "teardown"),
    ]


def test_selection_by_name_failure_and_first_failure(starter: Starter, tmp_path: Path) -> None:
    """`-k`, `-x`, `--lf` and `--collect-only` know marked tests like any other."""
    env = {"EVENTS": str(tmp_path / "events")}
    ended = _run(starter, tmp_path, _MIXED, "-k", "marked", **env)
    assert ended.outcomes() == {"test_marked": "PASSED"}
    ended = _run(starter, tmp_path, _MIXED, "-x", **env)
    assert list(ended.outcomes()) == ["test_plain_before", "test_marked", "test_plain_after", "test_fails"]
    assert ended.outcomes()["test_fails"] == "FAILED"
    assert "rank 1 of 2 failed first" in ended.log
    ended = _run(starter, tmp_path, _MIXED, "--lf", **env)
    assert ended.outcomes() == {"test_fails": "FAILED"}
    ended = _run(starter, tmp_path, _MIXED, "--collect-only", "-q", **env)
    assert ended.code == 0
    assert "test_cases.py::test_marked" in ended.log


def test_skips_and_expected_failures(starter: Starter, tmp_path: Path) -> None:
    """Marks are judged once, in the runner; only a test that raises can fail as expected."""
    ended = _run(
        starter,
        tmp_path,
        """
        import os
        import unittest

        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)


        @pytest.mark.skip(reason="by mark")
        def test_skip(world):
            os.abort()


        @pytest.mark.skipif(True, reason="by condition")
        def test_skipif(world):
            os.abort()


        @pytest.mark.skipif(False, reason="never")
        def test_not_skipped(world):
            pass


        def test_skips_inside(world):
            pytest.skip("inside")


        def test_skips_as_unittest_does(world):
            raise unittest.SkipTest("as unittest")


        def test_skips_by_exit_code(world):
            raise SystemExit(74)


        def test_one_rank_skips(world):
            if world.rank == 1:
                pytest.skip("rank 1 alone")


        def test_importorskip(world):
            pytest.importorskip("nothing_of_this_name")


        @pytest.mark.xfail(reason="known")
        def test_xfail(world):
            assert world.rank == 0


        @pytest.mark.xfail(raises=KeyError, reason="another error")
        def test_xfail_of_another_type(world):
            raise ValueError("not what was expected")


        @pytest.mark.xfail(reason="passes by now")
        def test_xpass(world):
            pass


        @pytest.mark.xfail(strict=True, reason="passes by now")
        def test_xpass_strict(world):
            pass


        @pytest.mark.xfail(run=False, reason="would abort")
        def test_xfail_not_run(world):
            os.abort()


        @pytest.mark.xfail(reason="a crash is not an expected failure")
        def test_xfail_crash(world):
            os._exit(1)


        def test_pytest_fail(world):
            pytest.fail("on purpose")


        def test_xfail_inside(world):
            pytest.xfail("inside")
        """,
    )
    assert ended.outcomes() == {
        "test_not_skipped": "PASSED",
        "test_one_rank_skips": "FAILED",
        "test_xfail": "XFAIL",
        "test_xfail_of_another_type": "FAILED",
        "test_xpass": "XPASS",
        "test_xpass_strict": "FAILED",
        "test_xfail_not_run": "XFAIL",
        "test_xfail_crash": "FAILED",
        "test_pytest_fail": "FAILED",
        "test_xfail_inside": "XFAIL",
    }
    for reason in ("by mark", "by condition", "inside", "as unittest", "CUDA is not available.", "nothing_of_this_name"):
        assert any(line.startswith("SKIPPED") and reason in line for line in ended.log.splitlines()), reason
    assert "6 skipped" in ended.log
    assert "rank 1 skipped: rank 1 alone" in ended.log
    assert "[XPASS(strict)] passes by now" in ended.log


def test_error_in_a_fixture_is_the_ranks_failure(starter: Starter, tmp_path: Path) -> None:
    """Setup, teardown and finalisers, each on one rank of two."""
    ended = _run(
        starter,
        tmp_path,
        """
        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)


        @pytest.fixture
        def breaks_in_setup(world):
            if world.rank == 1:
                raise ValueError("planted in setup")


        @pytest.fixture
        def breaks_in_teardown(world):
            yield
            if world.rank == 1:
                raise ValueError("planted in teardown")


        def test_setup(world, breaks_in_setup):
            pass


        def test_teardown(world, breaks_in_teardown):
            pass


        def test_unknown_fixture(world, no_such_fixture):
            pass
        """,
    )
    assert ended.outcomes() == dict.fromkeys(["test_setup", "test_teardown", "test_unknown_fixture"], "FAILED")
    assert "rank 1 raised ValueError: planted in setup in setup" in ended.log
    assert "rank 1 raised ValueError: planted in teardown in teardown" in ended.log
    assert "fixture 'no_such_fixture' not found" in ended.log


@pytest.mark.parametrize(
    ("unclean", "said"),
    [
        ("threading.Thread(target=threading.Event().wait, name='of the import', daemon=True).start()", "of the import"),
        (
            "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)",
            "a process group is initialised",
        ),
        ("torch.set_num_threads(2); torch.ones(1 << 20).exp_()", "thread(s) of native code are running"),
    ],
    ids=["thread", "process group", "OpenMP pool"],
)
def test_ranks_of_an_unclean_runner_come_from_a_fresh_interpreter(
    starter: Starter, tmp_path: Path, unclean: str, said: str
) -> None:
    """Fork copies locks in whatever state they are in; the reason is in the log, and the tests pass."""
    source = f"""
        import os
        import threading

        import pytest
        import torch
        import torch.distributed as dist

        if os.getpid() == int(os.environ.setdefault("RUNNER", str(os.getpid()))):
            {unclean}


        @pytest.mark.distributed(world_size=2)
        def test_sums(world):
            total = torch.ones(1 << 20)
            dist.all_reduce(total)
            assert total.exp().max() > 7
    """
    ended = _run(starter, tmp_path, source)
    assert ended.code == 0, ended.log
    assert ended.outcomes() == {"test_sums": "PASSED"}
    assert "ranks are forked from a fresh interpreter and not from this one" in ended.log
    assert said in ended.log


def test_xdist_shares_the_cases_out(starter: Starter, tmp_path: Path) -> None:
    """Each worker is a runner of its own, and the reports reach the terminal once."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    env = {"EVENTS": str(tmp_path / "events")}
    ended = _run(starter, tmp_path, _MIXED, "-p", "xdist", "-n", "2", **env)
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert ended.outcomes() == {
        "test_plain_before": "PASSED",
        "test_marked": "PASSED",
        "test_plain_after": "PASSED",
        "test_fails": "FAILED",
        "test_last": "PASSED",
    }
    assert ended.log.count("rank 1 of 2 failed first") == 1
