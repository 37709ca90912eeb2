"""A runner that is killed or stopped in every phase of a case: nothing survives it, and known results are reported."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.bell import Bell
from tests.support.children import Target, assert_no_folder_left, run_pytest, start_pytest, write_file
from tests.support.starter import Child, Starter, wait_ended

# Seconds from the end of the runner until nothing of it may be left; far above the usual time.
_GONE_LIMIT_S = 15.0
_RANKS = 2

# Every rank stops in the phase that the environment names, and reports it.
_CASES = """
    import os
    import re
    import resource
    import signal
    import subprocess
    import sys
    import threading
    from multiprocessing.shared_memory import SharedMemory
    from pathlib import Path
    import pytest
    import torch
    import torch.distributed as dist
    import torch.multiprocessing
    from tests.support.bell import ring

    PHASE = os.environ["PHASE"]

    def hold(phase, said=""):
        if phase == PHASE:
            ring(f"{phase} {said}")
            threading.Event().wait()

    if PHASE == "import":
        try:
            Path("imported").touch(exist_ok=False)
        except FileExistsError:
            # The second interpreter that imports this file is a rank.
            hold("import")
    if PHASE == "nohup":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if PHASE == "init":
        dist.init_process_group = lambda *_, **__: hold("init")

    @pytest.fixture
    def resource():
        yield
        hold("teardown")

    @pytest.mark.distributed(init=False)
    def test_finished(world): ...

    @pytest.mark.distributed(isolation="spawn" if PHASE == "import" else None)
    def test_held(world, resource):
        if PHASE == "destroy":
            world.finish = lambda: hold("destroy")
        hold("asleep")
        if PHASE == "nohup":
            # As when the user logs out.
            os.killpg(0, signal.SIGHUP)
            world.barrier()
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
            hold("nohup")
        if PHASE == "grandchild":
            memory = SharedMemory(create=True, size=16)
            torch.multiprocessing.set_sharing_strategy("file_system")
            tensor = torch.ones(9).share_memory_()
            (kept,) = re.findall(r"/dev/shm/(torch_\\w+)", Path("/proc/self/maps").read_text())
            sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
            subprocess.Popen(sleeper, start_new_session=True)
            hold("grandchild", f"{memory.name} {kept}")
        if PHASE == "collective" and world.rank == 0:
            ring("collective")
            dist.all_reduce(torch.ones(4))
        hold("collective")
"""
_PHASES = ["import", "init", "asleep", "collective", "grandchild", "teardown", "destroy"]


def _assert_nothing_left(starter: Starter, folder: Path, heard: list[str]) -> None:
    starter.wait_nothing_left(_GONE_LIMIT_S)
    assert_no_folder_left(folder)
    # Only names that the ranks sent: a process of another sandbox, which shares this folder, can have the same pid.
    left = [name for line in heard for name in line.split()[1:] if Path("/dev/shm", name).exists()]
    assert not left, f"segments are left: {left}"


def _hold(starter: Starter, folder: Path, phase: str, bell_folder: Path | None = None) -> tuple[Child, list[str]]:
    """Start pytest and wait until all ranks hold; return it, and what they have said."""
    write_file(folder, "test_cases.py", _CASES)
    with Bell(bell_folder or folder) as bell:
        options = ("test_cases.py", f"--dist-world-size={_RANKS}")
        child = start_pytest(starter, folder, *options, env={**bell.env, "PHASE": phase})
        return child, bell.wait(_RANKS, child)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("phase", _PHASES)
def test_nothing_survives_pytest(starter: Starter, tmp_path: Path, phase: str, number: signal.Signals) -> None:
    """If this fails, an orphan process keeps a GPU, a port and a core, and its owner is unknown."""
    child, heard = _hold(starter, tmp_path, phase)
    pids = starter.pids_left()
    assert len(pids) >= 2 + _RANKS, "a runner, a fork server and the ranks"
    child.send_signal(number)
    code = child.wait()
    assert code == (-number if number is signal.SIGKILL else pytest.ExitCode.INTERRUPTED), child.log
    _assert_nothing_left(starter, tmp_path, heard)


def test_signals_of_the_terminal(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a run under nohup fails when its user logs out, or SIGQUIT leaves what ranks have started."""
    # Each rank has sent SIGHUP to all, and lives.
    child, heard = _hold(starter, tmp_path, "nohup")
    child.send_group_signal(signal.SIGQUIT)
    assert child.wait() == -signal.SIGQUIT, child.log
    _assert_nothing_left(starter, tmp_path, heard)


@pytest.mark.parametrize("to_all", [False, True], ids=["to the runner", "to all, as Ctrl-C does"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_stopped_run_reports_where_its_ranks_were(
    starter: Starter, tmp_path: Path, number: signal.Signals, to_all: bool
) -> None:
    """If this fails, Ctrl-C at a hang, which users prefer to limits of minutes, loses what hung and where."""
    child, heard = _hold(starter, tmp_path, "collective")
    (child.send_group_signal if to_all else child.send_signal)(number)
    assert child.wait() == pytest.ExitCode.INTERRUPTED, child.log
    assert "test_cases.py::test_held (world of 2): the run was stopped after" in child.log
    if not to_all:
        assert "in all_reduce" in child.log
    if number is signal.SIGINT or not to_all:
        # As a stack, or as the traceback of the rank's own KeyboardInterrupt.
        assert "in hold" in child.log
    _assert_nothing_left(starter, tmp_path, heard)


def test_leftovers_of_a_run_killed_as_a_whole_are_removed_at_the_next_start(starter: Starter, tmp_path: Path) -> None:
    """If this fails, Bazel's kills of runner, fork server and ranks fill a machine that runs tests all day."""
    (tmp_path / "other").mkdir()
    child, _ = _hold(starter, tmp_path, "asleep")
    dead_run = starter.pids_left()
    other, _ = _hold(starter, tmp_path, "asleep", tmp_path / "other")
    child.send_group_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, child.log
    # The fork server holds the lock of the folder until the kernel has ended it, which takes time on a busy machine.
    assert wait_ended(dead_run, _GONE_LIMIT_S)
    folders = {path for path in (tmp_path / "tmp").iterdir() if path.name.startswith("dist-")}
    assert len(folders) == 2, "one folder of the dead run, one of the living run"

    next_run = start_pytest(starter, tmp_path, "test_cases.py", "-k", "finished", env={"PHASE": "none"})
    assert next_run.wait() == 0, next_run.log
    left = {path for path in (tmp_path / "tmp").iterdir() if path.name.startswith("dist-")}
    assert len(left & folders) == 1, "only the folder of the living run may stay"
    other.send_signal(signal.SIGTERM)
    other.wait()
    starter.wait_nothing_left(_GONE_LIMIT_S)
    assert_no_folder_left(tmp_path)


@pytest.mark.parametrize(
    ("number", "to_group", "times", "phase"),
    [
        *((signal.SIGTERM, False, 1, phase) for phase in _PHASES),
        *((signal.SIGTERM, True, 1, phase) for phase in ("asleep", "grandchild", "destroy")),
        *((signal.SIGINT, False, 1, phase) for phase in ("init", "collective", "teardown")),
        # A second signal, of Bazel or a user, does not break the clean-up.
        (signal.SIGTERM, True, 3, "asleep"),
        *((signal.SIGKILL, False, 1, phase) for phase in ("asleep", "grandchild")),
    ],
)
def test_interrupted_target_reports_its_results(
    starter: Starter, tmp_path: Path, number: signal.Signals, to_group: bool, times: int, phase: str
) -> None:
    """If this fails, a target that Bazel signals shows no results, or one that vanished looks like one without any."""
    target = Target(tmp_path, {"test_cases.py": _CASES}, world_size=_RANKS)
    with Bell(tmp_path) as bell:
        child = target.start(starter, env={**bell.env, "PHASE": phase})
        heard = bell.wait(_RANKS, child)
    for _ in range(times):
        (child.send_group_signal if to_group else child.send_signal)(number)
    code = child.wait()
    _assert_nothing_left(starter, tmp_path, heard)
    if number is signal.SIGKILL:
        assert code == -number
        assert (target.premature_exit_file.exists(), target.xml_file.exists()) == (True, False)
        return
    assert code == pytest.ExitCode.INTERRUPTED, child.log
    assert target.xml()["test_finished"].outcome == "passed"
    assert "1 passed" in child.log
    assert "Traceback" not in child.log
    if number is signal.SIGTERM:
        assert "the runner got SIGTERM (15)" in child.log


def test_processes_that_a_plain_test_forks_are_no_runners(starter: Starter, tmp_path: Path) -> None:
    """If this fails, such a server does not end by SIGTERM, or ranks outlive a killed runner as long as it runs."""
    source = """
        import multiprocessing
        import os
        import signal
        import threading
        import pytest
        from tests.support.bell import ring

        to_end = []
        # Before Python's own work after a fork is done.
        os.register_at_fork(after_in_child=lambda: to_end and os.kill(os.getpid(), to_end[0]))

        def serve():
            ring(f"server {os.getpid()}")
            threading.Event().wait()

        def test_servers():
            first, second = (multiprocessing.get_context("fork").Process(target=serve) for _ in range(2))
            to_end.append(signal.SIGTERM)
            first.start()
            first.join()
            ring(f"ended {first.exitcode}")
            to_end.clear()
            second.start()

        @pytest.mark.distributed(world_size=2)
        def test_ranks(world):
            ring("rank")
            threading.Event().wait()
    """
    write_file(tmp_path, "test_cases.py", source)
    with Bell(tmp_path) as bell:
        child = start_pytest(starter, tmp_path, "test_cases.py", env=bell.env)
        ended, server = (line.split() for line in bell.wait(4, child) if line != "rank")
        assert ended == ["ended", str(-signal.SIGTERM)], child.log
    others = [pid for pid in starter.pids_left() if pid != int(server[1])]
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert wait_ended(others, _GONE_LIMIT_S)
    assert_no_folder_left(tmp_path)
    os.kill(int(server[1]), signal.SIGKILL)
    starter.wait_nothing_left(_GONE_LIMIT_S)


@pytest.mark.parametrize(
    ("number", "importer"),
    [
        (signal.SIGINT, ""),
        (signal.SIGTERM, ""),
        (signal.SIGINT, "conftest.py"),
        (signal.SIGINT, "-pdist_testing.adopt.elastic"),
        (signal.SIGINT, "-pdist_testing.adopt.spawn"),
        (signal.SIGINT, "-pdist_testing.compat.pytest_install"),
    ],
)
def test_a_signal_while_torch_is_imported(starter: Starter, tmp_path: Path, number: int, importer: str) -> None:
    """If this fails, a signal in the first seconds of a run sometimes has no effect, and ranks work without numpy."""
    # torch imports it first in native code, which clears errors.
    numpy = f"""
        import os
        from pathlib import Path

        if Path("imported").exists():
            raise ModuleNotFoundError
        Path("imported").touch()
        os.kill(os.getpid(), {number:d})
    """
    write_file(tmp_path, "numpy.py", numpy)
    if importer == "conftest.py":
        write_file(tmp_path, importer, "import torch")
    source = "import pytest\n@pytest.mark.distributed(world_size=2)\ndef test_it(world): ...\n"
    write_file(tmp_path, "test_cases.py", source)
    options = [importer] if importer.startswith("-p") else []
    ended = run_pytest(starter, tmp_path, *options, "test_cases.py", fresh=True)
    # Before the session begins, pytest lets Python end by the signal.
    code = pytest.ExitCode.INTERRUPTED if not importer else -signal.SIGINT
    assert ended.code == code, ended.log
    assert "passed" not in ended.log


def test_ctrl_c_in_the_collection_tells_the_place(starter: Starter, tmp_path: Path) -> None:
    """If this fails, Ctrl-C does not show which import of the tests takes so long."""
    write_file(tmp_path, "test_cases.py", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    ended = run_pytest(starter, tmp_path, "test_cases.py")
    assert ended.code == pytest.ExitCode.INTERRUPTED, ended.log
    assert "test_cases.py:2: KeyboardInterrupt" in ended.log


def test_sigterm_while_the_fork_server_is_forked(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the first test still runs after a SIGTERM, until the runner is killed and its results are lost."""
    conftest = """
        import os
        import signal

        # Python drops what a handler raises here.
        os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGTERM))
    """
    write_file(tmp_path, "conftest.py", conftest)
    source = "import pytest\n@pytest.mark.distributed(world_size=2)\ndef test_it(world): ...\n"
    write_file(tmp_path, "test_cases.py", source)
    ended = run_pytest(starter, tmp_path, "test_cases.py")
    assert ended.code == pytest.ExitCode.INTERRUPTED, ended.log
    assert "passed" not in ended.log
    assert "Traceback" not in ended.log


def test_ctrl_c_while_the_end_of_a_world_is_read(starter: Starter, tmp_path: Path) -> None:
    """If this fails, such a run waits 15 s for ranks that have ended, and reports nothing."""
    conftest = """
        from dist_testing.core.launch.fork import ForkServerClient
        from dist_testing.core.process.launcher_messages import WorldOver

        read = ForkServerClient.events

        def events(self):
            for event in read(self):
                if isinstance(event, WorldOver):
                    ForkServerClient.events = read
                    raise KeyboardInterrupt
                yield event

        ForkServerClient.events = events
    """
    write_file(tmp_path, "conftest.py", conftest)
    source = "import pytest\n@pytest.mark.distributed(world_size=2)\ndef test_it(world): ...\n"
    write_file(tmp_path, "test_cases.py", source)
    ended = run_pytest(starter, tmp_path, "test_cases.py")
    assert ended.code == pytest.ExitCode.INTERRUPTED, ended.log
    assert "test_cases.py::test_it (world of 2): the run was stopped after" in ended.log


def test_death_of_the_fork_server_costs_one_case(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test that kills its parent ends the whole run, or what its ranks have started outlives it."""
    source = """
        import os
        import subprocess
        import sys
        import threading
        from multiprocessing.shared_memory import SharedMemory
        from pathlib import Path
        import psutil
        import pytest

        SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]
        STREAMS, NULL = ("stdin", "stdout", "stderr"), subprocess.DEVNULL
        # A process of the runner: no rank started it.
        SERVER = subprocess.Popen(SLEEP)

        @pytest.mark.distributed(world_size=2)
        @pytest.mark.parametrize("leaves", ["nothing", "session", "fork", "stranger", "memory"])
        def test_kills_its_parent(world, leaves):
            if world.rank == 0:
                if leaves == "session":
                    subprocess.Popen(SLEEP, start_new_session=True)
                elif leaves == "fork":
                    if os.fork() == 0:
                        os.setsid()
                        threading.Event().wait()
                elif leaves == "stranger":
                    subprocess.Popen(SLEEP, env={}, cwd="/", start_new_session=True, **dict.fromkeys(STREAMS, NULL))
                elif leaves == "memory":
                    Path("segment").write_text(SharedMemory(create=True, size=1).name)
                os.kill(os.getppid(), 9)
            threading.Event().wait()

        @pytest.mark.distributed(world_size=2)
        def test_next(world): ...

        def test_server():
            assert SERVER.poll() is None
            SERVER.kill()
            SERVER.wait()

        # Tests of daemons wait for any child.
        def test_ends_every_child():
            for child in psutil.Process().children():
                child.kill()
                os.waitpid(-1, 0)

        @pytest.mark.distributed(world_size=2)
        def test_after_it(world): ...

        @pytest.mark.distributed(world_size=2)
        def test_last(world): ...
    """
    write_file(tmp_path, "test_cases.py", source)
    ended = run_pytest(starter, tmp_path, "-rA", "test_cases.py")
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert ended.outcomes() == {
        **{f"test_kills_its_parent[{left}]": "FAILED" for left in ("nothing", "session", "fork", "stranger", "memory")},
        "test_next": "PASSED",
        "test_server": "PASSED",
        "test_ends_every_child": "PASSED",
        "test_after_it": "FAILED",
        "test_last": "PASSED",
    }
    assert ended.log.count("ended before the runner was done with it") >= 6
    assert "Traceback" not in ended.log
    assert not Path("/dev/shm", (tmp_path / "segment").read_text()).exists()


def test_stop_of_the_fork_server_costs_one_case(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the run never ends: a stopped fork server sends nothing and does not end when closed."""
    conftest = """
        from dist_testing.core.launch import fork
        from dist_testing.core.engine import supervisor

        # In seconds.
        fork._CLOSE_LIMIT_S = supervisor._KILL_LIMIT_S = 0.5
    """
    write_file(tmp_path, "conftest.py", conftest)
    source = """
        import os
        import signal
        import pytest

        @pytest.mark.distributed(world_size=2, timeout=2)
        def test_stops_its_parent(world):
            if world.rank == 0:
                os.kill(os.getppid(), signal.SIGSTOP)

        @pytest.mark.distributed(world_size=2)
        def test_next(world): ...
    """
    write_file(tmp_path, "test_cases.py", source)
    ended = run_pytest(starter, tmp_path, "-rA", "test_cases.py")
    assert ended.outcomes() == {"test_stops_its_parent": "FAILED", "test_next": "PASSED"}, ended.log
    assert re.search(r"Rank\(s\) 0 \(pid \d+, .*\), 1 \(pid \d+, .*\) could not be killed", ended.log), ended.log
    assert "Traceback" not in ended.log
