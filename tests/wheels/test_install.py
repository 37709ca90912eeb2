"""The installation of a lock file: what it makes, and the text for each way in which it fails."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import py_compile
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

WHEELS = Path(__file__).parents[2] / "wheels"


# A program outside any package.
program = SimpleNamespace(**runpy.run_path(str(WHEELS / "install.py")))


def _wheel(
    folder: Path, version: str = "1.2", tag: str = "py3-none-any", size: int = 0, name: str = "Blue.Sky"
) -> Path:
    """Make a wheel with one package, a module that does not compile, a data file of `size` bytes, and a program."""
    spelled = name.lower().replace(".", "_")
    info = f"{spelled}-{version}.dist-info"
    files = {
        f"{spelled}/__init__.py": "COLOUR = 'azure'\n\ndef main():\n    print(COLOUR)\n",
        f"{spelled}/template.py": "class {{ name }}: pass\n",
        f"{spelled}/data.txt": "x" * size,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{spelled} = {spelled}:main\n",
    }
    record = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    wheel = folder / f"{spelled}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def _pin(wheel: Path, requirement: str) -> str:
    return f"{requirement} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def _environment(wheels: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which pip finds the wheels of a folder and nothing else."""
    return {
        "PATH": os.environ["PATH"],
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(wheels),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_NO_INDEX": "1",
        **(more or {}),
    }


def _install(
    folder: Path, lock: str, more: Mapping[str, str] | None = None, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Install a lock file into `folder / "out"`, with the wheels of `folder / "wheels"`."""
    (folder / "out").mkdir(exist_ok=True)
    (folder / "lock.txt").write_text(lock, encoding="utf-8")
    command = [sys.executable, "-I", str(WHEELS / "install.py"), "--lock", str(folder / "lock.txt")]
    return subprocess.run(
        [*before, *command, "--name", "//:lock.txt", str(folder / "out")],
        env=_environment(folder / "wheels", more),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an empty folder for wheels."""
    (tmp_path / "wheels").mkdir()
    return tmp_path


def _refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Assert that the installation failed, with an error text of ours and without a traceback of ours."""
    assert done.returncode == 1
    assert "//:lock.txt could not be installed" in done.stderr
    # A traceback of pip's may be there, and none of ours.
    assert f'File "{WHEELS}/install.py"' not in done.stderr
    for part in parts:
        assert part in done.stderr


def test_a_lock_becomes_one_folder_with_bytecode_and_metadata(folder: Path) -> None:
    """If it fails, nothing can be imported, or every test compiles torch again."""
    wheel = _wheel(folder / "wheels")
    user = folder / "elsewhere"
    # Settings of the user for another installation.
    settings = {"PIP_TARGET": str(user), "PIP_USER": "1", "PIP_PREFIX": str(user), "PYTHONPATH": str(user)}
    done = _install(folder, _pin(wheel, "blue-sky==1.2"), settings)
    assert done.returncode == 0, done.stderr
    out = folder / "out"
    assert {path.name for path in out.iterdir()} == {"site-packages", "blue_sky"}
    assert (out / "blue_sky" / "dist_info" / "entry_points.txt").read_text(encoding="utf-8").startswith("[console")
    tag = sys.implementation.cache_tag
    bytecode = out / "site-packages" / "blue_sky" / "__pycache__" / f"__init__.{tag}.pyc"
    # Flags 0b01: the bytecode belongs to its source by a hash that Python does not check.
    assert bytecode.read_bytes()[4:8] == bytes([0b01, 0, 0, 0])
    assert py_compile.PycInvalidationMode.UNCHECKED_HASH.name == "UNCHECKED_HASH"
    assert not user.exists()


# Prints where a function says that it is written, and its first line by that.
_WWHEELS = """
import inspect
from blue_sky import main
print(main.__code__.co_filename)
print(inspect.getsource(main))
"""


def test_two_folders_get_the_same_bytes(folder: Path) -> None:
    """If it fails, no test of one machine is a hit in the cache of another."""
    wheel = _wheel(folder / "wheels")
    found = []
    for name in ("one", "another_one"):
        (folder / name).mkdir()
        (folder / name / "wheels").symlink_to(folder / "wheels")
        done = _install(folder / name, _pin(wheel, "blue-sky==1.2"))
        assert done.returncode == 0, done.stderr
        out = folder / name / "out"
        found.append({path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()})
    assert found[0] == found[1]
    # Another machine may have the interpreter elsewhere.
    program = folder / "one" / "out" / "site-packages" / "bin" / "blue_sky"
    python = "python{}.{}".format(*sys.version_info)
    assert f"/usr/bin/env {python}" in program.read_text(encoding="utf-8")
    # As the import rewrites it, tracebacks name the real file.
    site = program.parents[1]
    told = subprocess.run(
        [sys.executable, "-c", _WWHEELS], env={"PYTHONPATH": str(site)}, stdout=subprocess.PIPE, text=True, check=True
    )
    assert told.stdout.startswith(f"{site / 'blue_sky' / '__init__.py'}\ndef main():\n")


_ZEROS = f" --hash=sha256:{'0' * 64}\n"
_ANY, _OTHER = "py3-none-any", "cp27-cp27m-win32"


@pytest.mark.parametrize(
    ("tag", "lock", "said"),
    [
        # A changed wheel must not get into the tests.
        (_ANY, f"blue-sky==1.2{_ZEROS}", ("A wheel is not the file that was locked", "remake it (uv pip")),
        (_ANY, "blue-sky==1.3 HASH", ("No index that pip knows has that version", "extra_index_urls in")),
        # A lock for another machine looks like a missing package, unless it names a file.
        (_OTHER, "blue-sky==1.2 HASH", ("has that version as a wheel for Python", "and this processor")),
        (_OTHER, "blue-sky @ file://WHEEL HASH", ("names a wheel for another platform", "Name a wheel for this")),
        # The extension refuses most such files before.
        (
            _ANY,
            "blue-sky==1.2 ; python_version > '3' HASHblue-sky==1.3 ; python_version > '2'" + _ZEROS,
            ("The lock file has a package twice", "Keep one of them"),
        ),
        (_ANY, "blue-sky==1.2\n", ("A requirement has no hash", "Lock it again")),
    ],
    ids=["changed", "version", "platform", "file of a platform", "twice", "no hash"],
)
def test_a_lock_that_does_not_fit_is_explained(folder: Path, tag: str, lock: str, said: tuple[str, ...]) -> None:
    """If it fails, a user sees pip's words alone, or another wheel than the locked one gets into the tests."""
    wheel = _wheel(folder / "wheels", tag=tag)
    lock = lock.replace(" HASH", _pin(wheel, "")).replace("WHEEL", str(wheel))
    _refused(_install(folder, lock), *said)


@pytest.mark.parametrize("damage", ["cut", "no archive", "no metadata"])
def test_a_wheel_that_does_not_unpack_is_named(folder: Path, damage: str) -> None:
    """If it fails, a broken upload looks like a fault of ours."""
    wheel = _wheel(folder / "wheels", size=5000)
    if damage == "cut":
        wheel.write_bytes(wheel.read_bytes()[:2000])
    elif damage == "no archive":
        wheel.write_text("<html>please log in</html>", encoding="utf-8")
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("blue_sky/__init__.py", "")
    done = _install(folder, _pin(wheel, "blue-sky==1.2"))
    _refused(done, "A wheel has the locked hash and still cannot be unpacked", "Ask the people who built it")


def _on_a_small_disk(disk: Path, script: str) -> tuple[str, ...]:
    """Return a command before which `disk` is a file system of 256 KiB of its own, and `script` has run."""
    disk.mkdir()
    script = f'mount -t tmpfs -o size=256k none "{disk}" && {script} exec "$@"'
    namespace = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode:
        pytest.skip("this kernel does not allow a mount in a user namespace")
    return namespace


def _names_the_full_disk(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "The disk of Bazel's output base is full" in done.stderr
    assert "--output_user_root" in done.stderr


def test_a_disk_that_is_full_for_pip_is_named(folder: Path) -> None:
    """If it fails, a full disk looks like a broken wheel."""
    wheel = _wheel(folder / "wheels", size=1_000_000)
    small = _on_a_small_disk(folder / "out", "")
    _names_the_full_disk(_install(folder, _pin(wheel, "blue-sky==1.2"), before=small))


# Runs the second step of install.py alone.
_COMPILE = """
import pathlib, runpy, sys
program = runpy.run_path(sys.argv[1])
try:
    program["_compile"](pathlib.Path(sys.argv[2]))
except program["InstallError"] as error:
    sys.exit(str(error))
"""


def test_a_disk_that_is_full_for_bytecode_is_named(folder: Path) -> None:
    """If it fails, every test compiles the packages again, and no message says why."""
    fill = f'mkdir "{folder}/out/site-packages"; echo "x = 1" > "{folder}/out/site-packages/m.py"; '
    fill += f'head -c 1000000 /dev/zero > "{folder}/out/rest" 2>/dev/null; '
    small = _on_a_small_disk(folder / "out", fill)
    command = [*small, sys.executable, "-c", _COMPILE, str(WHEELS / "install.py"), str(folder / "out")]
    _names_the_full_disk(subprocess.run(command, capture_output=True, text=True, check=False, timeout=60))


def _python_without_pip(folder: Path) -> Path:
    """Make an interpreter that has no module pip."""
    python = folder / "python3"
    script = f'#!/bin/sh\nif [ "$1 $2" = "-m pip" ]; then exit 1; fi\nexec "{sys.executable}" "$@"\n'
    python.write_text(script, encoding="utf-8")
    python.chmod(0o755)
    return python


@pytest.mark.skipif(importlib.util.find_spec("ensurepip") is None, reason="this Python has no ensurepip")
def test_an_interpreter_without_pip_uses_the_one_it_brings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, a hermetic toolchain without pip cannot install anything."""
    wheel = _wheel(folder / "wheels")
    python = str(_python_without_pip(folder))
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr(sys, "_base_executable", python)
    for name, value in _environment(folder / "wheels").items():
        monkeypatch.setenv(name, value)
    (folder / "out").mkdir()
    (folder / "lock.txt").write_text(_pin(wheel, "blue-sky==1.2"), encoding="utf-8")
    program.install(folder / "lock.txt", "//:lock.txt", folder / "out")
    assert (folder / "out" / "site-packages" / "blue_sky" / "__init__.py").exists()


def test_an_interpreter_without_any_pip_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, a user of a small container sees a traceback."""
    python = str(_python_without_pip(folder))
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr(sys, "_base_executable", python)
    # Importing it raises ImportError.
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(program.InstallError, match=r"this interpreter has no pip.\n.*\n.*apt-get install python3-pip"):
        program.install(folder / "lock.txt", "//:lock.txt", folder)
