"""The watch mode, driven as a person does: by saves, commands and signals."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.bell import Bell
from tests.support.children import Target, run_pytest, write_file
from tests.support.starter import Starter, wait_ended
from tests.support.terminal import WAITS, Watch, save

_SUM = """
    import library
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.distributed(world_size=2)
    def test_sum(world):
        total = torch.ones(2)
        dist.all_reduce(total)
        assert total[0] == library.TWO

    def test_plain(): ...
"""


def test_a_save_runs_what_it_concerns(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a save runs old code, or too few tests, or a save of a test file runs all tests."""
    write_file(tmp_path, "library.py", "import deep\nTWO = deep.TWO\n")
    write_file(tmp_path, "deep.py", "TWO = 2\n")
    write_file(tmp_path, "conftest.py", "VALUE = 1\n")
    # Only ranks import it, and no watched file is beside it.
    write_file(tmp_path, "far/away.py", "ONE = 1\n")
    write_file(
        tmp_path, "tests/test_sum.py", _SUM.replace("torch.ones(2)", "torch.ones(2) * __import__('far.away').away.ONE")
    )
    write_file(tmp_path, "tests/other/conftest.py", "VALUE = 1\n")
    write_file(tmp_path, "tests/other/test_other.py", "def test_other():\n    pass\n")
    with Watch(starter, tmp_path, "tests") as watch:
        assert "3 passed" in watch.wait()
        save(tmp_path / "far/away.py", "ONE = 1", "ONE = 7")
        assert "watch: 1 failed, 2 passed" in watch.wait()
        save(tmp_path / "far/away.py", "ONE = 7", "ONE = 1")
        assert "watch: 3 passed" in watch.wait()
        save(tmp_path / "tests/test_sum.py", "== library.TWO", "== library.TWO + 1")
        shown = watch.wait()
        assert "watch: 1 failed, 1 passed" in shown
        assert "rank 0 raised AssertionError" in shown or "rank 1 raised AssertionError" in shown
        assert "test_other" not in shown

        save(tmp_path / "tests/other/conftest.py", "VALUE = 1", "VALUE = 2")
        shown = watch.wait()
        assert "watch: 1 passed" in shown
        assert "watch: 1 failed earlier: tests/test_sum.py::test_sum" in shown

        save(tmp_path / "deep.py", "TWO = 2", "TWO = 1")
        assert "watch: 3 passed" in watch.wait()

        # The same size in the same second, perhaps.
        save(tmp_path / "deep.py", "TWO = 1", "TWO = 3")
        assert "watch: 1 failed, 2 passed" in watch.wait()

        save(tmp_path / "conftest.py", "VALUE = 1", "VALUE = 2")
        shown = watch.wait()
        assert "watch: 1 failed, 2 passed" in shown
        assert shown.index("test_sum.py F") < shown.index("test_other.py"), "failures come first"

        # No change: only the next line is one.
        os.utime(tmp_path / "deep.py")
        write_file(tmp_path, "tests/test_new.py", "def test_new():\n    pass\n")
        assert "watch: 1 passed" in watch.wait()
        (tmp_path / "tests/test_new.py").unlink()
        save(tmp_path / "deep.py", "TWO = 3", "TWO = 1")
        assert "watch: 3 passed" in watch.wait("passed in") + watch.wait()
        assert watch.end("q") == 0


_LEAKING = """
    import os
    import signal
    import subprocess
    import sys
    import threading
    from pathlib import Path
    import pytest
    import torch
    import conftest
    import library

    STATE = []
    LEFT = Path(__file__).with_name("left.txt")
    LEFT.touch()

    def seen():
        return {
            "module": list(STATE),
            "library": dict(vars(library).get("state", {})),
            "environment": {name: value for name, value in os.environ.items() if name.startswith("LEAK")},
            "modules": [name for name in sys.modules if name.startswith("leaked")],
            "path": [path for path in sys.path if "leaked" in path],
            "directory": os.path.basename(os.getcwd()),
            "signal": signal.getsignal(signal.SIGUSR1),
            "threads": [thread.name for thread in threading.enumerate() if "leak" in thread.name],
            "umask": os.umask(0o22),
            "dtype": torch.get_default_dtype(),
            "processes": [pid for pid in LEFT.read_text().split() if os.path.exists(f"/proc/{pid}")],
        }

    CLEAN = {
        "module": [], "library": {}, "environment": {}, "modules": [], "path": [],
        "directory": os.path.basename(os.getcwd()), "signal": signal.SIG_DFL, "threads": [], "umask": 0o22,
        "dtype": torch.float32, "processes": [],
    }

    def leak():
        STATE.append(1)
        library.state = {"a": 1}
        os.environ["LEAK"] = "1"
        sys.modules["leaked"] = sys
        sys.path.append("leaked")
        os.mkdir("sub") if not os.path.isdir("sub") else None
        os.chdir("sub")
        signal.signal(signal.SIGUSR1, lambda *_: None)
        threading.Thread(target=threading.Event().wait, name="leak", daemon=True).start()
        os.umask(0o77)
        torch.set_default_dtype(torch.float64)
        if "LEAVES" in os.environ:
            left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
            LEFT.write_text(str(left.pid))

    def test_in_the_runner():
        assert seen() == CLEAN
        assert os.path.isdir(conftest.FOLDER.name), "an earlier run has removed it"
        leak()

    @pytest.mark.distributed(world_size=2)
    def test_on_ranks(world):
        assert not [name for name in os.environ if name == "LEAKED_BY_RANK"]
        os.environ["LEAKED_BY_RANK"] = "1"
"""


def test_no_state_of_a_run_is_in_the_next(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test passes or fails in watch mode only because of an earlier run."""
    write_file(tmp_path, "library.py", "")
    write_file(tmp_path, "conftest.py", "import tempfile\nimport library\nFOLDER = tempfile.TemporaryDirectory()\n")
    write_file(tmp_path, "test_leaks.py", _LEAKING)
    # A run of its own: the test is right.
    ended = run_pytest(starter, tmp_path, "test_leaks.py", "-p", "no:cacheprovider")
    assert "2 passed" in ended.log, ended.log
    (tmp_path / "pytest.ini").unlink()
    with Watch(starter, tmp_path, "test_leaks.py", env={"LEAVES": "1"}) as watch:
        assert "watch: 2 passed" in watch.wait()
        assert (tmp_path / "left.txt").read_text(encoding="utf-8")
        watch.type("a")
        assert "watch: 2 passed" in watch.wait()
        save(tmp_path / "test_leaks.py", "STATE = []", "STATE = list()")
        assert "watch: 2 passed" in watch.wait()
        assert watch.end("q") == 0


def test_bad_input_is_told_and_waited_out(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a half-written file ends the watch, or shows a traceback of ours."""
    test = write_file(tmp_path, "test_plain.py", "def test_one():\n    assert True\n")
    conftest = write_file(tmp_path, "conftest.py", "VALUE = 1\n")
    plugin = write_file(tmp_path, "start/own_plugin.py", "VALUE = 1\n")
    with Watch(starter, tmp_path, "test_plain.py", "-p", "own_plugin") as watch:
        assert "watch: 1 passed" in watch.wait()
        save(test, "assert True", "assert (True")
        shown = watch.wait()
        assert f"watch: {test}:2: '(' was never closed: assert (True" in shown
        save(test, "assert (True", "assert True and True")
        assert "watch: 1 passed" in watch.wait()

        write_file(tmp_path, "template.py", "class {{ name }}:\n")
        assert "watch: 1 passed" in watch.wait()
        # A name that is no text.
        write_file(tmp_path, "test_caf\udce9.py", "")
        assert r"watch: no test is in test_caf\udce9.py" in watch.wait()

        test.rename(tmp_path / "away")
        assert "watch: test_plain.py is gone" in watch.wait()
        (tmp_path / "away").rename(test)
        save(test, "True and True", "False")
        assert "watch: 1 failed" in watch.wait()

        save(conftest, "VALUE = 1", "VALUE = 1 / 0")
        shown = watch.wait()
        assert "ZeroDivisionError" in shown
        assert "Traceback" not in shown
        save(conftest, "VALUE = 1 / 0", "VALUE = 2")
        assert "watch: 1 failed" in watch.wait()
        save(test, "assert False", "import absent")
        assert "No module named 'absent'" in watch.wait()
        write_file(tmp_path, "absent.py", "")
        assert "watch: 1 passed" in watch.wait("passed in") + watch.wait()
        # The watch would start again with it.
        save(plugin, "VALUE = 1", "VALUE = (1")
        assert "watch: no test runs until this parses" in watch.wait()
        assert watch.end("q") == 0


_HELD = """
    import os
    import threading
    import pytest
    from tests.support.bell import ring

    HOLDS = True

    def test_before():
        assert not HOLDS

    @pytest.mark.distributed(world_size=2)
    def test_held(world):
        if HOLDS:
            ring(f"{os.getpid()} {os.getppid()}")
            threading.Event().wait()
"""


def test_a_save_during_a_run_starts_it_again(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a save has to wait for a hang, or ranks of the stopped run stay, or its failures are forgotten."""
    test = write_file(tmp_path, "test_held.py", _HELD)
    with Bell(tmp_path) as bell, Watch(starter, tmp_path, "test_held.py", env=dict(bell.env)) as watch:
        pids = [int(pid) for line in bell.wait(2, watch.child) for pid in line.split()]
        watch.type("f")
        shown = watch.wait()
        assert "watch: the run was stopped" in shown
        assert "watch: 1 failed in" in shown
        watch.type("a")
        pids += [int(pid) for line in bell.wait(2, watch.child) for pid in line.split()]
        save(test, "HOLDS = True", "HOLDS = False")
        shown += watch.wait()
        assert "watch: 2 passed" in shown
        assert "KeyboardInterrupt" not in shown
        assert "Traceback" not in shown
        assert wait_ended(pids, limit_s=0), "ranks or the fork server of the stopped run are left"
        assert watch.end("q") == 0


_HELD_SUMMARY = """
    import os
    import signal
    from tests.support.bell import ring

    def pytest_terminal_summary():
        come, signalled = os.pipe()
        os.set_blocking(signalled, False)
        signal.set_wakeup_fd(signalled)
        ring("summary")
        os.read(come, 1)
"""


def test_a_save_during_the_summary_shows_no_traceback(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a quick second save prints a hundred lines of pytest's and of this library."""
    write_file(tmp_path, "conftest.py", _HELD_SUMMARY)
    test = write_file(tmp_path, "test_quick.py", "RIGHT = False\n\ndef test_quick():\n    assert RIGHT\n")
    with Bell(tmp_path) as bell, Watch(starter, tmp_path, "test_quick.py", env=dict(bell.env)) as watch:
        bell.wait(1, watch.child)
        save(test, "RIGHT = False", "RIGHT = True")
        bell.wait(1, watch.child)
        assert watch.end("q") == 0, watch.shown
        assert "InterruptedRunError" not in watch.shown
        assert "Traceback" not in watch.shown


_HELD_CONFTEST = """
    import threading
    from tests.support.bell import ring

    HOLDS = True
    ring("conftest")
    if HOLDS:
        threading.Event().wait()
"""


def test_a_save_while_a_conftest_file_is_imported_shows_no_traceback(starter: Starter, tmp_path: Path) -> None:
    """If this fails, two quick saves blame a conftest file that imports for seconds; Ctrl-C shows a hundred lines."""
    conftest = write_file(tmp_path, "conftest.py", _HELD_CONFTEST)
    write_file(tmp_path, "test_quick.py", "def test_quick(): ...\n")
    with Bell(tmp_path) as bell, Watch(starter, tmp_path, "test_quick.py", env=dict(bell.env)) as watch:
        bell.wait(1, watch.child)
        save(conftest, "HOLDS = True", "HOLDS = False")
        shown = watch.wait()
        assert "watch: the run was stopped" in shown
        assert "watch: 1 passed" in shown
        assert "Error" not in shown
        save(conftest, "HOLDS = False", "HOLDS = True")
        bell.wait(2, watch.child)
        watch.type("\x03", end="")
        assert watch.end() == 130, watch.shown
        assert "Traceback" not in watch.shown


@pytest.mark.parametrize("way", ["SIGINT", "SIGTERM", "SIGKILL", "terminal"])
def test_nothing_is_left_at_the_end(starter: Starter, tmp_path: Path, way: str) -> None:
    """If this fails, a closed terminal leaves ranks or a run behind."""
    write_file(tmp_path, "test_held.py", _HELD)
    with Bell(tmp_path) as bell, Watch(starter, tmp_path, "test_held.py", env=dict(bell.env)) as watch:
        bell.wait(2, watch.child)
        if way == "terminal":
            watch.hang_up()
            watch.child.wait()
            starter.wait_nothing_left(limit_s=30)
            return
        if way == "SIGINT":
            # To the whole group, as Ctrl-C does.
            watch.type("\x03", end="")
        else:
            watch.child.send_signal(signal.Signals[way])
        code = watch.end()
        assert code == {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}[way], watch.shown
        assert ("nothing is left" in watch.shown) == (way != "SIGKILL")


def test_commands(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a command runs other tests than its text says."""
    source = """
        import pytest

        def test_good(): ...

        @pytest.mark.distributed(world_size=2)
        def test_bad(world):
            secret = 40 + world.rank
            assert world.rank == 0
    """
    write_file(tmp_path, "test_commands.py", source)
    with Watch(starter, tmp_path, "test_commands.py") as watch:
        assert "watch: 1 failed, 1 passed" in watch.wait()
        watch.type("f")
        shown = watch.wait()
        assert "1 deselected" in shown
        assert "watch: 1 failed in" in shown
        watch.type("p good")
        shown = watch.wait()
        assert "watch: 1 passed" in shown
        assert "watch: 1 failed earlier: test_commands.py::test_bad" in shown
        watch.type("p and")
        assert "Wrong expression" in watch.wait()
        watch.type("d one")
        watch.wait("'one' is no rank")
        watch.type("d 1")
        watch.wait("(Pdb) ")
        watch.type("secret")
        assert "41" in watch.wait("(Pdb) ")
        watch.type("c")
        assert "watch: 1 failed in" in watch.wait()
        watch.type("a")
        assert "watch: 1 failed, 1 passed" in watch.wait()
        watch.type("h")
        watch.wait("q quit")
        assert watch.end("q") == 1


def test_a_wrong_option_ends_the_watch(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a typing error in the command waits for saves; or a broken conftest file ends the watch."""
    conftest = write_file(tmp_path, "conftest.py", "VALUE = 1 / 0\n")
    with Watch(starter, tmp_path, "--wrong-option") as watch:
        watch.wait()
        save(conftest, "1 / 0", "1")
        assert watch.end() == pytest.ExitCode.USAGE_ERROR, watch.shown
        assert "unrecognized arguments: --wrong-option" in watch.shown


def test_a_target_of_bazel_without_commands(starter: Starter, tmp_path: Path) -> None:
    """If this fails, `bazel-bin/x/y --dist-watch` ignores the spec, or a script cannot end it."""
    target = Target(
        tmp_path, {"test_cases.py": _SUM.replace("library.TWO", "3").replace("import library\n", "\n")}, world_size=3
    )
    save(target.package / "test_cases.py", "(world_size=2)", "")
    env = {name: value for name, value in target.env.items() if not name.startswith(("TEST_", "XML_"))}
    with Watch(starter, tmp_path, "--bazel", has_terminal=False, env=env | {"TEST_WORKSPACE": "_main"}) as watch:
        shown = watch.wait()
        assert "there are no commands" in shown
        assert "watch: 2 passed" in shown
        save(target.package / "test_cases.py", "== 3", "== 4")
        assert "watch: 1 failed, 1 passed" in watch.wait()
        watch.child.send_signal(signal.SIGTERM)
        assert watch.end() == 143
    assert WAITS not in watch.shown


def test_what_cannot_be_watched_is_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, an option that rules the watch out shows a traceback, or the watch hangs at the start."""
    ended = run_pytest(starter, tmp_path, "--dist-watch", "--pdb")
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
    assert "--dist-watch with --pdb." in ended.log
    assert "Traceback" not in ended.log
    write_file(tmp_path, "pytest.ini", "[pytest]\n")
    write_file(tmp_path, "conftest.py", "pytest_plugins = ['dist_testing.core.pytest.plugin']\n")
    late = starter.start(["-m", "pytest", "--dist-watch"], tmp_path)
    assert late.wait() == pytest.ExitCode.USAGE_ERROR
    assert "a conftest file loads the plugin of dist_testing" in late.log
