"""Check tests on a real remote-execution cluster on this machine: `python3 -m tests.remote.remote_check`.

Two clients, each a Bazel server with an output base of its own, work in a copy of the repository with the cluster that
`//tools/rbe` starts. They use the wheels of this workspace's own server. Nothing of it is left. Exit status 0 when all
checks pass; takes a few minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.remote.cluster import Client, Cluster, ComplaintError, expect, running_cluster
from tests.remote.paged import check_page
from tests.support.nested_bazel import ROOT, nested_bazel, scratch_folder
from tools.ci.build_events import read_invocation

# The second client reads this one from the cache, too.
SUITE = (
    "//tests:all",
    "//tests/threaded:all",
    "//tests/unit:all",
    "//tests/bazel:counting_gloo",
    "//tests/wheels:test_archive",
)
POOLS = ("cpu=2", "gpu2=1:gpus=2,jobs=3", "gpu8=1:gpus=8,present=0")

# Tests for the one worker with two GPUs, which runs three at once.
LEASING_RUNS = 6

# Repositories of the extension //wheels that take long to make.
WHEELS = ("pypi.cpu", "pypi.cpu.archive", "pypi_rbe.default", "pypi_unit.default", "pypi_unit.default.archive")

# Bazel's exit statuses.
TESTS_FAILED = 3
INTERRUPTED = 8
REMOTE_ERROR = 34

# Limit until a test waits for its bell, also after the death of its worker. Seconds.
START_LIMIT_S = 120.0
# Limit until the cluster reports why a job waits. Seconds.
EXPLAIN_LIMIT_S = 60.0
# Limit for the error of an executor that is down. Seconds.
DOWN_LIMIT_S = 10.0
# Limit for the error of an executor that never answers. It must not be too short for a slow one. Seconds.
SILENT_LIMIT_S = 30.0


# --- The checks ------------------------------------------------------------------------------------------------------


def _run_job(client: Client, ci: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `//tools/ci -- test` on a client's server."""
    program = client.bazel.stand_in(client.scratch)
    return subprocess.run(
        [str(ci), "test", f"--bazel={program}", "--config=rbe_local", *arguments],
        cwd=client.bazel.workspace,
        env={**os.environ, "BUILD_WORKSPACE_DIRECTORY": str(client.bazel.workspace)},
        capture_output=True,
        text=True,
        check=False,
    )


def check_job(client: Client, ci: Path) -> None:
    """The CI job runs the suite on the cluster, and is green."""
    done = _run_job(client, ci, *SUITE)
    expect("exit status of the CI job", 0, done.returncode, done.stdout + done.stderr)
    expect("the CI job is green", True, "\nci: green: " in done.stdout, done.stdout)
    print("\n".join(done.stdout.splitlines()[-4:]), flush=True)


def check_cache(client: Client) -> None:
    """Another client gets every result from the cache, and an edit runs only the targets of the file again."""
    began = time.monotonic()
    tested = client.test(*SUITE)
    expect("the suite from the cache", 0, tested.done.status, tested.done.output)
    expect("where its results come from", {"remote"}, {one.cached for one in tested.attempts}, tested.done.output)
    _say(f"{len(tested.results)} targets from the cache, in an empty output base: {time.monotonic() - began:.1f} s")
    edited = client.bazel.workspace / "tests" / "test_dist2.py"
    edited.write_text(edited.read_text(encoding="utf-8") + "\n# An edit.\n", encoding="utf-8")
    tested = client.test(*SUITE)
    expect("the suite after an edit", 0, tested.done.status, tested.done.output)
    ran = {one.target for one in tested.attempts if not one.cached}
    # The page of suites names the tests of this file.
    readers = {"//tests:dist2_gloo", "//tests:dist2_on_nodes_gloo", "//tests/unit:test_torch_suites"}
    expect("what an edit of its source runs", readers, ran, tested.done.output)


def check_routing(client: Client) -> None:
    """Tests run in the smallest pool with enough GPUs; builds and tests without GPUs run in no GPU pool."""
    expected = {
        "//tests:pg_wrapper_gloo": "cpu",
        "//tests:multi_threaded_pg_threaded": "cpu",
        "//tests:dist2_nccl": "gpu2",
        "//tests:pg_wrapper_nccl": "gpu2",
        "//tests:pg_wrapper_cuda_gloo": "gpu8",
    }
    tested = client.test(
        "--//dist_testing/config:gpus=pools",
        # Runs in place of the test, whose GPUs are simulated, with the same properties.
        "--run_under=sh -c 'echo worker=$DIST_TESTING_RBE_WORKER' --",
        "--test_output=all",
        *expected,
    )
    expect("the status of a look at workers", 0, tested.done.status, tested.done.output)
    found = {}
    target = ""
    for line in tested.done.output.splitlines():
        if line.startswith("==================== Test output for "):
            target = line.removeprefix("==================== Test output for ").rstrip(":")
        elif line.startswith("worker="):
            found[target] = line.removeprefix("worker=").rpartition("-")[0]
    expect("pools of tests", expected, found, tested.done.output)
    built = client.bazel.run("build", "--config=rbe_local", "//tests/remote:built")
    expect("a build", 0, built.status, built.output)
    folder = Path(client.bazel.run("info", "bazel-bin").stdout.strip(), "tests", "remote")
    pools = {file.read_text(encoding="utf-8").strip().rpartition("-")[0] for file in folder.glob("built_*.txt")}
    expect("pools of builds", {"cpu"}, pools, built.output)


def check_failures(client: Client, ci: Path) -> None:
    """A failure is not cached, and its page knows everything."""
    for turn in ("first", "second"):
        tested = client.test("//tests/remote:failing_gloo")
        expect(f"a failing test, {turn} time", TESTS_FAILED, tested.done.status, tested.done.output)
        expect("its result", {"//tests/remote:failing_gloo": [("FAILED", "ran")]}, tested.results)
    check_page(tested, ci)


def check_promises(clients: Sequence[Client], scratch: Path) -> None:
    """A cached skip does not count for a client that was promised the GPUs."""
    host = scratch / "host"
    (host / "dev").mkdir(parents=True)
    for number in range(2):
        (host / "dev" / f"nvidia{number}").touch()
    target = "//tests/bazel:skipping_nccl"
    own = ("--test_env=CUDA_VISIBLE_DEVICES=", f"--repo_env=DIST_TESTING_HOST_ROOT={host}")
    unpromised = (*own, "--//dist_testing/config:gpus=auto")
    promised = (*own, "--//dist_testing/config:gpus=pools")
    first, second = clients
    for what, client, options, expected in (
        ("not promised", first, unpromised, ("PASSED", "ran")),
        ("not promised, another client", second, unpromised, ("PASSED", "remote")),
        ("promised", second, promised, ("FAILED", "ran")),
        ("promised, once more", first, promised, ("FAILED", "ran")),
    ):
        tested = client.test(*options, target)
        expect(f"a test that skips, {what}", {target: [expected]}, tested.results, tested.done.output)


# Shows the file that the test writes for the executor; Bazel does not fetch it.
_TELL_INFRASTRUCTURE = '"$@"; status=$?; echo infrastructure: $(cat $TEST_INFRASTRUCTURE_FAILURE_FILE); exit $status'


def check_broken_pool(client: Client) -> None:
    """A pool without its GPUs fails tests with this reason and reports it to the executor; no result is cached."""
    target = "//tests:pg_wrapper_cuda_gloo"
    promised = (
        "--//dist_testing/config:gpus=pools",
        "--test_output=errors",
        f"--run_under=sh -c '{_TELL_INFRASTRUCTURE}' --",
    )
    for turn in ("first", "second"):
        tested = client.test(*promised, target)
        output = tested.done.output
        expect(f"a test in a pool without its GPUs, {turn} time", TESTS_FAILED, tested.done.status, output)
        expect("its results", {("FAILED", "ran")}, set(tested.results[target]), output)
        expect("the reason is reported", True, "promised hardware missing: Need at least" in output, output)
        expect("the number is reported", True, "(found 0" in output, output)
        told = [line for line in output.splitlines() if line.startswith("infrastructure: ")]
        expect("the report to the executor", True, any("promised hardware missing" in line for line in told), output)


def check_pools(client: Client) -> None:
    """The conformance kit describes the cluster's pools, and finds the one that breaks its promise."""
    kit = "//tools/rbe/pool_check"
    tested = client.test("--keep_going", "--test_output=errors", f"{kit}:pool_check", f"{kit}:gpu2", f"{kit}:gpu8")
    statuses = {one.target: one.status for one in tested.attempts}
    expected = {f"{kit}:pool_check": "PASSED", f"{kit}:gpu2": "PASSED", f"{kit}:gpu8": "FAILED"}
    expect("results of the kit for the pools", expected, statuses, tested.done.output)
    reason = "| gpus | FAILED | 0 simulated GPU(s), and 8 are declared: the pool breaks its promise |"
    expect("the broken promise", True, reason in tested.done.output, tested.done.output)


def check_leases(client: Client) -> None:
    """Tests that one worker runs at the same time never have the same GPU."""
    held = client.scratch / "held"
    held.mkdir()
    target = "//tests/remote:leasing"
    tested = client.test(f"--runs_per_test={LEASING_RUNS}", f"--test_env=DIST_TESTING_HELD={held}", target)
    expect("tests on one worker with two GPUs", 0, tested.done.status, tested.done.output)
    expect("their results", {target: [("PASSED", "ran")] * LEASING_RUNS}, tested.results, tested.done.output)


def check_unknown_pool(client: Client, cluster: Cluster, pool: ThreadPoolExecutor) -> None:
    """A job that fits no worker waits, and the cluster reports why."""
    events = client.scratch / "events-unknown-pool.json"
    running = client.start("--build_event_json_file", str(events), "//tools/rbe/pool_check:pool_check.no_worker")
    told = pool.submit(running.communicate)
    try:
        _wait_status(cluster, "Pool=dist-testing-pool-check-no-worker, and no worker offers it (offered: ")
    finally:
        running.send_signal(signal.SIGINT)
        output = "".join(told.result())
    expect("an interrupted client", INTERRUPTED, running.returncode, output)
    ran = {one.target for one in read_invocation(events).attempts if one.status in ("PASSED", "FAILED")}
    expect("what ran of it", set(), ran, output)


def _wait_status(cluster: Cluster, text: str) -> None:
    deadline = time.monotonic() + EXPLAIN_LIMIT_S
    while text not in (status := cluster.call("status")):
        if time.monotonic() > deadline:
            raise ComplaintError(f"the status does not say {text!r}:\n{status}")
        time.sleep(0.2)


@contextmanager
def _bell(scratch: Path, name: str) -> Iterator[Path]:
    bell = scratch / name
    try:
        yield bell
    finally:
        # In every case: a test must not wait until its limit.
        bell.touch()


def _wait_started(bell: Path, besides: str = "") -> str:
    """Return the name of a worker on which the test waits."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        for file in bell.parent.glob(f"{bell.name}.*"):
            worker = file.suffix.lstrip(".")
            if worker != besides:
                return worker
        time.sleep(0.1)
    raise ComplaintError(f"no test has reached a worker{f' besides {besides}' if besides else ''}")


def check_lost_worker(client: Client, cluster: Cluster, pool: ThreadPoolExecutor) -> None:
    """The test runs again on another worker, and its result is right."""
    with _bell(client.scratch, "lost-worker") as bell:
        running = pool.submit(client.test, f"--test_env=DIST_TESTING_BELL={bell}", "//tests/remote:waiting_gloo")
        worker = _wait_started(bell)
        began = time.monotonic()
        cluster.call("kill-worker", worker)
        other = _wait_started(bell, besides=worker)
        elapsed_s = time.monotonic() - began
        _say(f"a test whose worker {worker} was killed began again on {other} after {elapsed_s:.0f} s")
    tested = running.result()
    expect("a test whose worker was killed", 0, tested.done.status, tested.done.output)
    expect("its result", {"//tests/remote:waiting_gloo": [("PASSED", "ran")]}, tested.results)
    cluster.call("restart", worker)


def check_lost_server(client: Client, cluster: Cluster, pool: ThreadPoolExecutor) -> None:
    """A build whose server is restarted ends with a right result or an error; no failed test passes."""
    targets = ("//tests/remote:waiting_gloo", "//tests/remote:failing_gloo")
    with _bell(client.scratch, "lost-server") as bell:
        options = (f"--test_env=DIST_TESTING_BELL={bell}", "--keep_going")
        running = pool.submit(client.test, *options, *targets)
        _wait_started(bell)
        cluster.call("restart", "server")
    tested = running.result()
    passed = {one.target for one in tested.attempts if one.status == "PASSED"}
    expect("what passed beside //tests/remote:waiting_gloo", set(), passed - {targets[0]}, tested.done.output)
    expect(
        f"the status {tested.done.status} is of failed tests or of the executor",
        True,
        tested.done.status in (TESTS_FAILED, REMOTE_ERROR),
        tested.done.output,
    )
    # docs/remote.md tells users what each of the two means.
    if tested.done.status == TESTS_FAILED:
        ended = {one.target: one.status for one in tested.attempts}
        expect("the verdicts behind status 3", {targets[0]: "PASSED", targets[1]: "FAILED"}, ended, tested.done.output)
    if tested.done.status == REMOTE_ERROR:
        expect("the executor's error is reported", True, "UNAVAILABLE" in tested.done.output, tested.done.output)
    _say(f"server restarted in the middle of a build: exit status {tested.done.status}, passed: {len(passed)} of 1")
    # The server works again.
    tested = client.test(*options, *targets)
    expect("the same again", TESTS_FAILED, tested.done.status, tested.done.output)
    statuses = {one.target: one.status for one in tested.attempts}
    expect("its results", {targets[0]: "PASSED", targets[1]: "FAILED"}, statuses, tested.done.output)


def check_two_at_once(clients: Sequence[Client], pool: ThreadPoolExecutor) -> None:
    """Two clients do not disturb each other."""
    options = ("--test_env=DIST_TESTING_TWO_AT_ONCE=1", "//tests/unit:test_files", "//tests/threaded:all")
    running = [pool.submit(client.test, *options) for client in clients]
    for tested in (one.result() for one in running):
        expect("one of two clients at once", 0, tested.done.status, tested.done.output)


def check_down(client: Client) -> None:
    """An executor that is down gives an error at once."""
    with socket.socket() as bound:
        # The port is bound, and no process listens.
        bound.bind(("127.0.0.1", 0))
        began = time.monotonic()
        done = client.bazel.run(
            "test",
            "--config=rbe_local",
            f"--remote_executor=grpc://127.0.0.1:{bound.getsockname()[1]}",
            "--nocache_test_results",
            "//tests/unit:test_files",
        )
        elapsed_s = time.monotonic() - began
    expect("an executor that is down", REMOTE_ERROR, done.status, done.output)
    told = "ERROR: Failed to query remote execution capabilities" in done.output
    expect("the error is reported", True, told, done.output)
    expect(f"{elapsed_s:.1f} s are less than {DOWN_LIMIT_S} s", True, elapsed_s < DOWN_LIMIT_S, done.output)


def check_silent(client: Client, ci: Path) -> None:
    """An executor that accepts calls and never answers ends the CI job with an error; Bazel alone waits an hour."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        address = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        done = _run_job(client, ci, f"--remote_executor={address}", "//tests/unit:test_files")
        elapsed_s = time.monotonic() - began
    output = done.stdout + done.stderr
    expect("a CI job whose executor never answers", REMOTE_ERROR, done.returncode, output)
    expect("the error is reported", True, f"{address}: the remote executor cannot be used: " in output, output)
    expect(f"{elapsed_s:.1f} s are less than {SILENT_LIMIT_S} s", True, elapsed_s < SILENT_LIMIT_S, output)


# --- What the checks need --------------------------------------------------------------------------------------------


def _copy_workspace(folder: Path) -> None:
    """Copy the files that git tracks or would track, so that edits do not touch this workspace."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    # The machine's own flags are not tracked by git.
    if (ROOT / "user.bazelrc").exists():
        shutil.copy(ROOT / "user.bazelrc", folder)


def _bazelw(*arguments: str) -> str:
    done = subprocess.run([str(ROOT / "bazelw"), *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    expect(f"bazelw {' '.join(arguments)}", 0, done.returncode, done.stderr)
    return done.stdout.strip()


def _shared_wheels() -> list[str]:
    """Return options that make a server use the wheels of this workspace's own server."""
    _bazelw("build", "--//wheels:form=archive", "@pypi//pytest", "@pypi_unit//hypothesis")
    _bazelw("build", "@pypi_rbe//buildgrid")
    external = Path(_bazelw("info", "output_base"), "external")
    return [f"--override_repository=+wheels+{name}={external}/+wheels+{name}" for name in WHEELS]


def _say(text: str) -> None:
    print(f"remote_check.py: {text}", flush=True)


CHECKS = (
    "job",
    "cache",
    "routing",
    "failures",
    "promises",
    "broken_pool",
    "pools",
    "leases",
    "unknown_pool",
    "two_at_once",
    "lost_worker",
    "lost_server",
    "down",
    "silent",
)


def _add_flags(workspace: Path, flags: Sequence[str]) -> None:
    with (workspace / "user.bazelrc").open("a", encoding="utf-8") as file:
        file.write("\n" + "\n".join(flags) + "\n")


def _check(wanted: Sequence[str], stack: ExitStack) -> None:
    scratch = stack.enter_context(scratch_folder("remote_check"))
    # The workers' actions must reach this folder, too.
    bells = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dist-remote-check-")))
    workspace = scratch / "workspace"
    _copy_workspace(workspace)
    # Two clients of one workspace must not replace each other's links.
    _add_flags(workspace, [*(f"common {option}" for option in _shared_wheels()), "build --symlink_prefix=/"])
    first, second = (
        Client(stack.enter_context(nested_bazel(workspace, scratch / name)), bells) for name in ("first", "second")
    )
    built = first.bazel.run("build", "//tools/rbe", "//tools/ci")
    expect("building the programs", 0, built.status, built.output)
    programs = Path(first.bazel.run("info", "bazel-bin").stdout.strip(), "tools")
    cluster = stack.enter_context(running_cluster(programs / "rbe" / "rbe", POOLS))
    _add_flags(workspace, [f"build:rbe_local --remote_executor={cluster.endpoint}"])
    pool = stack.enter_context(ThreadPoolExecutor())
    checks: dict[str, Callable[[], None]] = {
        "job": lambda: check_job(first, programs / "ci" / "ci"),
        "cache": lambda: check_cache(second),
        "routing": lambda: check_routing(second),
        "failures": lambda: check_failures(second, programs / "ci" / "ci"),
        "promises": lambda: check_promises((first, second), scratch),
        "broken_pool": lambda: check_broken_pool(second),
        "pools": lambda: check_pools(second),
        "leases": lambda: check_leases(second),
        "unknown_pool": lambda: check_unknown_pool(second, cluster, pool),
        "two_at_once": lambda: check_two_at_once((first, second), pool),
        "lost_worker": lambda: check_lost_worker(first, cluster, pool),
        "lost_server": lambda: check_lost_server(first, cluster, pool),
        "down": lambda: check_down(first),
        "silent": lambda: check_silent(first, programs / "ci" / "ci"),
    }
    for name in wanted:
        began = time.monotonic()
        checks[name]()
        _say(f"{name.replace('_', ' ')}: as expected ({time.monotonic() - began:.0f} s)")


def main() -> int:
    """Run the checks, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(CHECKS)}; default: all")
    wanted = parser.parse_args().checks or CHECKS
    if unknown := [name for name in wanted if name not in CHECKS]:
        parser.error(f"there is no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    if "cache" in wanted and "job" not in wanted:
        parser.error("the check `cache` reads the results of `job`: name both")
    try:
        with ExitStack() as stack:
            _check(wanted, stack)
    except ComplaintError as complaint:
        sys.stderr.write(f"remote_check.py: {complaint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
