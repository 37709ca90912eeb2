"""Abnormal runners, fork servers and machines: each costs one case at most, and the reason is reported."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.outcomes import Cause, Status
from dist_testing.core.ground.world import World
from dist_testing.core.launch import fork_server
from dist_testing.core.launch.fork import ForkServerLauncher
from tests.support.children import run_cases, write_file
from tests.support.open_files import all_low_numbers_taken
from tests.support.starter import Starter
from tests.support.worlds import engine_for, run

_IGNORES = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
# Daemons do this: they wait for every child that ended, whichever code started it.
_TAKES_ALL = """
def take_all(*_):
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return

signal.signal(signal.SIGCHLD, take_all)
"""
# Makes the fork server a fresh interpreter.
_HAS_A_THREAD = "threading.Thread(target=threading.Event().wait, daemon=True).start()"


def _nothing(world: World, _: dict[str, Any]) -> None:
    assert Path(os.environ["TMPDIR"]).is_dir()


def _raise(world: World, _: dict[str, Any]) -> None:
    raise ValueError("planted")


def _leave_one(world: World, _: dict[str, Any]) -> None:
    if world.rank == 0:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)


def _vanish(world: World, _: dict[str, Any]) -> None:
    if world.rank == 0 and os.fork():
        # The child keeps the channel to the runner open.
        os._exit(3)
    threading.Event().wait()


def _wait(world: World, _: dict[str, Any]) -> None:
    threading.Event().wait()


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine for one test; at the end nothing may be left of it."""
    with engine_for({"nothing": _nothing, "raise": _raise, "leave one": _leave_one}) as engine:
        yield engine


def _passes(engine: Engine) -> bool:
    return run(engine, "nothing", world_size=2, init=False).verdict.status is Status.PASSED


def _fork_server_of(engine: Engine) -> int:
    launcher, _ = engine.prepare()
    assert isinstance(launcher, ForkServerLauncher)
    return launcher._pid


@pytest.mark.parametrize(
    ("setting", "more", "isolation"),
    [(_IGNORES, "", "fork"), (_TAKES_ALL, "", "fork"), (_IGNORES, _HAS_A_THREAD, "spawn")],
    ids=["ignored", "taken", "fresh interpreters"],
)
def test_sigchld_settings_belong_to_the_test_file(
    starter: Starter, tmp_path: Path, setting: str, more: str, isolation: str
) -> None:
    """If this fails, a file or tool that sets SIGCHLD stops the run, or ranks do not see its setting."""
    source = f"""
import os
import signal
import threading

import pytest

{setting}
{more}

@pytest.mark.distributed(world_size=2, isolation="{isolation}")
@pytest.mark.parametrize("number", range(2))
def test_it(world, number):
    assert signal.getsignal(signal.SIGCHLD) not in (signal.SIG_DFL, None)

@pytest.mark.distributed(world_size=2, isolation="{isolation}")
def test_fails(world):
    assert world.rank == 1
"""
    ended = run_cases(starter, tmp_path, source)
    assert ended.outcomes() == {"test_it[0]": "PASSED", "test_it[1]": "PASSED", "test_fails": "FAILED"}, ended.log
    assert ("fresh interpreter" in ended.log) is bool(more)


def test_a_time_limit_for_new_sockets_is_none_for_ranks() -> None:
    """If this fails, a test file that sets one makes each rank fail that waits longer for a slow one."""
    socket.setdefaulttimeout(1e-6)
    try:
        with engine_for({"nothing": _nothing, "vanish": _vanish}) as engine:
            results = [run(engine, "nothing", world_size=2, isolation="pool", pool="class") for _ in range(5)]
            assert {result.verdict.status for result in results} == {Status.PASSED}, results
            assert run(engine, "vanish", world_size=2, init=False).verdict.cause is Cause.CRASH
    finally:
        socket.setdefaulttimeout(None)


def test_a_message_to_a_dead_rank_ends_no_runner(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a file that sets SIGPIPE as command-line tools do lets a killed rank end the whole run."""
    source = """
        import os
        import signal
        from pathlib import Path
        import pytest

        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        pytestmark = pytest.mark.distributed(world_size=2, isolation="pool")

        def test_first(world):
            Path(f"pid-{world.rank}").write_text(str(os.getpid()))

        def test_second(world): ...

        def test_third(world): ...
    """
    conftest = """
        import os
        from pathlib import Path
        from tests.support.starter import wait_ended

        def pytest_runtest_call(item):
            if item.name == "test_second" and "RANK" not in os.environ:
                pid = int(Path("pid-1").read_text())
                os.kill(pid, 9)
                assert wait_ended([pid], 60)
    """
    write_file(tmp_path, "conftest.py", conftest)
    ended = run_cases(starter, tmp_path, source)
    ended.check(passed="test_first test_third", failed="test_second", log=["rank 1 was killed by SIGKILL (9)"])


def test_descriptors_that_cannot_be_sent_cost_one_case(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, half a request stays in the channel, and the next one is misread or never answered."""
    # Too long for sockets, like Bazel's: ranks get their temporary folder in another way.
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TEST_TMPDIR", str(long))
    failed = run(engine, "raise", world_size=2, init=False)

    def refuse(*_: Any) -> NoReturn:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    with monkeypatch.context() as patch:
        patch.setattr("dist_testing.core.process.wire._CROWD_LIMIT_S", 0.0)
        patch.setattr(socket, "send_fds", refuse)
        with pytest.raises(LaunchError, match=r"Too many references.*\n.*sending each other more open files"):
            run(engine, "nothing", world_size=2, init=False)
    assert _passes(engine)
    assert failed.log_files[0].exists(), "the run's folder is removed with the run, and not with its fork server"


def _descriptors_while_waiting(pid: int) -> set[int]:
    """Return the open descriptors of a process that waits: while it works, some more are open for a moment."""
    process = psutil.Process(pid)
    while True:
        found = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
        if process.status() == psutil.STATUS_SLEEPING and found == {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}:
            return found


@pytest.mark.parametrize("free", [5, 12], ids=["for the request", "for its ranks"])
def test_fork_server_without_room_for_open_files_is_reported(engine: Engine, free: int) -> None:
    """If this fails, the user does not learn why no rank starts.

    A request for a world of four brings ten descriptors, and each rank needs one more.
    """
    pid = _fork_server_of(engine)
    taken = _descriptors_while_waiting(pid)
    limit = next(limit for limit in range(1000) if limit - sum(fd < limit for fd in taken) == free)
    refusal = ""
    while not refusal:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
        try:
            run(engine, "nothing", world_size=4, init=False)
        except LaunchError as error:
            refusal = str(error)
        # What the last world has left open when the descriptors were counted may be closed now.
        limit -= 1
    assert re.search(r"Rank \d of 4 could not .*Too many open files.*\n.*Each rank needs some", refusal), refusal
    assert _passes(engine)


def test_process_of_another_user_is_named_and_costs_one_case(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, `sudo` in a test ends the run, or fails the next case, because the process cannot be killed."""
    kill = psutil.Process.kill

    def kill_own(process: psutil.Process) -> None:
        # The kernel's answer for another user's process.
        if process.name() == "sleep":
            raise psutil.AccessDenied(process.pid)
        kill(process)

    monkeypatch.setattr(psutil.Process, "kill", kill_own)
    result = run(engine, "leave one", world_size=2, init=False)
    try:
        assert (Status.FAILED, Cause.LEAK) == (result.verdict.status, result.verdict.cause), result
        (leaked,) = result.leaked
        assert "not killed: it runs as another user" in leaked
        assert _passes(engine)
    finally:
        for number in re.findall(r"sleep 1000 \(pid (\d+)", " ".join(result.leaked)):
            os.kill(int(number), signal.SIGKILL)


def test_rank_that_has_become_another_user_does_not_end_the_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the user is told of a lack of memory, although the rank runs `sudo` and cannot be killed."""
    runner, kill, others = os.getpid(), os.kill, psutil.Process().children()

    def kill_no_rank(pid: int, number: int) -> None:
        # The kernel's answer for another user's process.
        if number == signal.SIGKILL and os.getpid() != runner:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        kill(pid, number)

    monkeypatch.setattr("dist_testing.core.engine.supervisor._KILL_LIMIT_S", 0.5)
    with engine_for({"nothing": _nothing, "wait": _wait}) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", kill_no_rank)
            with pytest.raises(LaunchError, match="could not be killed") as caught:
                run(engine, "wait", world_size=2, timeout_s=0.5, init=False)
        assert len(str(caught.value).splitlines()) == 3
        # These ranks end with the fork server all the same, and this process has inherited them.
        psutil.wait_procs([child for child in psutil.Process().children() if child not in others])
        assert _passes(engine)


def test_error_of_the_fork_server_itself_is_not_reported_as_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the user is told of a lack of memory and searches for one that does not exist."""

    def fail(*_: Any) -> NoReturn:
        raise ZeroDivisionError("planted")

    with engine_for({"nothing": _nothing}) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(fork_server, "take_over", fail)
            with pytest.raises(LaunchError, match=r"a bug of dist_testing(.*\n)+.*ZeroDivisionError: planted"):
                run(engine, "nothing", world_size=2, init=False)
        assert _passes(engine)


def test_runner_with_a_thousand_open_files_runs_tests() -> None:
    """If this fails, test files with open data sets, or a world of five hundred ranks, end the runner."""
    with all_low_numbers_taken(), engine_for({"nothing": _nothing}) as engine:
        assert _passes(engine)


def test_current_directory_that_a_test_has_removed_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the case that cannot run is blamed for the case that removed the folder."""
    before = Path.cwd()
    pid = _fork_server_of(engine)
    gone = tempfile.mkdtemp()
    try:
        os.chdir(gone)
        os.rmdir(gone)
        with pytest.raises(LaunchError, match=f"The current directory, {gone}, has been removed"):
            _passes(engine)
    finally:
        os.chdir(before)
    assert _passes(engine)
    assert _fork_server_of(engine) == pid, "it got no request, so it is still usable"


def test_folder_of_the_run_goes_before_the_fork_server_and_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a runner that is killed while it ends, or an error at its end, leaves the folder for ever."""
    close = ForkServerLauncher.close
    were_there: list[bool] = []
    with engine_for({"nothing": _nothing}) as engine:
        _, directory = engine.prepare()
        assert _passes(engine)
        paths = [Path(path) for path in directory.all_paths]

        def look_close_and_fail(launcher: ForkServerLauncher) -> None:
            were_there.extend(path.exists() for path in paths)
            close(launcher)
            # A process of the test writes once more, as one that is not killed yet can.
            directory.path.mkdir()
            raise OSError("planted")

        monkeypatch.setattr(ForkServerLauncher, "close", look_close_and_fail)
        with pytest.raises(OSError, match="planted"):
            engine.close()
        monkeypatch.undo()
    assert were_there == [False] * len(paths)
    assert not directory.path.exists()
