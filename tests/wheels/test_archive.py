"""Packages as one archive: the imports of a test on a worker."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

WHEELS = Path(__file__).parents[2] / "wheels"

# Imports through a stub, as a test does, and prints where the package and its metadata were found.
_IMPORT = """
import blue.deep
import importlib.metadata, subprocess, sys
print(blue.__file__)
print(blue.deep.COLOUR, importlib.metadata.version("blue"))
sys.stdout.flush()
"""

_IMPORT_IN_CHILD = """
import blue, subprocess, sys
subprocess.run([sys.executable, "-c", "import blue, red, sys; print(blue.__file__); print(red.SHADE)"], check=True)
"""


def _site(folder: Path, colour: str = "azure") -> Path:
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


def _archive(tmp_path: Path, name: str = "archive", colour: str = "azure") -> Path:
    out = tmp_path / name
    out.mkdir()
    site = _site(tmp_path / f"{name}.site", colour)
    subprocess.run([sys.executable, "-I", str(WHEELS / "make_archive.py"), str(site), str(out)], check=True)
    return out


def _environment(archive: Path, cache: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(archive / "stubs"),
        "DIST_TESTING_WHEELS_CACHE": str(cache),
        **(more or {}),
    }


def _python(
    archive: Path, cache: Path, code: str = _IMPORT, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=_environment(archive, cache, more),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _whole(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


def test_imports_find_the_real_package_and_its_metadata(tmp_path: Path) -> None:
    """If it fails, none of the repository's tests can run on a worker."""
    archive, cache = _archive(tmp_path), tmp_path / "cache"
    done = _python(archive, cache)
    assert done.returncode == 0, done.stderr
    assert (cache.stat().st_mode & 0o777) == 0o700
    (unpacked,) = _whole(cache)
    assert done.stdout.splitlines() == [f"{unpacked}/site-packages/blue/__init__.py", "azure 1.2"]
    assert os.access(unpacked / "site-packages" / "bin" / "bluetooth", os.X_OK)


def test_processes_that_a_test_starts_find_the_packages(tmp_path: Path) -> None:
    """If it fails, ranks in fresh interpreters can import nothing on a worker."""
    archive, cache = _archive(tmp_path), tmp_path / "cache"
    done = _python(archive, cache, _IMPORT_IN_CHILD)
    assert done.returncode == 0, done.stderr
    (unpacked,) = _whole(cache)
    assert done.stdout.splitlines() == [f"{unpacked}/site-packages/blue/__init__.py", "crimson"]


def test_a_program_of_a_package_runs_by_its_name(tmp_path: Path) -> None:
    """If it fails, `python -m torch.distributed.run` is not found on a worker."""
    archive, cache = _archive(tmp_path), tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-m", "blue.deep"], env=_environment(archive, cache), check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    """If it fails, two machines never share a remote cache."""
    first, second = _archive(tmp_path, "first"), tmp_path / "second"
    site = tmp_path / "first.site"
    for path in site.rglob("*"):
        os.utime(path, (1, 1))
    second.mkdir()
    subprocess.run([sys.executable, "-I", str(WHEELS / "make_archive.py"), str(site), str(second)], check=True)
    assert (first / "site.tar").read_bytes() == (second / "site.tar").read_bytes()
    assert (first / "site.json").read_bytes() == (second / "site.json").read_bytes()


def test_processes_at_once_unpack_once(tmp_path: Path) -> None:
    """If it fails, tests that start together on a worker break each other's packages."""
    archive, cache = _archive(tmp_path), tmp_path / "cache"
    children = [
        subprocess.Popen([sys.executable, "-c", _IMPORT], env=_environment(archive, cache), stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    outputs = {child.communicate(timeout=60)[0] for child in children}
    assert [0] * 4 == [child.returncode for child in children]
    assert len(outputs) == 1
    assert len(_whole(cache)) == 1


def test_leftovers_of_a_killed_process_are_replaced(tmp_path: Path) -> None:
    """If it fails, a worker whose test was killed at the wrong moment can run no test until it is cleaned."""
    archive, cache = _archive(tmp_path), tmp_path / "cache"
    assert _python(archive, cache).returncode == 0
    (unpacked,) = _whole(cache)
    unfinished = unpacked.with_name(unpacked.name + ".unfinished")
    unpacked.rename(unfinished)
    (unfinished / "site-packages" / "red.py").unlink()
    done = _python(archive, cache)
    assert done.returncode == 0, done.stderr
    assert _whole(cache) == [unpacked]


def test_a_damaged_archive_is_not_used(tmp_path: Path) -> None:
    """If it fails, tests run with packages that are not in the lock file."""
    archive, cache = _archive(tmp_path), tmp_path / "cache"
    tar = archive / "site.tar"
    tar.write_bytes(tar.read_bytes().replace(b"crimson", b"scarlet"))
    done = _python(archive, cache)
    assert done.returncode == 1
    assert "WheelsArchiveError" in done.stderr
    assert "The archive differs from the one that was made from the lock file" in done.stderr
    assert _whole(cache) == []


@pytest.mark.parametrize("name", ["../outside", "/outside", "link"])
def test_an_archive_that_reaches_outside_is_refused(tmp_path: Path, name: str) -> None:
    """If it fails, an archive can write to any place on a worker."""
    archive, cache = _archive(tmp_path), tmp_path / "cache"
    with tarfile.open(archive / "site.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        if name == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "/"
        tar.addfile(member, io.BytesIO())
    done = _python(archive, cache)
    assert done.returncode == 1
    assert "that is not a plain file" in done.stderr
    assert _whole(cache) == []


def test_packages_for_another_python_are_an_error(tmp_path: Path) -> None:
    """If it fails, a worker with another Python shows an error of some extension module."""
    archive, cache = _archive(tmp_path), tmp_path / "cache"
    description = json.loads((archive / "site.json").read_text(encoding="utf-8"))
    (archive / "site.json").write_text(json.dumps(description | {"python": "cpython-27"}), encoding="utf-8")
    done = _python(archive, cache)
    assert done.returncode == 1
    assert f"but the packages of this test are for cpython-27 on {description['machine']}" in done.stderr


def test_the_cache_removes_the_least_recently_used(tmp_path: Path) -> None:
    """If it fails, workers' disks fill up."""
    cache = tmp_path / "cache"
    archives = [_archive(tmp_path, f"archive{number}", "x" * number) for number in (1, 2, 3)]
    size = json.loads((archives[0] / "site.json").read_text(encoding="utf-8"))["bytes"]
    # Space for two, which differ by a few bytes.
    limit = {"DIST_TESTING_WHEELS_CACHE_BYTES": str(2 * size + 10)}
    for used in (0, 1, 0, 2):
        assert _python(archives[used], cache, more=limit).returncode == 0
    digests = [json.loads((archives[kept] / "site.json").read_text(encoding="utf-8"))["sha256"] for kept in (0, 2)]
    assert sorted(digests) == sorted(path.name.partition("-")[0] for path in _whole(cache))


def test_packages_in_use_are_not_removed(tmp_path: Path) -> None:
    """If it fails, a running test loses its packages because another one starts."""
    cache = tmp_path / "cache"
    first, second = _archive(tmp_path, "first"), _archive(tmp_path, "second", "navy")
    user = subprocess.Popen(
        [sys.executable, "-c", "import red; print(flush=True); input()"],
        env=_environment(first, cache),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert user.stdout is not None
    try:
        user.stdout.readline()
        assert _python(second, cache, more={"DIST_TESTING_WHEELS_CACHE_BYTES": "0"}).returncode == 0
        assert len(_whole(cache)) == 2
    finally:
        user.communicate(b"\n", timeout=60)


def test_a_test_that_is_killed_while_it_unpacks_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    """If it fails, a worker that was once short of memory runs no more tests, or runs them with half a torch."""
    archive, cache = _archive(tmp_path), tmp_path / "cache"
    tar = archive / "site.tar"
    content = tar.read_bytes()
    tar.unlink()
    os.mkfifo(tar)
    killed = subprocess.Popen(
        [sys.executable, "-c", "import blue"], env=_environment(archive, cache), stderr=subprocess.DEVNULL
    )
    # Blocks after the unpacking has begun, and never delivers the rest.
    with tar.open("wb", buffering=0) as pipe:
        pipe.write(content[: len(content) // 2])
        killed.kill()
        assert killed.wait(60) == -signal.SIGKILL
    (unfinished,) = _whole(cache)
    assert unfinished.name.endswith(".unfinished")
    tar.unlink()
    tar.write_bytes(content)
    done = _python(archive, cache)
    assert done.returncode == 0, done.stderr
    assert _whole(cache) == [unfinished.with_suffix("")]


def _on_a_disk(disk: Path, options: str, archive: Path, more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the test on a file system of its own, mounted at `disk`."""
    script = f'mount -t tmpfs -o mode=0700,{options} none "{disk}" && exec "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode:
        pytest.skip("this kernel does not allow a mount in a user namespace")
    return subprocess.run(
        [*namespace, sys.executable, "-c", _IMPORT],
        env=_environment(archive, disk, more),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("options", ["nr_inodes=4", "size=8k", "nr_inodes=1"])
def test_a_full_disk_is_named(tmp_path: Path, options: str) -> None:
    """If it fails, `import torch` ends in an error of a system call."""
    archive, disk = _archive(tmp_path), tmp_path / "disk"
    disk.mkdir()
    # Without any space, no cache can be made, and the folder of each test is full, too.
    done = _on_a_disk(disk, options, archive, {"TEST_TMPDIR": str(disk)})
    assert done.returncode == 1
    message = done.stderr[done.stderr.rindex("WheelsArchiveError: ") :]
    assert f"{archive}/site.tar: cannot be unpacked into {disk} ([Errno 28] No space left on device" in message
    assert len(message.splitlines()) == 3


@pytest.mark.parametrize("options", ["ro", "nr_inodes=1"])
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, options: str) -> None:
    """If it fails, a worker with a read-only home runs no test."""
    archive, disk, scratch = _archive(tmp_path), tmp_path / "disk", tmp_path / "scratch"
    disk.mkdir()
    scratch.mkdir()
    done = _on_a_disk(disk, options, archive, {"TEST_TMPDIR": str(scratch)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{scratch}/")
    assert list(scratch.iterdir()) == []


# The answer of an old network file system to every lock.
_WITHOUT_LOCKS = """
import errno, fcntl
def flock(descriptor, operation):
    raise OSError({number}, "no locks here")
fcntl.flock = flock
"""


def test_a_file_system_without_locks_is_done_without(tmp_path: Path) -> None:
    """If it fails, a worker whose home is on a network file system runs no test."""
    archive, cache, scratch = _archive(tmp_path), tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    done = _python(
        archive, cache, _WITHOUT_LOCKS.format(number="errno.ENOLCK") + _IMPORT, {"TEST_TMPDIR": str(scratch)}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{scratch}/")
    assert list(scratch.iterdir()) == []


def test_a_lock_that_fails_otherwise_is_explained(tmp_path: Path) -> None:
    """If it fails, `import torch` ends in an error of a system call."""
    archive, cache = _archive(tmp_path), tmp_path / "cache"
    done = _python(archive, cache, _WITHOUT_LOCKS.format(number="errno.EIO") + _IMPORT)
    assert done.returncode == 1
    message = done.stderr[done.stderr.rindex("WheelsArchiveError: ") :]
    assert f"{cache}: the cache of unpacked Python packages cannot be used ([Errno 5] no locks here)." in message
    assert len(message.splitlines()) == 3


@pytest.mark.parametrize("given", ["relative", ""])
def test_a_cache_folder_that_is_relative_counts_as_unset(tmp_path: Path, given: str) -> None:
    """If it fails, every test unpacks torch into its own working directory."""
    archive, home, elsewhere = _archive(tmp_path), tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", "import blue"],
        cwd=elsewhere,
        env=_environment(
            archive, Path(), {"DIST_TESTING_WHEELS_CACHE": "", "HOME": str(home), "XDG_CACHE_HOME": given}
        ),
        check=False,
    )
    assert done.returncode == 0
    assert list(elsewhere.iterdir()) == []
    assert len(_whole(home / ".cache" / "dist_testing" / "wheels")) == 1


@pytest.mark.parametrize("obstacle", ["a file", "writable by all"])
def test_without_a_cache_the_packages_are_private_and_go_away(tmp_path: Path, obstacle: str) -> None:
    """If it fails, a sandbox cannot run tests, or another user of the worker puts code into them."""
    archive, cache, scratch = _archive(tmp_path), tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    if obstacle == "a file":
        cache.touch()
    else:
        cache.mkdir()
        cache.chmod(0o777)
    done = _python(archive, cache, more={"TEST_TMPDIR": str(scratch)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{scratch}/")
    assert list(scratch.iterdir()) == []
    if cache.is_dir():
        assert list(cache.iterdir()) == []


def test_a_limit_that_is_not_a_number_is_an_error(tmp_path: Path) -> None:
    """If it fails, a typing error removes the limit."""
    done = _python(_archive(tmp_path), tmp_path / "cache", more={"DIST_TESTING_WHEELS_CACHE_BYTES": "16G"})
    assert done.returncode == 1
    assert "DIST_TESTING_WHEELS_CACHE_BYTES='16G': not a number of bytes." in done.stderr
