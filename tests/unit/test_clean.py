"""The check whether a process is fit to fork ranks from."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from dist_testing.core.launch.clean import spare_cuda, unclean_reasons


def fake_torch(monkeypatch: pytest.MonkeyPatch, *, cuda: bool = False, group: bool = False, built: bool = True) -> None:
    """Install a torch in the state that a case needs."""
    torch = ModuleType("torch")
    torch.cuda = ModuleType("torch.cuda")  # type: ignore[attr-defined]
    torch.cuda.is_initialized = lambda: cuda
    torch.distributed = ModuleType("torch.distributed")  # type: ignore[attr-defined]
    torch.distributed.is_available = lambda: built
    if built:
        torch.distributed.is_initialized = lambda: group
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_every_running_thread_is_named() -> None:
    """If this fails, ranks inherit a lock that is held for ever, and no text names the thread that held it."""
    release = threading.Event()
    before = unclean_reasons()
    threads = [threading.Thread(target=release.wait, name=f"pool {number}", daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        added = [reason for reason in unclean_reasons() if reason not in before]
    finally:
        release.set()
        for thread in threads:
            thread.join()
    assert added == ["the thread 'pool 0' is running", "the thread 'pool 1' is running"]
    after = unclean_reasons()
    assert not any("pool" in reason or "MainThread" in reason for reason in after)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, []),
        ({"cuda": True}, ["CUDA is initialised"]),
        ({"group": True}, ["a process group is initialised"]),
        # A torch without distributed has no function to ask.
        ({"built": False}, []),
    ],
)
def test_cuda_and_groups_that_torch_has_made_are_named(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, bool], expected: list[str]
) -> None:
    """If this fails, ranks inherit a CUDA context or a group, or a process without torch imports it for the check."""
    fake_torch(monkeypatch, **state)
    assert [reason for reason in unclean_reasons() if "initialised" in reason] == expected
    monkeypatch.delitem(sys.modules, "torch")
    assert not [reason for reason in unclean_reasons() if "initialised" in reason]
    assert "torch" not in sys.modules


def test_cuda_in_use_after_counting_devices_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, `torch.cuda.is_available()` at import keeps every rank from using a GPU.

    torch still calls CUDA uninitialised then.
    """
    node = tmp_path / "nvidia-uvm"
    node.touch()
    fake_torch(monkeypatch)
    monkeypatch.setattr("dist_testing.core.launch.clean._CUDA_NODE", str(node))
    assert not [reason for reason in unclean_reasons() if "CUDA" in reason]
    with node.open():
        assert [reason for reason in unclean_reasons() if "CUDA's driver is in use" in reason]


def test_torch_counts_gpus_without_cuda_unless_the_user_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a fresh interpreter that replaces an unclean process becomes unclean by the same imports."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    monkeypatch.delenv(name, raising=False)
    spare_cuda()
    assert os.environ[name] == "1"
    monkeypatch.setenv(name, "0")
    spare_cuda()
    assert os.environ[name] == "0"


# Prints the reasons before and while a thread exists that only the interpreter's lowest layer knows.
_NATIVE_THREAD = """
import _thread
from dist_testing.core.launch.clean import unclean_reasons
started, release = _thread.allocate_lock(), _thread.allocate_lock()
started.acquire(), release.acquire()
print(unclean_reasons())
_thread.start_new_thread(lambda: (started.release(), release.acquire()), ())
started.acquire()
print(unclean_reasons())
release.release()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list native threads")
def test_a_thread_that_python_does_not_know_is_counted() -> None:
    """If this fails, the thread pool that a native library starts at import goes unnoticed."""
    # A separate process, because threads of earlier tests may still be ending in this one.
    command = [sys.executable, "-c", _NATIVE_THREAD]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    before, during = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.splitlines()
    assert before == "[]"
    assert during.startswith("['1 thread(s) of native code")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list what is mapped")
@pytest.mark.parametrize("is_deleted", [False, True])
def test_openblas_is_found_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool) -> None:
    """If this fails, a virtual environment in `My Projects`, or one just upgraded, stops every test."""
    path = tmp_path / "my venv" / "libopenblas.so"
    path.parent.mkdir()
    path.write_bytes(b"no library")
    asked: list[str] = []

    def library(name: str, mode: int) -> ModuleType:
        asked.append(name)
        return ModuleType("a library without a pool")

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        if is_deleted:
            path.unlink()
        before = unclean_reasons()
        with monkeypatch.context() as patch:
            patch.setattr(ctypes, "CDLL", library)
            unclean_reasons()
    assert str(path) in asked
    assert before == unclean_reasons(), "a library that cannot be loaded has no threads"


_OPENBLAS_SYMBOLS = (
    "openblas_get_num_threads",
    "openblas_get_num_threads64_",
    "scipy_openblas_get_num_threads64_",
    "scipy_openblas_get_num_threads",
)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list what is mapped")
@pytest.mark.parametrize(
    ("symbols", "pool"), [*(((symbol,), 4) for symbol in _OPENBLAS_SYMBOLS), (_OPENBLAS_SYMBOLS, 4), ((), 0)]
)
def test_only_the_threads_of_openblas_are_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, symbols: tuple[str, ...], pool: int
) -> None:
    """If this fails, numpy makes every process unclean, or its pool hides the threads of another library."""
    path = tmp_path / "libopenblas.so"
    path.write_bytes(b"no library")
    library = ModuleType("openblas")
    for symbol in symbols:
        setattr(library, symbol, lambda: 5)
    python_threads = threading.active_count()
    listed = os.listdir

    def reasons(native: int) -> list[str]:
        def listdir(folder: str) -> list[str]:
            return ["a thread"] * (python_threads + native) if folder == "/proc/self/task" else listed(folder)

        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", listdir)
            patch.setattr(ctypes, "CDLL", lambda name, mode: library if name == str(path) else ModuleType("other"))
            return [reason for reason in unclean_reasons() if "native code" in reason]

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert reasons(pool) == []
        assert [reason.partition(" are")[0] for reason in reasons(pool + 1)] == ["1 thread(s) of native code"]
