"""The audit over models of harnesses: it finds the holes that each model has, and no others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import dist_testing.audit
from dist_testing.audit.__main__ import main
from dist_testing.audit.command import shape
from tests.audit.audits import HARNESSES, Audited, audit, environment, suite
from tests.report.schema_check import check

_SCHEMA = Path(dist_testing.audit.__file__).parent / "audit.schema.json"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """One audit of the suites in the style of vLLM, TensorRT-LLM and accelerate."""
    files = [HARNESSES / f"{name}_suite.py" for name in ("process_wrappers", "unchecked", "subprocess")]
    before = {path: path.read_bytes() for path in HARNESSES.glob("*.py")}
    done = audit(tmp_path_factory.mktemp("several"), ["--faults=raise,kill,skip", "--limit=60"], suite(*files))
    assert {path: path.read_bytes() for path in HARNESSES.glob("*.py")} == before
    check(done.found, json.loads(_SCHEMA.read_text(encoding="utf-8")), "audit")
    return done


@pytest.mark.parametrize(
    ("case", "rank", "world_size", "holes"),
    [
        # vLLM's fork wrapper ends a skipped test with exit code 0.
        ("test_forked", 0, 1, {"skip": ["green"]}),
        # TensorRT-LLM's jobs pass whatever happens to their ranks.
        ("test_job", 1, 2, {"raise": ["green"], "kill": ["green"], "skip": ["green"]}),
        # A signal is no positive exit code. The model replaces the whole environment of its script.
        ("test_script", 0, 1, {"kill": ["green"]}),
    ],
)
def test_several_cases_are_audited_each_alone(
    several: Audited, case: str, rank: int, world_size: int, holes: dict[str, list[str]]
) -> None:
    """If this fails, a fault comes on another rank or not at all, or a hole of a harness is missed."""
    assert several.exit_status == 1, several.output
    assert several.case(case)["world_size"] == world_size
    for fault in ("raise", "kill", "skip"):
        one = several.fault(case, fault)
        # On the rank that the option names, or on the last one.
        assert (one["planted"], one["rank"], one["call"]) == (True, rank, "barrier"), one
        assert (one["noticed_s"] is None) == (fault in holes), one
    assert several.holes(case) == holes


def test_a_case_that_runs_nothing(several: Audited) -> None:
    """vLLM's spawn wrapper starts an interpreter that never calls the test: without ranks, it gets no faults."""
    names = [case["id"].partition("::")[2] for case in several.found["cases"]]
    assert names == ["test_forked", "test_spawned", "test_job", "test_script"]
    case = several.case("test_spawned")
    assert (case["holes"], case["outcome"], case["world_size"]) == (["ran_nothing"], "passed", 0)
    assert "none of them became a rank" in several.output


def test_another_rank_is_blamed_and_things_are_left_behind(tmp_path: Path) -> None:
    """The report names the victim; a process, its port and a file stay."""
    done = audit(tmp_path, ["--faults=kill"], suite(HARNESSES / "blames_first_suite.py"))
    one = done.fault("test_meets", "kill")
    assert one["holes"] == ["blamed_other", "left_behind"], done.output
    assert (one["named"], one["outcome"]) == ([0], "failed")
    # Each of the two ranks has left all of them.
    processes, files = one["left"]["processes"], one["left"]["files"]
    assert len(processes) == len(one["left"]["ports"]) == 2, one
    assert all("create_server" in process for process in processes)
    assert [shape(name) for name in files] == ["/tmp/store"] * 2 + ["/dev/shm/model"] * 2
    # The audit has removed what outlives a run.
    running = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    assert processes[0] not in running
    assert not [name for name in files if name.startswith("/dev/shm") and os.path.exists(name)]


def test_a_dead_worker_of_a_pool_costs_the_whole_limit_and_the_session(tmp_path: Path) -> None:
    """DeepSpeed's pool waits for its limit, then ends pytest."""
    # Outside pytest's root folder, the id of a case does not tell its file.
    command = suite(f"--rootdir={tmp_path}", "-o", "python_files=pool_workers_suite.py", HARNESSES)
    done = audit(tmp_path, ["--faults=kill", "--slow=3"], command)
    assert done.holes("test_meets") == {"kill": ["slow", "ended_harness"]}, done.output


def test_a_case_that_is_tried_again(tmp_path: Path) -> None:
    """If this fails, each fault in a suite with retries is a hole, because the second try passes without it."""
    done = audit(tmp_path, ["--faults=raise,kill"], suite("-p", "retried_suite", HARNESSES / "retried_suite.py"))
    assert done.exit_status == 0, done.output
    assert "no holes: 2 faults in 1 case" in done.output


def test_ranks_that_are_threads_of_the_harness(tmp_path: Path) -> None:
    """A fault that ends the process of a rank ends the harness."""
    done = audit(tmp_path, ["--faults=exit0,kill,return"], suite(HARNESSES / "threads_suite.py"))
    # Exit status 0 and no result: a CI system sees a pass.
    assert done.holes("test_threads") == {"exit0": ["green"]}, done.output
    assert "the process of the harness, which ended with it" in done.fault("test_threads", "exit0")["note"]
    killed = done.fault("test_threads", "kill")
    assert killed["planted"], killed
    assert "which ended with it" in killed["note"], killed
    early = done.fault("test_threads", "return")
    assert (early["planted"], early["outcome"]) == (True, "failed"), early


def test_unittest_without_pytest(tmp_path: Path) -> None:
    """Cases of unittest are seen, selected and judged."""
    done = audit(tmp_path, ["--faults=exit3"], [sys.executable, "-m", "unittest", "unittest_suite"])
    assert done.holes("test_ranks") == {"exit3": ["green"]}, done.output
    assert [case["world_size"] for case in done.found["cases"]] == [0, 2]
    assert "started no ranks: 1 case" in done.output


def test_a_harness_that_the_audit_does_not_know(tmp_path: Path) -> None:
    """The whole command is one case, and the audit says what it cannot see."""
    command = [sys.executable, str(HARNESSES / "agent.py"), "2", str(HARNESSES / "script.py")]
    done = audit(tmp_path, ["--faults=exit3,exit0"], command)
    (case,) = done.found["cases"]
    assert case["world_size"] == 2
    right, wrong = case["faults"][1:]
    # The other rank may lose its peer, and end, before the agent looks.
    assert 1 in right["named"]
    assert right["holes"] == []
    # The launcher reports the rank that waited for the one that ended with 0.
    assert (wrong["named"], wrong["holes"]) == ([0], ["blamed_other"])
    assert "neither pytest nor unittest" in done.output


def test_ranks_that_are_pytests(tmp_path: Path) -> None:
    """`torchrun -m pytest`: the launcher names the rank, and no hole is found."""
    command = [sys.executable, str(HARNESSES / "agent.py"), "2", *suite(HARNESSES / "agent_pytest_suite.py")[1:]]
    done = audit(tmp_path, ["--faults=kill"], command)
    assert done.exit_status == 0, done.output
    one = done.fault("test_meets", "kill")
    assert (one["planted"], one["named"], one["holes"]) == (True, [1], [])
    assert "no holes: 1 fault in 1 case" in done.output


def test_as_a_plugin_of_pytest(tmp_path: Path) -> None:
    """`-p dist_testing.audit` audits the command line of pytest instead of running it."""
    page = tmp_path / "audit.html"
    command = suite("-p", "dist_testing.audit", f"--audit=--faults=raise --page={page}", "unchecked_suite.py")
    env = {**os.environ, **environment()}
    done = subprocess.run(command, env=env, cwd=HARNESSES, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "HOLE unchecked_suite.py::test_job: raise: the fault did not fail the run" in done.stdout
    assert "unchecked_suite.py::test_job" in page.read_text(encoding="utf-8")
    command = suite("-p", "dist_testing.audit", "--audit=--cases=it's")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "ERROR: --audit=--cases=it's: No closing quotation.\nThe options" in done.stderr


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGTERM, ["-m", "dist_testing.audit", "--", sys.executable]),
        (signal.SIGHUP, ["-m", "dist_testing.audit", "--", sys.executable]),
        (signal.SIGINT, suite("-p", "dist_testing.audit")[1:]),
    ],
)
def test_an_interrupted_audit_ends_the_suite(tmp_path: Path, number: signal.Signals, words: list[str]) -> None:
    """If this fails, Ctrl-C or a closed terminal leaves processes, or the folder of the runs."""
    started, file = tmp_path / "pid", tmp_path / "test_suite.py"
    # The audit waits for a moment before it ends what is left.
    other = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    code = f"import subprocess, sys, time\nopen({str(started)!r}, 'w').write(str({other}.pid))\ntime.sleep(600)"
    file.write_text(code, encoding="utf-8")
    env = {**os.environ, **environment(), "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(
        [sys.executable, *words, file],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # What a script runs in the background, such as these tests, has Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until_s = time.monotonic() + 120
    while not (started.exists() and started.read_text()) and time.monotonic() < until_s:
        time.sleep(0.05)
    # As a terminal does.
    os.killpg(running.pid, number)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not os.path.exists(f"/proc/{started.read_text()}")
    assert not list(tmp_path.glob("da-*"))


@pytest.mark.parametrize(
    ("command", "reasons"),
    [
        ([sys.executable, "-c", "print('built')"], ("no test of pytest or unittest ran, and no rank",)),
        (["sh", "-c", "echo built"], ("no Python process of it ran the audit's hook",)),
        (suite(HARNESSES / "no_such_suite.py"), ("pytest collected no test",)),
        (
            suite(HARNESSES / "idle_suite.py"),
            ("no case started ranks: 1 cases ran", "nothing audited: 0 faults in 0 cases"),
        ),
    ],
)
def test_commands_without_anything_to_audit(tmp_path: Path, command: list[str], reasons: tuple[str, ...]) -> None:
    """A command without tests or without ranks is refused with the reason."""
    done = audit(tmp_path, [], command)
    assert done.exit_status == 3, done.output
    assert all(reason in done.output for reason in reasons), done.output
    assert "Traceback" not in done.output


def test_a_command_without_its_separator_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The error says where `--` belongs."""
    with pytest.raises(SystemExit, match="2"):
        main(["--faults=kill", "python", "-m", "pytest"])
    assert "unrecognized arguments: python -m pytest; put -- before the test command" in capsys.readouterr().err
