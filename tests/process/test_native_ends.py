"""Ranks that native code ends: by an exception that nothing catches, by the C library, by a fault, by a sanitizer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.children import run_cases, run_pytest, write_file
from tests.support.starter import Starter

_SOURCE = """
#include <cstdlib>
#include <stdexcept>
extern "C" {
void throws_for_mine() { throw std::runtime_error("planted in C++"); }
void throws_in_mine() noexcept { throws_for_mine(); std::abort(); }
void frees_twice_in_mine() { char* p = (char*)std::malloc(64); std::free(p); std::free(p); }
void writes_to_null_in_mine() { *(volatile int*)nullptr = 1; }
int reads_after_free_in_mine() {
    volatile char* p = (volatile char*)std::malloc(64);
    std::free((void*)p);
    return p[3];
}
}
"""
_CASES = """
    import ctypes
    import threading
    import pytest
    import torch

    D = pytest.mark.distributed(world_size=2, init=False)

    def call(world, name):
        if world.rank == 1:
            getattr(ctypes.CDLL("./libmine.so"), name)()

    @D
    def test_throws(world): call(world, "throws_in_mine")

    @D
    def test_frees(world): call(world, "frees_twice_in_mine")

    @D
    def test_faults(world): call(world, "writes_to_null_in_mine")

    # As a watchdog of a backend does.
    @D
    def test_ends_in_a_thread(world):
        thread = threading.Thread(target=call, args=(world, "frees_twice_in_mine"))
        thread.start()
        thread.join()

    # Ranks that are fresh interpreters import torch with their own environment.
    @pytest.mark.distributed(world_size=2, init=False, isolation="spawn")
    def test_error_of_torch(world):
        if world.rank == 1:
            torch.ones(2) + torch.ones(3)

    @D
    def test_passes(world): pass
    """


def _build(folder: Path, *options: str) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (folder / "mine.cpp").write_text(_SOURCE)
    command = [compiler, "-shared", "-fPIC", "-g", "-O0", "-w", *options, "mine.cpp", "-o", "libmine.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)


def test_native_ends_are_explained_and_located(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a user of native code sees a signal's name, and neither the reason nor the place."""
    _build(tmp_path)
    ended = run_cases(starter, tmp_path, _CASES)
    names = ("throws", "frees", "faults", "ends_in_a_thread", "error_of_torch")
    assert ended.outcomes() == {**{f"test_{name}": "FAILED" for name in names}, "test_passes": "PASSED"}, ended.log
    reports = ended.failures()
    thrown, freed, faulted, in_thread, of_torch = (reports[f"test_{name}"] for name in names)
    assert "rank 1 was killed by SIGABRT (6) in call" in thrown
    assert "terminate called after throwing an instance of 'std::runtime_error': planted in C++. Its last" in thrown
    assert "  throws_in_mine in libmine.so" in thrown
    assert "Native code ended the process: free(): double free detected in tcache 2." in freed
    assert "  frees_twice_in_mine in libmine.so" in freed
    native = in_thread.partition("Native stack of the thread that got SIGABRT")[2].partition("left out)")[0]
    assert "  frees_twice_in_mine in libmine.so" in native
    assert "rank 1 was killed by SIGSEGV (11) in call" in faulted
    assert "  writes_to_null_in_mine in libmine.so" in faulted
    for crash, name in ((thrown, "throws"), (freed, "frees"), (faulted, "faults")):
        # The Python stack, below the native one.
        assert f"in test_{name}" in crash.partition(" in libmine.so")[2]
        assert "FatalSignalHandler" not in crash
    assert "The size of tensor a (2) must match the size of tensor b (3)" in of_torch
    assert "C++ CapturedTraceback:" in of_torch


_DAMAGED_HEAP = """
    import ctypes
    import threading
    import pytest

    @pytest.mark.distributed(world_size=2, init=False, timeout=6)
    def test_damaged_heap(world):
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.malloc_usable_size.restype = ctypes.c_size_t
        if world.rank == 1:
            # Another thread of the rank goes on.
            threading.Thread(target=lambda: [libc.usleep(500) for _ in iter(int, 1)], daemon=True).start()
            # The block behind the last one is the free rest of the heap. Its size is overwritten.
            last = max(libc.malloc(ctypes.c_size_t(0x18008)) for _ in range(400))
            end = last + libc.malloc_usable_size(ctypes.c_void_p(last))
            ctypes.memset(ctypes.c_void_p(end), 0xFF, 8)
            for _ in range(400):
                libc.malloc(ctypes.c_size_t(0x1F008))
"""


def test_a_handler_that_cannot_end_is_named_at_the_deadline(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the report of a damaged heap shows a rank that hangs somewhere, and not that it has crashed.

    The allocator is locked when the C library finds the damage, and torch's handler of the signal needs memory.
    """
    ended = run_cases(starter, tmp_path, _DAMAGED_HEAP)
    assert ended.outcomes() == {"test_damaged_heap": "FAILED"}, ended.log
    assert "at the deadline, probably blocked in the handler of SIGABRT (6)" in ended.log, ended.log
    assert "malloc(): corrupted top size" in ended.log
    assert "in test_damaged_heap" in ended.log


_LEAK_REPORT = """
import ctypes

# As nanobind does for its report of leaks. This one is of the C library, and begins with "Arena 0".
report = ctypes.cast(ctypes.CDLL(None).malloc_stats, ctypes.c_void_p)
assert ctypes.pythonapi.Py_AtExit(report) == 0
"""
_REPORTS = """
    import pytest

    @pytest.mark.parametrize("where", [pytest.param(name, marks=pytest.mark.distributed(
        world_size=2, init=False, isolation=name)) for name in ("fork", "spawn", "pool")])
    def test_reports(world, where):
        import leak_report

        print(f"ran in {where}")
"""


def test_reports_at_the_end_of_an_interpreter_are_not_in_the_log(starter: Starter, tmp_path: Path) -> None:
    """If this fails, an extension such as Triton's fills the log of each rank that has passed with its leak report."""
    write_file(tmp_path, "leak_report.py", _LEAK_REPORT)
    plain = [sys.executable, "leak_report.py"]
    assert "Arena 0" in subprocess.run(plain, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    ended = run_cases(starter, tmp_path, _REPORTS, "-s")
    assert set(ended.outcomes().values()) == {"PASSED"}, ended.log
    for name in ("fork", "spawn", "pool"):
        assert ended.log.count(f"ran in {name}") == 2, ended.log
    assert "Arena 0" not in ended.log


def test_report_of_a_sanitizer_is_the_reason(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a build with AddressSanitizer ends a rank with code 1 and no explanation."""
    _build(tmp_path, "-fsanitize=address")
    library = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    path = library.stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip("the compiler has no AddressSanitizer")
    source = """
    import ctypes
    import pytest

    @pytest.mark.distributed(world_size=2, init=False)
    def test_reads(world):
        if world.rank == 1:
            ctypes.CDLL("./libmine.so").reads_after_free_in_mine()
    """
    # Python does not give back what it allocates; and torch's memory would be checked, too.
    options = {"ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0", "LD_PRELOAD": path}
    write_file(tmp_path, "test_cases.py", source)
    # A library is loaded first in a new program only.
    ended = run_pytest(starter, tmp_path, "-rA", "test_cases.py", env=options, fresh=True)
    assert ended.outcomes() == {"test_reads": "FAILED"}, ended.log
    assert "rank 1 exited with code 1 in call" in ended.log
    assert "Native code ended the process: AddressSanitizer: heap-use-after-free" in ended.log
    assert "reads_after_free_in_mine" in ended.log
