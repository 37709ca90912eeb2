"""The limits of the machine: open files, processes, disk, time, and many ranks."""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dist_testing import World
from dist_testing.core.ground.case import CaseBody
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.outcomes import Status
from tests.support.children import Bazel, Ended, Target, run_pytest, write_file
from tests.support.starter import Starter
from tests.support.worlds import FunctionRankContext, Functions, engine_for, run

_SUM = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.distributed
    @pytest.mark.parametrize("number", range(2))
    def test_sums(world, number):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == world.size
"""


@pytest.mark.parametrize(
    ("size", "limit", "refused"),
    [
        (64, 256, "a world of 64 ranks needs about 320 open files; the limit is 256"),
        (12, 4 * 12 + 64, ""),
    ],
)
def test_world_beyond_the_open_files_is_refused_before_anything_starts(
    starter: Starter, tmp_path: Path, size: int, limit: int, refused: str
) -> None:
    """If this fails, half a world runs out of descriptors and hangs, or a world that would work is refused."""
    write_file(tmp_path, "test_cases.py", _SUM)
    options = ("-rA", "test_cases.py", f"--dist-world-size={size}")
    ended = run_pytest(starter, tmp_path, *options, limits={resource.RLIMIT_NOFILE: limit})
    assert ended.code == (pytest.ExitCode.TESTS_FAILED if refused else 0), ended.log
    assert refused in ended.log
    assert "Traceback" not in ended.log


def _all_meet(world: World, _: dict[str, object]) -> None:
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world.size == 64


def test_sixty_four_ranks_in_one_case() -> None:
    """If this fails, a large world needs as many cores as ranks."""
    with engine_for({"all meet": _all_meet}) as engine:
        result = run(engine, "all meet", world_size=64, timeout_s=120)
    assert result.verdict.status is Status.PASSED, result
    assert len(result.outcomes) == 64


def test_deadline_shorter_than_the_reserve_still_ends_in_order(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a limit of one second for everything leaves no report and no XML."""
    source = """
        import threading
        import pytest

        @pytest.mark.distributed
        @pytest.mark.parametrize("number", range(2))
        def test_slow(world, number):
            threading.Event().wait()
    """
    target = Target(tmp_path, {"test_slow.py": source})
    ended = target.run(starter, env={"TEST_TIMEOUT": "1"})
    assert "target's time was over" in ended.log, ended.log
    # On a busy machine the second is over before the ranks are ready, or before a test has begun.
    if ended.code != pytest.ExitCode.INTERRUPTED:
        assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
        assert {result.outcome for result in target.xml().values()} in ({"failure"}, {"failure", "error"}, {"error"})


def test_a_case_without_time_left_is_not_reported_as_a_hang(bazel: Bazel) -> None:
    """If this fails, good tests after hanging ones are blamed, with the advice to give them a longer limit."""
    source = """
        import threading
        import pytest

        @pytest.mark.distributed
        @pytest.mark.parametrize("number", range(12))
        def test_hangs(world, number):
            threading.Event().wait()

        @pytest.mark.distributed
        @pytest.mark.parametrize("number", range(2))
        def test_good(world, number):
            world.barrier()

        # The last case gets all time that is left, and that may be enough. So the good ones are not the last.
        @pytest.mark.distributed
        def test_last(world):
            world.barrier()
    """
    target, ended = bazel.run(source, code=pytest.ExitCode.TESTS_FAILED, env={"TEST_TIMEOUT": "15"})
    good = [result for name, result in target.xml().items() if "test_good" in name]
    assert len(good) == 2
    for result in good:
        assert result.outcome == "failure"
        assert "not run, because the target's time was over" in result.text, result.text
        assert "did not come" not in result.text
    assert "The target's time was short: it left this case" in ended.log, ended.log


def _can_unshare(*arguments: str) -> bool:
    command = ["unshare", "--user", "--map-root-user", *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


# Runs in its own mount namespace, with a temporary folder of one megabyte and a limited number of files.
_ON_A_FULL_DISK = """
    import os
    import subprocess
    import sys

    small = os.environ["SMALL"]
    options = f"size=1m,nr_inodes={os.environ['FILES']}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", small], check=True)
    os.environ["TMPDIR"] = os.environ["TEST_TMPDIR"] = small
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "test_cases.py"])
"""


def _run_on_a_small_disk(starter: Starter, folder: Path, source: str, files: int) -> Ended:
    if not _can_unshare("--mount", "mount", "-t", "tmpfs", "none", "/mnt"):
        pytest.skip("this kernel does not let a user mount a file system in a user namespace")
    (folder / "small").mkdir()
    write_file(folder, "fill.py", _ON_A_FULL_DISK)
    write_file(folder, "test_cases.py", source)
    write_file(folder, "pytest.ini", "[pytest]\naddopts = -p dist_testing.core.pytest.plugin --color=no\n")
    write_file(
        folder,
        "namespace.py",
        """
        import os
        import sys

        os.execvp("unshare", ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "fill.py"])
        """,
    )
    env = {"SMALL": str(folder / "small"), "FILES": str(files)}
    child = starter.start(["namespace.py"], folder, env=env, fresh=True)
    return Ended(child.wait(), child.log)


def test_a_missing_loopback_is_told_at_once(starter: Starter, tmp_path: Path) -> None:
    """If this fails, ranks in a container without a network wait for each other until the limit of the case."""
    if not _can_unshare("--net", "true"):
        pytest.skip("this kernel does not let a user make a network namespace")
    write_file(tmp_path, "test_cases.py", _SUM)
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-m", "pytest", "test_cases.py"]
    command += ["-p", "dist_testing.core.pytest.plugin", "-p", "no:cacheprovider"]
    write_file(tmp_path, "namespace.py", f"import os\n\nos.execvp('unshare', {command!r})\n")
    child = starter.start(["namespace.py"], tmp_path, fresh=True)
    assert child.wait() != 0
    assert "ranks cannot meet at 127.0.0.1: Network is unreachable." in child.log
    assert "ip link set lo up" in child.log
    assert "Traceback" not in child.log


def test_full_disk_before_the_ranks_is_a_clear_error(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a full disk, common on shared machines, gives a traceback: not even logs can be written."""
    ended = _run_on_a_small_disk(starter, tmp_path, _SUM, files=1)
    assert ended.code not in (pytest.ExitCode.OK, pytest.ExitCode.INTERNAL_ERROR), ended.log
    assert "No space left on device" in ended.log
    assert "Traceback" not in ended.log
    assert "INTERNALERROR" not in ended.log


def test_disk_that_fills_up_in_a_case_costs_that_case(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a case after the one that filled the disk fails, too."""
    ended = _run_on_a_small_disk(
        starter,
        tmp_path,
        """
        import pytest
        import torch
        import torch.distributed as dist

        @pytest.mark.distributed(world_size=2)
        def test_fills(world):
            if world.rank == 1:
                (world.rank_tmp_path / "large").write_bytes(bytes(2 << 20))
            dist.barrier()

        @pytest.mark.distributed(world_size=2)
        def test_writes(world):
            (world.rank_tmp_path / "small").write_bytes(bytes(100 << 10))
            dist.barrier()

        @pytest.mark.distributed(world_size=2)
        def test_prints(world):
            if world.rank == 1:
                print("x" * (2 << 20))
                raise ValueError("planted")
            dist.barrier()

        @pytest.mark.distributed(world_size=2)
        def test_next(world):
            dist.barrier()
        """,
        files=1000,
    )
    failed, passed = ("test_fills", "test_prints"), ("test_writes", "test_next")
    assert ended.outcomes() == dict.fromkeys(failed, "FAILED") | dict.fromkeys(passed, "PASSED"), ended.log
    assert "rank 1 raised OSError: [Errno 28] No space left on device" in ended.log


# The limit does not bind root, so the process becomes another user once everything is loaded.
_FEW_PROCESSES = """
    import os
    import resource
    import sys
    import psutil
    import torch.distributed
    from dist_testing.core.ground.backends import backend_named
    from dist_testing.core.ground.errors import LaunchError
    from tests.support.worlds import Functions, FunctionRankContext, engine_for, run

    def nothing(world, body): ...

    backend_named("gloo")
    if os.getuid() == 0:
        os.chown(os.environ["TMPDIR"], 65534, 65534)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    os.chdir("/")
    mine = [process for process in psutil.process_iter() if process.uids().real == os.getuid()]
    limit = sum(process.num_threads() for process in mine) + 3
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    with engine_for({"nothing": nothing}) as engine:
        try:
            print(run(engine, "nothing", world_size=16, init=False, with_store=False))
        except LaunchError as error:
            print(f"refused: {error}")
        after = run(engine, "nothing", world_size=1, init=False, with_store=False)
        print(f"after it: {after.verdict.status.value}")
"""


def _is_open_to_others(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)


def _has_another_user() -> bool:
    """Whether this user namespace has the user 65534; that of a sandbox may have one user only."""
    users = [line.split() for line in Path("/proc/self/uid_map").read_text(encoding="utf-8").splitlines()]
    return any(int(first) <= 65534 < int(first) + int(count) for first, _, count in users)


def test_limit_of_processes_is_a_clear_error_and_costs_one_case(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a machine at its process limit gives no clear error, or half a world stays."""
    if os.getuid() == 0 and not _is_open_to_others(Path(torch.__file__)):
        pytest.skip("the limit of processes does not bind root, and no other user may read this Python's packages")
    if os.getuid() == 0 and not _has_another_user():
        pytest.skip("the limit of processes does not bind root, and this user namespace has no other user")
    write_file(tmp_path, "few.py", _FEW_PROCESSES)
    with tempfile.TemporaryDirectory() as folder:
        # pytest's own folders are closed to other users.
        child = starter.start([str(tmp_path / "few.py")], tmp_path, env={"TMPDIR": folder})
        assert child.wait() == 0, child.log
    assert "of 16 could not be started" in child.log, child.log
    assert "Run fewer tests at once, or ask for a smaller world" in child.log
    assert "after it: passed" in child.log


def _meet(world: World, _: dict[str, object]) -> None:
    dist.barrier()


@pytest.mark.parametrize("allowed", [0, 2])
def test_refused_fork_ends_the_ranks_that_already_started(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """If this fails, half a world stays after a refused fork, or the next world fails."""
    forks: list[None] = []

    def fork() -> int:
        if len(forks) == allowed + 1:
            forks.clear()
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        forks.append(None)
        return os.fork()

    with engine_for({"meet": _meet}) as engine:
        # Patched for the fork server, which is forked from this process.
        monkeypatch.setattr("dist_testing.core.launch.fork_server.fork", fork)
        forks.append(None)
        with pytest.raises(LaunchError, match=f"Rank {allowed} of 4 could not be started: .*Resource temporarily"):
            run(engine, "meet", world_size=4)
        if allowed:
            result = run(engine, "meet", world_size=allowed)
            assert result.verdict.status is Status.PASSED, result


def test_a_world_that_starts_slowly_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a world of 1,000 ranks starts in silence; or every world writes to the log."""
    with engine_for({"nothing": lambda _, __: None}) as engine:
        lines: list[str] = []
        engine.log_line = lines.append
        monkeypatch.setattr("dist_testing.core.engine.supervisor._STARTING_S", 0.0)
        run(engine, "nothing", world_size=2)
        assert lines == []
        monkeypatch.setattr("dist_testing.core.engine.supervisor._MANY", 2)
        monkeypatch.setattr("dist_testing.core.engine.supervisor._STARTING_S", 600.0)
        run(engine, "nothing", world_size=2)
        assert lines == []
        monkeypatch.setattr("dist_testing.core.engine.supervisor._STARTING_S", 0.0)
        run(engine, "nothing", world_size=2)
    assert lines[0] == "dist_testing: nothing: starting ranks: 0 of 2 are ready"


@pytest.mark.parametrize(
    ("broken", "status", "said"),
    # Either rank may be the first to report.
    [([0, 1], Status.PASSED, "rank [01] never started: OSError: no room"), ([1], Status.FAILED, "")],
)
def test_ranks_that_could_not_start_are_requested_again_if_no_test_has_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: list[int], status: Status, said: str
) -> None:
    """If this fails, a short lack of resources costs a case, or a test runs twice."""
    front_end = FunctionRankContext.front_end

    def fail_once(context: FunctionRankContext, body: CaseBody) -> Functions:
        rank = os.environ["RANK"]
        if int(rank) in broken and not (tmp_path / rank).exists():
            (tmp_path / rank).touch()
            raise OSError("no room")
        return front_end(context, body)

    monkeypatch.setattr(FunctionRankContext, "front_end", fail_once)
    with engine_for({"nothing": lambda _, __: None}) as engine:
        result = run(engine, "nothing", world_size=2, init=False)
    assert result.verdict.status is status, result
    assert re.fullmatch(said, result.retried), result
