"""Packages as one archive: the imports of a test on a worker."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

WHEELS = Path(__file__).parents[2] / "wheels"
LIMIT = "DIST_TESTING_WHEELS_CACHE_BYTES"

# Imports through a stub, as a test does, and prints where the package and its metadata were found.
_IMPORT = """
import blue.deep
import importlib.metadata
print(blue.__file__)
print(blue.deep.COLOUR, importlib.metadata.version("blue"))
"""
_IMPORT_IN_CHILD = """
import blue, subprocess, sys
subprocess.run([sys.executable, "-c", "import blue, red, sys; print(blue.__file__); print(red.SHADE)"], check=True)
"""


def _site(folder: Path, colour: str) -> Path:
    """An installed site-packages with a package, a module and their metadata."""
    files = {
        "blue/__init__.py": "from red import SHADE\n",
        "blue/deep.py": f"COLOUR = {colour!r}\n",
        "blue-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: blue\nVersion: 1.2\n",
        "bin/bluetooth": "#!/bin/sh\n",
        "red.py": "SHADE = 'crimson'\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "bin" / "bluetooth").chmod(0o755)
    return folder


@dataclass(frozen=True, slots=True)
class Worker:
    """A machine with an archive, a folder for the cache, and a folder for the files of one test."""

    archive: Path
    cache: Path
    scratch: Path

    @classmethod
    def make(cls, folder: Path, name: str = "archive", colour: str = "azure") -> Worker:
        """Make an archive; all of a folder share the cache."""
        worker = cls(folder / name, folder / "cache", folder / "scratch")
        worker.archive.mkdir()
        worker.scratch.mkdir(exist_ok=True)
        worker.pack(_site(folder / f"{name}.site", colour))
        return worker

    def pack(self, site: Path) -> None:
        """Write the archive."""
        command = [sys.executable, "-I", str(WHEELS / "make_archive.py"), str(site), str(self.archive)]
        subprocess.run(command, check=True)

    @property
    def tar(self) -> Path:
        """The archive itself."""
        return self.archive / "site.tar"

    @property
    def description(self) -> dict[str, object]:
        """The file that describes it."""
        found: dict[str, object] = json.loads((self.archive / "site.json").read_text(encoding="utf-8"))
        return found

    @property
    def unpacked(self) -> list[Path]:
        """The folders of the cache."""
        return [path for path in self.cache.iterdir() if path.is_dir()] if self.cache.is_dir() else []

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a test."""
        places = {"PYTHONPATH": str(self.archive / "stubs"), "DIST_TESTING_WHEELS_CACHE": str(self.cache)}
        return {"PATH": os.environ["PATH"], "TEST_TMPDIR": str(self.scratch), **places, **(more or {})}

    def start(self, code: str = _IMPORT) -> subprocess.Popen[str]:
        """Start a test."""
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env=self.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(
        self,
        *code: str,
        before: Sequence[str] = (),
        cwd: Path | None = None,
        more: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a test to its end: arguments of Python, by default the imports; with more variables."""
        return subprocess.run(
            [*before, sys.executable, *(code or ("-c", _IMPORT))],
            cwd=cwd,
            env=self.env(more),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def passes(self, *code: str, more: Mapping[str, str] | None = None) -> list[str]:
        """Run a test that passes, and return the lines of its output."""
        done = self.run(*code, more=more)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def refused(self, done: subprocess.CompletedProcess[str]) -> str:
        """Return the error of a test that could not import its packages: three lines."""
        assert done.returncode == 1
        message = done.stderr[done.stderr.rindex("WheelsArchiveError: ") :]
        assert len(message.splitlines()) == 3
        return message


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """A worker without anything in its cache."""
    return Worker.make(tmp_path)


def test_imports_find_the_real_package_and_its_metadata(worker: Worker) -> None:
    """If it fails, no test runs on a worker, or not the ranks in fresh interpreters, or `python -m` of a package."""
    lines = worker.passes()
    assert (worker.cache.stat().st_mode & 0o777) == 0o700
    (unpacked,) = worker.unpacked
    package = f"{unpacked}/site-packages/blue/__init__.py"
    assert lines == [package, "azure 1.2"]
    assert os.access(unpacked / "site-packages" / "bin" / "bluetooth", os.X_OK)
    assert worker.passes("-c", _IMPORT_IN_CHILD) == [package, "crimson"]
    assert worker.passes("-m", "blue.deep") == []


def test_the_same_files_make_the_same_archive(worker: Worker, tmp_path: Path) -> None:
    """If it fails, two machines never share a remote cache."""
    before = [(worker.archive / name).read_bytes() for name in ("site.tar", "site.json")]
    site = tmp_path / "archive.site"
    for path in site.rglob("*"):
        os.utime(path, (1, 1))
    worker.pack(site)
    assert [(worker.archive / name).read_bytes() for name in ("site.tar", "site.json")] == before


def test_processes_at_once_unpack_once(worker: Worker) -> None:
    """If it fails, tests that start together on a worker break each other's packages."""
    children = [worker.start() for _ in range(4)]
    outputs = {child.communicate(timeout=60)[0] for child in children}
    assert [child.returncode for child in children] == [0] * 4
    assert len(outputs) == len(worker.unpacked) == 1


@pytest.mark.parametrize("name", ["changed", "../outside", "/outside", "link"])
def test_an_archive_that_is_not_the_one_that_was_made_is_refused(worker: Worker, name: str) -> None:
    """If it fails, tests run with packages that are not locked, or an archive writes to any place on a worker."""
    if name == "changed":
        worker.tar.write_bytes(worker.tar.read_bytes().replace(b"crimson", b"scarlet"))
    else:
        with tarfile.open(worker.tar, "w") as tar:
            member = tarfile.TarInfo(name)
            if name == "link":
                member.type, member.linkname = tarfile.SYMTYPE, "/"
            tar.addfile(member, io.BytesIO())
        digest = hashlib.sha256(worker.tar.read_bytes()).hexdigest()
        (worker.archive / "site.json").write_text(json.dumps(worker.description | {"sha256": digest}), encoding="utf-8")
    text = worker.refused(worker.run())
    assert "The archive differs from the one that was made from the lock file" in text
    assert ("that is not a plain file" in text) is (name != "changed")
    assert worker.unpacked == []


def test_packages_for_another_python_are_an_error(worker: Worker) -> None:
    """If it fails, a worker with another Python shows an error of some extension module."""
    description = worker.description
    text = json.dumps(description | {"python": "cpython-27"})
    (worker.archive / "site.json").write_text(text, encoding="utf-8")
    expected = f"but the packages of this test are for cpython-27 on {description['machine']}"
    assert expected in worker.refused(worker.run())


def test_the_cache_removes_the_least_recently_used(tmp_path: Path) -> None:
    """If it fails, workers' disks fill up."""
    workers = [Worker.make(tmp_path, f"archive{number}", "x" * number) for number in (1, 2, 3)]
    size = workers[0].description["bytes"]
    assert isinstance(size, int)
    for used in (0, 1, 0, 2):
        # Space for two, which differ by a few bytes.
        workers[used].passes(more={LIMIT: str(2 * size + 10)})
    kept = sorted(path.name.partition("-")[0] for path in workers[0].unpacked)
    assert kept == sorted(str(workers[index].description["sha256"]) for index in (0, 2))


def test_packages_in_use_are_not_removed(tmp_path: Path) -> None:
    """If it fails, a running test loses its packages because another one starts."""
    first, second = Worker.make(tmp_path, "first"), Worker.make(tmp_path, "second", "navy")
    user = first.start("import red; print(flush=True); input()")
    assert user.stdout is not None
    try:
        user.stdout.readline()
        second.passes(more={LIMIT: "0"})
        assert len(first.unpacked) == 2
    finally:
        user.communicate("\n", timeout=60)


def test_a_test_that_is_killed_while_it_unpacks_leaves_nothing_in_the_way(worker: Worker) -> None:
    """If it fails, a worker that was once short of memory runs no more tests, or runs them with half a torch."""
    content = worker.tar.read_bytes()
    worker.tar.unlink()
    os.mkfifo(worker.tar)
    killed = worker.start("import blue")
    # Blocks while the archive is hashed, when the folder is there, and never delivers the rest.
    with worker.tar.open("wb", buffering=0) as pipe:
        pipe.write(content[: len(content) // 2])
        killed.kill()
        killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    (unfinished,) = worker.unpacked
    assert unfinished.name.endswith(".unfinished")
    # As if it had come to the files.
    (unfinished / "site-packages").mkdir(exist_ok=True)
    (unfinished / "site-packages" / "red.py").write_text("SHADE = 'half'\n", encoding="utf-8")
    worker.tar.unlink()
    worker.tar.write_bytes(content)
    worker.passes()
    assert worker.unpacked == [unfinished.with_suffix("")]


def _on_a_disk(disk: Path, options: str) -> list[str]:
    """Return a command before which a file system of its own is mounted at `disk`."""
    disk.mkdir(exist_ok=True)
    script = f'mount -t tmpfs -o mode=0700,{options} none "{disk}" && exec "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode:
        pytest.skip("this kernel does not allow a mount in a user namespace")
    return namespace


@pytest.mark.parametrize("options", ["nr_inodes=4", "size=8k", "nr_inodes=1"])
def test_a_full_disk_is_named(worker: Worker, options: str) -> None:
    """If it fails, `import torch` ends in an error of a system call."""
    # Without any space, no cache can be made, and the folder of each test is full, too.
    done = worker.run(before=_on_a_disk(worker.cache, options), more={"TEST_TMPDIR": str(worker.cache)})
    text = worker.refused(done)
    assert f"{worker.tar}: cannot be unpacked into {worker.cache} ([Errno 28] No space left on device" in text


# The answer of an old network file system to every lock.
_WITHOUT_LOCKS = """
import errno, fcntl
def flock(descriptor, operation):
    raise OSError({number}, "no locks here")
fcntl.flock = flock
"""


@pytest.mark.parametrize("obstacle", ["a file", "writable by all", "ro", "nr_inodes=1", "no locks"])
def test_without_a_cache_the_packages_are_private_and_go_away(worker: Worker, obstacle: str) -> None:
    """If it fails, no test runs in a sandbox or with a remote home, or another user puts code into the tests."""
    before: Sequence[str] = ()
    code = _IMPORT
    if obstacle == "a file":
        worker.cache.touch()
    elif obstacle == "writable by all":
        worker.cache.mkdir()
        worker.cache.chmod(0o777)
    elif obstacle == "no locks":
        code = _WITHOUT_LOCKS.format(number="errno.ENOLCK") + _IMPORT
    else:
        before = _on_a_disk(worker.cache, obstacle)
    done = worker.run("-c", code, before=before)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{worker.scratch}/")
    assert list(worker.scratch.iterdir()) == worker.unpacked == []
    assert done.stderr.startswith(f"WARNING: DIST_TESTING_WHEELS_CACHE={worker.cache}: no cache can be there")


def test_errors_of_the_cache_are_explained(worker: Worker) -> None:
    """If it fails, `import torch` ends in an error of a system call, or a typing error removes the limit."""
    done = worker.run("-c", _WITHOUT_LOCKS.format(number="errno.EIO") + _IMPORT)
    expected = f"{worker.cache}: the cache of unpacked Python packages cannot be used ([Errno 5] no locks here)."
    assert expected in worker.refused(done)
    relative = worker.run(more={"DIST_TESTING_WHEELS_CACHE": "cache"})
    assert "DIST_TESTING_WHEELS_CACHE='cache': not an absolute path." in worker.refused(relative)
    assert f"{LIMIT}='16G': not a number of bytes." in worker.refused(worker.run(more={LIMIT: "16G"}))


@pytest.mark.parametrize("given", ["relative", ""])
def test_a_cache_folder_that_is_relative_counts_as_unset(worker: Worker, tmp_path: Path, given: str) -> None:
    """If it fails, every test unpacks torch into its own working directory."""
    home = tmp_path / "home"
    home.mkdir()
    more = {"DIST_TESTING_WHEELS_CACHE": "", "HOME": str(home), "XDG_CACHE_HOME": given}
    done = worker.run(cwd=worker.scratch, more=more)
    assert done.returncode == 0
    assert list(worker.scratch.iterdir()) == []
    assert len(replace(worker, cache=home / ".cache" / "dist_testing" / "wheels").unpacked) == 1
