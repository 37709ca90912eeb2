"""A user's own script on every rank: on the command line, and as a Bazel target."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.ground.backends import backend_named
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.outcomes import Status
from dist_testing.core.ground.spec import Spec
from dist_testing.programs.program import Program
from dist_testing.programs.program_rank import ProgramRankContext, program_loader
from tests.support.children import Ended, Target, assert_no_folder_left, write_file
from tests.support.starter import LIMIT_S, Starter

# What a program can observe of its surroundings, told by rank 0 as JSON in its output. The second argument ends it.
_SCRIPT = """
    import __main__
    import atexit
    import json
    import logging
    import multiprocessing
    import os
    import sys
    import threading
    import time
    import sibling

    EXPECTED = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}

    def child(queue):
        # Under spawn this file is imported again, by another name.
        queue.put([os.environ["RANK"], __name__])

    def surroundings():
        context = multiprocessing.get_context("spawn")
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        told = queue.get()
        process.join()
        # Python ends it with the program.
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()
        pid = os.fork()
        if pid == 0:
            # As in a program that runs alone, this ends the child and not the rank.
            sys.exit(5)
        # Before this process prints: the output of both could meet in one line.
        forked = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        logging.basicConfig(stream=sys.stdout, format="logged by basicConfig: %(message)s", level="INFO")
        logging.info("yes")
        return {
            "argv": sys.argv,
            "path": sys.path[0],
            "file": __file__,
            "cwd": os.getcwd(),
            "is main": __main__.surroundings is surroundings,
            "pytest": "pytest" in sys.modules,
            "environment": sorted(EXPECTED - os.environ.keys()),
            "backend": os.environ["DIST_TESTING_BACKEND"],
            "sibling": sibling.__file__,
            "spawned": told,
            "forked": forked,
        }

    def main():
        # Not at the top: the child under spawn would import it, too.
        import torch
        import torch.distributed as dist

        dist.init_process_group()
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == dist.get_world_size() == int(os.environ["WORLD_SIZE"])
        if dist.get_rank() == 0:
            print("TOLD", json.dumps(surroundings()))
        dist.barrier()
        dist.destroy_process_group()
        # Not a daemon, so the program ends after it.
        threading.Timer(0.1, print, ["printed by a thread"]).start()

    atexit.register(print, "printed at exit")
    if __name__ == "__main__":
        main()
"""


def _run(starter: Starter, folder: Path, script: str, *options: str, arguments: tuple[str, ...] = ()) -> Ended:
    """Run a script by the command line on two ranks, from the folder above its own."""
    write_file(folder, "scripts/train.py", script)
    write_file(folder, "scripts/sibling.py", "")
    command = ["-m", "dist_testing.run_program", "--world-size=2", *options, "scripts/train.py", *arguments]
    child = starter.start(command, folder)
    code = child.wait(LIMIT_S)
    assert_no_folder_left(folder)
    return Ended(code, child.log)


def _told(log: str) -> dict[str, Any]:
    line = next(line for line in log.splitlines() if "TOLD" in line)
    told: dict[str, Any] = json.loads(line.partition("TOLD")[2])
    return told


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_a_program_finds_what_python_and_torchrun_give(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, a script that works under torchrun fails or behaves differently here."""
    ended = _run(starter, tmp_path, _SCRIPT, f"--isolation={isolation}", arguments=("--world-size=7", "--", "-k"))
    assert ended.code == 0, ended.log
    scripts = tmp_path.resolve() / "scripts"
    assert _told(ended.log) == {
        "argv": ["scripts/train.py", "--world-size=7", "--", "-k"],
        "path": str(scripts),
        "file": str(scripts / "train.py"),
        "cwd": str(tmp_path.resolve()),
        "is main": True,
        "pytest": False,
        "environment": [],
        "backend": "gloo",
        "sibling": str(scripts / "sibling.py"),
        "spawned": ["0", "__mp_main__"],
        "forked": 5,
    }
    assert "[rank 0] logged by basicConfig: yes" in ended.log
    for rank in (0, 1):
        thread, at_exit = (f"[rank {rank}] printed {how}" for how in ("by a thread", "at exit"))
        assert 0 < ended.log.index(thread) < ended.log.rindex(at_exit), ended.log


_ENDS = """
    import os
    import signal
    import sys
    import torch
    import torch.distributed as dist

    how = sys.argv[1]
    dist.init_process_group()
    dist.barrier()
    if how == "hang":
        if dist.get_rank() == 1:
            dist.recv(torch.ones(1), 0)
        dist.barrier()
    if how == "skip":
        sys.exit(74)
    if how == "some skip" and dist.get_rank() == 1:
        sys.exit(74)
    if how == "os exit":
        os._exit(0)
    if dist.get_rank() == 1:
        if how == "raise":
            raise ValueError("planted")
        if how == "text":
            sys.exit("planted text")
        if how == "code":
            sys.exit(3)
        if how == "os exit 3":
            os._exit(3)
        if how == "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "alone":
        dist.barrier()
    if how == "zero":
        sys.exit(0)
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """An engine whose cases are programs. Its fork server is forked from here, which saves the time of an import."""
    backend = backend_named("gloo")
    engine = Engine(Spec("", backend, (2,), "fork"), Budget(), ProgramRankContext(), program_loader())
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("how", "expected_exits", "status", "said"),
    [
        ("zero", {}, Status.PASSED, ""),
        ("os exit", {}, Status.PASSED, ""),
        ("skip", {}, Status.SKIPPED, "CUDA is not available."),
        ("some skip", {}, Status.FAILED, "ranks disagree about a skip"),
        ("raise", {}, Status.FAILED, "rank 1 raised ValueError: planted in call"),
        ("text", {}, Status.FAILED, "rank 1 exited with code 1 in call"),
        ("code", {}, Status.FAILED, "rank 1 exited with code 3 in call"),
        ("code", {1: 3}, Status.PASSED, ""),
        ("signal", {1: -11}, Status.PASSED, ""),
        ("zero", {1: 3}, Status.FAILED, "expected to end by exit code 3, but it ended the test"),
        ("os exit", {1: 3}, Status.FAILED, "expected to end by exit code 3, but it ended by exit code 0"),
        ("os exit 3", {}, Status.FAILED, "rank 1 exited with code 3 in call"),
        ("signal", {}, Status.FAILED, "rank 1 was killed by SIGSEGV (11) in call"),
        ("hang", {}, Status.FAILED, "ranks 0, 1 wait for each other"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_exit_codes_are_the_verdict(
    engine: Engine, tmp_path: Path, how: str, expected_exits: dict[int, int], status: Status, said: str
) -> None:
    """If this fails, a program that fails passes, one that passes fails, or nothing says which rank began it."""
    path = str(write_file(tmp_path, "train.py", _ENDS))
    program = Program(path, "scripts/train.py", (how,), (str(tmp_path), *sys.path), expected_exits)
    body = program.body(strict_calls=False)
    exits = program.expected_exits
    result = engine.run(Case(how, 2, body, 300.0, "fork", init=False, expected_exits=exits, exit_0_passes=True))
    assert (result.verdict.status, said in result.verdict.reason) == (status, True), result
    if status is Status.FAILED:
        command = "python -m dist_testing.run_program --backend=gloo --world-size=2"
        options = "".join(f" --expected-exit={rank}={code}" for rank, code in exits.items())
        assert program.command(result.case, engine.spec) == f"{command}{options} scripts/train.py {shlex.quote(how)}"


@pytest.mark.parametrize(
    ("option", "code", "said"),
    [
        ("--world-size=0", 4, "--dist-world-size=0: expected numbers from 1"),
        ("--isolation=pool", 2, 'isolation "pool" for a program'),
        ("--timeout=1", 1, "ranks 0, 1 were still running at the deadline"),
    ],
)
def test_options_are_those_of_pytest(starter: Starter, tmp_path: Path, option: str, code: int, said: str) -> None:
    """If this fails, a wrong value is ignored, or a run has no limit although the user sets one."""
    ended = _run(starter, tmp_path, "import threading\nthreading.Event().wait()", option)
    assert ended.code == code, ended.log
    assert said in ended.log


def test_a_skip_of_all_ranks_is_no_failure(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a script that skips ends the command with an internal error of pytest."""
    ended = _run(starter, tmp_path, _ENDS, arguments=("skip",))
    assert ended.code == 0, ended.log
    assert "train.py:1: CUDA is not available." in ended.log


def test_tracebacks_that_nothing_catches_have_the_rank(starter: Starter, tmp_path: Path) -> None:
    """If this fails, torch's exception hook is lost, or a traceback of a rank is printed twice or not at all."""
    script = """
        import os
        import threading
        import torch.distributed as dist

        dist.init_process_group()
        if dist.get_rank() == 1:
            thread = threading.Thread(target=int, args=["thread"])
            thread.start()
            thread.join()
            if os.fork() == 0:
                raise ValueError("planted in a child")
            os.wait()
            raise ValueError("planted")
    """
    ended = _run(starter, tmp_path, script)
    assert ended.code == 1, ended.log
    # The live log has the rank of a line; torch's hook adds its own. Python gives the end of a thread to another hook.
    thread = "[rank 1] ValueError: invalid literal for int() with base 10: 'thread'"
    child = "[rank 1] [rank1]: ValueError: planted in a child"
    # The end of the program is in the report alone.
    program = "ValueError: planted"
    lines = ended.log.splitlines()
    assert [lines.count(line) for line in (thread, child, program)] == [1, 1, 1], ended.log
    assert f"[rank 1] [rank1]: {program}" not in lines, ended.log


_HOOKS = """
    import atexit
    import sys
    import torch.distributed as dist

    def hook(*error):
        print("OWN HOOK", error[0].__name__, file=sys.stderr)

    how = sys.argv[1]
    if how == "no module":
        # As of code that a program has compiled by itself.
        hook.__module__ = None
    if how != "after":
        sys.excepthook = hook
    if how != "no module":
        dist.init_process_group()
    if how == "after":
        sys.excepthook = hook
    atexit.register(print, "EXIT HANDLER")
    raise ValueError("planted")
"""


@pytest.mark.parametrize(("how", "prefix"), [("before", "[rank1]: "), ("after", ""), ("no module", "")])
def test_an_exception_hook_of_the_program_is_called(starter: Starter, tmp_path: Path, how: str, prefix: str) -> None:
    """If this fails, a program that reports its own crashes does not do so as a test: torch puts its hook around it."""
    ended = _run(starter, tmp_path, _HOOKS, arguments=(how,))
    assert ended.code == 1, ended.log
    lines = set(ended.log.splitlines())
    assert {f"[rank 1] {prefix}OWN HOOK ValueError", "[rank 1] EXIT HANDLER"} <= lines, ended.log


def test_a_target_runs_its_program_as_one_case_per_size(starter: Starter, tmp_path: Path) -> None:
    """If this fails, Bazel has no result of a program, or pytest reads files and options that are not the program's."""
    program = """
        import os
        import sys
        import sibling

        assert sys.argv[1:] == ["-k", "nothing", "--dist-world-size=9"]
        print("arguments", sys.argv[1:])
        if os.environ["RANK"] == "1":
            os._exit(7)
        if os.environ["RANK"] == "2":
            sys.exit(sibling.CODE)
    """
    sources = {"train.py": program, "sibling.py": "CODE = 4\n", "conftest.py": "raise SystemExit('read')\n"}
    spec = {"settings": {"programs": [[1, 7]]}, "srcs": ["//pkg:train.py"], "world_sizes": [2, 3]}
    target = Target(tmp_path, sources, spec=spec)
    ended = target.run(starter, "-k", "nothing", "--dist-world-size=9", env={"PYTEST_ADDOPTS": "--no-such-option"})
    assert ended.code == 1, ended.log
    assert target.xml_keys() == ["pkg.train.program[world_size=2]", "pkg.train.program[world_size=3]"]
    smaller, larger = target.xml().values()
    assert (smaller.outcome, larger.outcome, larger.properties["culprit"]) == ("passed", "failure", "2")
    assert "rank 2 exited with code 4 in call" in larger.message
    assert "[rank 0] arguments ['-k', 'nothing', '--dist-world-size=9']" in ended.log
    assert "This case alone: bazel test //pkg:cases_gloo --test_filter='program[world_size=3]'" in ended.log


def test_a_target_whose_program_runs_nothing_fails(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a target passes that ran nothing."""
    fields = {"settings": {"programs": []}, "srcs": ["//pkg:train.py"]}
    target = Target(tmp_path, {"train.py": "def test_one():\n    pass\n"}, spec=fields)
    ended = target.run(starter)
    assert ended.code != 0, ended.log
    assert "only imports and defines things" in ended.log
    assert [result.outcome for result in target.xml().values()] == ["error"]
