"""Debian's Bazel for real: builds a prefix, and builds and tests with it.

Takes about a minute, 500 MB and a mirror. Run alone with
`python3 -m pytest -s tools/bazel/tests/bazelw_debian_test.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from bazel_bootstrap import prefix_config
from bazelw_testing import TOOLS, end, parent_outside_tmp, wait_for_line

# Limit for one call of Bazel; the first one fetches 200 MB. Seconds.
CALL_LIMIT_S = 600.0
CONSUMER = Path(__file__).parent / "consumer_workspace"
BAZELW = TOOLS.parent.parent / "bazelw"


@dataclass(frozen=True)
class Machine:
    """A user with an empty home on a machine that reaches no release server."""

    root: Path  # everything the tests write
    env: dict[str, str]  # the user's environment
    python: str  # version of the `python3` that the user has, such as "3.11"

    def bazelw(self, *arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run bazelw to its end."""
        return subprocess.run(
            [BAZELW, *arguments],
            cwd=cwd or self.root,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_LIMIT_S,
            check=False,
        )

    @property
    def cache(self) -> Path:
        """The cache of bazelw."""
        return self.root / "home/.cache/dist_testing/bazel"

    @property
    def launcher(self) -> Path:
        """The prefix's own command, which bazelw starts in the end."""
        (found,) = self.cache.glob("debian-*/bazel")
        return found

    def consumer(self, name: str, python_version: str) -> Path:
        """Return a new workspace that uses rules_python as a released one."""
        workspace = self.root / name
        shutil.copytree(CONSUMER, workspace)
        (workspace / "BUILD.in").rename(workspace / "BUILD.bazel")
        module = workspace / "MODULE.bazel"
        module.write_text(module.read_text().replace("@PYTHON_VERSION@", python_version))
        return workspace


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """The machine, with the prefix built after one run that was killed in the middle."""
    # Not under /tmp, where the prefix must not lie.
    root = Path(tempfile.mkdtemp(prefix="bazelw-test-", dir=parent_outside_tmp()))
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "TMPDIR") or name.lower().endswith("_proxy") or name.startswith("PIP_")
    }
    env = {**kept, "PATH": _path_without_bazel(), "HOME": f"{root}/home", "USER": "someone"}
    env["BAZELW_RELEASE_URL"] = ""
    command = ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    version = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()
    machine = Machine(root, env, version)
    try:
        doctor = machine.bazelw("doctor")
        if doctor.returncode != 0:
            pytest.skip(f"Debian's packages are not available here:\n{doctor.stdout}")
        assert not (root / "home").exists()
        _kill_one_run(machine)
        _build(machine)
        yield machine
    finally:
        if list(machine.cache.glob("debian-*/bazel")):
            for output_root in root.glob("output*"):
                machine.bazelw(f"--output_user_root={output_root}", "shutdown")
        # Bazel leaves directories without write permission.
        subprocess.run(["chmod", "-R", "u+w", root], check=True)
        shutil.rmtree(root)


def _path_without_bazel() -> str:
    folders = map(Path, os.environ["PATH"].split(os.pathsep))
    return os.pathsep.join(
        str(one) for one in folders if not any((one / name).exists() for name in ("bazel", "bazelisk"))
    )


def _kill_one_run(machine: Machine) -> None:
    """Kill a run in the middle of its downloads."""
    process = subprocess.Popen(
        [BAZELW, "--version"],
        env=machine.env,
        cwd=machine.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for_line(process, " packages (")
    os.killpg(process.pid, signal.SIGKILL)
    end(process)
    assert list(machine.cache.glob("debian-*/*"))
    assert not list(machine.cache.glob("debian-*/bazel"))


def _build(machine: Machine) -> None:
    """Build the prefix after the killed run, and check the result."""
    started = time.monotonic()
    result = machine.bazelw("--version")
    print(f"\nfirst start, with building the prefix: {time.monotonic() - started:.1f} s")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(("bazel 7.", "bazel 8."))
    assert "which an interrupted run left unfinished" in result.stderr
    assert not list(machine.cache.glob("**/*.partial"))
    assert not list(machine.cache.glob("**/*.deb"))


def test_a_consumer_of_released_rules_python_builds_and_tests(machine: Machine) -> None:
    """Otherwise a module file that works elsewhere would not work on such a machine."""
    workspace = machine.consumer("consumer", machine.python)
    arguments = ("test", "//...", "--test_output=all")
    result = machine.bazelw(f"--output_user_root={machine.root}/output", *arguments, cwd=workspace)
    assert result.returncode == 0, result.stderr
    assert f"python {machine.python}." in result.stdout
    assert "pypi_iniconfig/site-packages/iniconfig/__init__.py" in result.stdout
    assert "1 test passes" in result.stdout


def test_a_trust_store_of_our_own_serves_bazels_downloads(machine: Machine) -> None:
    """Otherwise a machine without Java's store could download nothing."""
    bundle = prefix_config.MACHINE_BUNDLE.read_text(encoding="utf-8", errors="replace")
    store = machine.root / "cacerts"
    store.write_bytes(prefix_config.java_key_store(bundle))
    (keytool,) = {file.resolve() for file in machine.launcher.parent.glob("usr/lib/jvm/*/bin/keytool")}
    listed = subprocess.run(
        [keytool, "-list", "-keystore", store, "-storepass", "changeit"], capture_output=True, text=True, check=True
    )
    assert listed.stdout.count("trustedCertEntry") == bundle.count("BEGIN CERTIFICATE") > 0

    workspace = machine.consumer("other_store", machine.python)
    result = machine.bazelw(
        f"--host_jvm_args=-Djavax.net.ssl.trustStore={store}",
        # Of its own, so that nothing that it needs has been downloaded before.
        f"--output_user_root={machine.root}/output_of_other_store",
        *("build", "//..."),
        cwd=workspace,
    )
    assert result.returncode == 0, result.stderr
