"""GPU cases through the front ends, with simulated GPUs: the output of leases and of missing GPUs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from dist_testing.gpus.devices import gpus_present
from dist_testing.gpus.gpu import NODES_VARIABLE, NVML_VARIABLE, LeaseTimeoutError
from dist_testing.gpus.lease import lease_gpus
from tests.support.bell import Bell
from tests.support.children import Ended, run_cases, start_pytest, write_file
from tests.support.fake_nvml import STATE_VARIABLE, build_fake_nvml
from tests.support.gpu_nodes import make_nodes
from tests.support.starter import LIMIT_S, Starter

# The ranks of this class do not touch their device, unlike those of a marked test.
_CASES = """
    import os
    from dist_testing import MultiProcessTestCase

    class WrapperTest(MultiProcessTestCase):
        world_size = 2
        isolation = {isolation!r}

        def test_devices(self):
            nodes = os.environ["DIST_TESTING_GPU_NODES"]
            paths = ["/proc/self/fd/" + fd for fd in os.listdir("/proc/self/fd")]
            opened = {{os.readlink(path): path for path in paths if os.path.exists(path)}}
            held = {{file: path for file, path in opened.items() if file.startswith(nodes)}}
            assert sorted(held) == [nodes + "/nvidia0", nodes + "/nvidia1"], opened
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-simulated-0,GPU-simulated-1"
            # Programs that a test starts, and leaves behind, must not keep the lease.
            assert not any(os.get_inheritable(int(os.path.basename(path))) for path in held.values())
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """Two simulated GPUs."""
    return make_nodes(tmp_path / "nodes", range(2))


def run_on_gpus(starter: Starter, folder: Path, nodes: Path, *options: str, isolation: str = "fork") -> Ended:
    """Run the cases with a backend that has GPUs."""
    source = _CASES.format(isolation=isolation)
    env = {NODES_VARIABLE: str(nodes)}
    return run_cases(starter, folder, source, "--dist-backend=cuda_gloo", *options, **env)


@pytest.mark.parametrize("isolation", ["fork", "spawn", "pool"])
def test_ranks_hold_their_lease_however_they_are_made(
    starter: Starter, tmp_path: Path, nodes: Path, isolation: str
) -> None:
    """Ranks that outlive a killed runner for a moment still use its GPUs."""
    ended = run_on_gpus(starter, tmp_path, nodes, isolation=isolation)
    assert ended.code == 0, ended.log
    lease_gpus(2, gpus_present({NODES_VARIABLE: str(nodes)}), limit_s=0).release()


def test_a_gpu_that_is_lost_under_a_worker_pool_is_reported_as_infrastructure(
    starter: Starter, tmp_path: Path, nodes: Path
) -> None:
    """CI systems that repeat only failures of the machine would not repeat this one."""
    library = build_fake_nvml(tmp_path)
    state = tmp_path / "state"
    gpus = [f"gpu {n} GPU-{n} 00000000:3{n}:00.0 100000000000 0" for n in range(2)]
    state.write_text("\n".join(gpus))
    lost = "\n".join(f"{line} lost" for line in gpus)
    source = (
        "import os, pathlib\n"
        "from dist_testing import MultiProcessTestCase\n"
        "class LoseTest(MultiProcessTestCase):\n"
        "    world_size = 2\n"
        "    isolation = 'pool'\n"
        "    def test_lose(self):\n"
        f"        pathlib.Path(os.environ[{STATE_VARIABLE!r}]).write_text({lost!r})\n"
    )
    env = {NODES_VARIABLE: str(nodes), NVML_VARIABLE: str(library), STATE_VARIABLE: str(state)}
    xml = tmp_path / "results.xml"
    ended = run_cases(starter, tmp_path, source, "--dist-backend=cuda_gloo", f"--junitxml={xml}", **env)
    assert ended.code == 1, ended.log
    assert "the driver says that the GPU is lost" in ended.log
    assert '<property name="cause" value="infrastructure"' in xml.read_text()


def test_a_wait_is_one_line_of_the_log(starter: Starter, tmp_path: Path, nodes: Path) -> None:
    """Without it, the log would end in the middle of a line of dots for minutes."""
    write_file(tmp_path, "test_cases.py", _CASES.format(isolation="fork"))
    options = ("-rA", "--dist-backend=cuda_gloo", "test_cases.py")
    with lease_gpus(1, gpus_present({NODES_VARIABLE: str(nodes)}), limit_s=0):
        child = start_pytest(starter, tmp_path, *options, env={NODES_VARIABLE: str(nodes)})
        deadline_s = time.monotonic() + LIMIT_S
        # A log file gives no event to wait for.
        while "waiting for" not in child.log and time.monotonic() < deadline_s:
            time.sleep(0.05)
    assert child.wait() == 0, child.log
    (line,) = [line for line in child.log.splitlines() if "waiting for" in line]
    assert line.startswith(
        "dist_testing: test_cases.WrapperTest.test_devices: waiting for 1 of 2 GPU(s); GPU 0: process "
    )


@pytest.mark.parametrize(("promise", "code", "outcome"), [("skip", 0, "SKIPPED"), ("fail", 1, "FAILED")])
def test_a_lack_of_gpus_is_reported_at_once(
    starter: Starter, tmp_path: Path, nodes: Path, promise: str, code: int, outcome: str
) -> None:
    """A wait for a second GPU of one would end at the timeout, and name a wrong cause."""
    (nodes / "nvidia1").unlink()
    ended = run_on_gpus(starter, tmp_path, nodes, f"--dist-on-missing={promise}")
    assert ended.code == code
    assert "Need at least 2 CUDA devices (found 1)" in ended.log
    assert outcome in ended.log
    assert "Traceback" not in ended.log


def test_a_missing_folder_of_nodes_is_an_error_without_a_traceback(starter: Starter, tmp_path: Path) -> None:
    """A variable may have a typing error."""
    ended = run_on_gpus(starter, tmp_path, tmp_path / "missing", "--dist-on-missing=fail")
    assert ended.code == 1
    assert "cannot be counted" in ended.log
    assert "Traceback" not in ended.log


_HELD = """
    import os
    import signal
    from dist_testing import MultiProcessTestCase
    from tests.support.bell import ring

    class HeldTest(MultiProcessTestCase):
        world_size = 2

        def test_waits(self):
            ring(str(os.getppid()))
            signal.pause()
"""


def test_the_lease_of_a_killed_runner_lasts_as_long_as_its_ranks(starter: Starter, tmp_path: Path, nodes: Path) -> None:
    """The next test would start on GPUs that are in use."""
    pool = gpus_present({NODES_VARIABLE: str(nodes)})
    write_file(tmp_path, "test_cases.py", _HELD)
    with Bell(tmp_path) as bell:
        env = {**bell.env, NODES_VARIABLE: str(nodes)}
        child = start_pytest(starter, tmp_path, "--dist-backend=cuda_gloo", "test_cases.py", env=env)
        fork_server = int(bell.wait(2, child)[0])
    # A running fork server would clean up at once.
    os.kill(fork_server, signal.SIGSTOP)
    try:
        child.send_signal(signal.SIGKILL)
        child.wait()
        for gpu in pool:
            with pytest.raises(LeaseTimeoutError, match="a process that it started still has the lease"):
                lease_gpus(1, (gpu,), limit_s=0)
    finally:
        os.kill(fork_server, signal.SIGCONT)
    starter.wait_nothing_left(LIMIT_S)
    lease_gpus(2, pool, limit_s=0).release()
