"""Finds the changes that a case leaves behind in its process, where the next case would see them."""

from __future__ import annotations

import fcntl
import fnmatch
import gc
import logging
import os
import random
import re
import socket
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Any

from dist_testing.core.ground.case import ALL_ENV, ENV_PREFIX, CaseBody
from dist_testing.core.ground.errors import StateLeakError
from dist_testing.core.ground.procfs import open_descriptors, open_files
from dist_testing.core.process.lifetime import current_umask
from dist_testing.core.rank.children import LOOKING, child_processes, children_but, helpers_of_multiprocessing
from dist_testing.core.rank.hooks import RankService, ServedRank

# torch sets them at the first call of some functions that have nothing to do with them, above all in torch.compile.
# pytest sets its own before each test and removes it after, also the value of a pytest that has started this one.
_SET_BY_OTHERS = frozenset(
    {
        "DISABLE_CUPTI_LAZY_REINIT",
        "PYTEST_CURRENT_TEST",
        "TEARDOWN_CUPTI",
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCH_WARM_POOL",
        "TRITON_CACHE_DIR",
        "TRITON_LIBDEVICE_PATH",
        "TRITON_PTXAS_PATH",
        "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
    }
)
# Threads, processes and pipes of correct code end a moment after the test: those of a data loader, for example.
# Seconds until they count as left behind, and between two looks.
_LEAVING_S = 2.0
_LOOK_S = 0.01
_GROUPS = "process groups"
# Importing setuptools, which torch's extension builder does, adds this folder to sys.path and leaves it there.
_ADDED_BY_SETUPTOOLS = os.path.join("setuptools", "_vendor")
# Nodes that a driver opens for a process that computes on a GPU, and keeps open.
# NCCL opens segments of shared memory for the ranks that a rank talks to.
_OF_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/shm/nccl-")
# Where the manager of torch's `file_system` sharing listens.
_MANAGER = re.compile(r"/torch-shm-dir-[^/]+/manager\.sock$")


class PoolState(RankService):
    """Fails a case that leaves changes behind in ranks that run the next case, too."""

    def __init__(self, rank: ServedRank) -> None:
        self._are_threads = bool(rank.start.request.in_process_of)
        self._before: RankState | None = None

    def case_begin(self, body: CaseBody) -> None:
        """Note the state before the first case."""
        self._before = self._before or RankState()

    def case_end(self, body: CaseBody) -> None:
        """Compare, which raises StateLeakError if the case has changed something; reset the random generators."""
        assert self._before is not None
        if self._are_threads:
            self._before.verify(are_threads=True, may_change=body.may_change)
        elif not body.keeps_state:
            self._before.verify(keeps_groups=body.keeps_groups, may_change=body.may_change)
        self._before.rewind_generators()


class RankState:
    """The state of a rank between two cases, as it is when this is made.

    The comparison leaves out random generators, which are reset instead: drawing a number is no leak. It leaves out
    native threads and descriptors of the kernel's own objects, because torch makes pools of both at the first use, and
    the helpers of multiprocessing, which stay after their first use. Once the process uses CUDA, it also leaves out
    sockets, pipes, the nodes of GPUs and NCCL's shared memory: CUDA and NCCL open and close some at any call.
    """

    def __init__(self) -> None:
        with LOOKING:
            self.files = open_files()
        self.env = _environment()
        self.settings = _settings()
        self.threads = frozenset(thread.ident for thread in threading.enumerate())
        self.children = child_processes()
        self._rewinds = [partial(random.setstate, random.getstate())]
        if (numpy := sys.modules.get("numpy")) is not None:
            self._rewinds.append(partial(numpy.random.set_state, numpy.random.get_state()))
        if (torch := sys.modules.get("torch")) is not None:
            self._rewinds.append(partial(torch.set_rng_state, torch.get_rng_state()))

    def verify(
        self, *, keeps_groups: bool = False, are_threads: bool = False, may_change: Collection[str] = ()
    ) -> None:
        """Compare the current state with this one. What can end by itself has two seconds to do so.

        `may_change` is what a case may leave changed, by the names of `core.ground.case.KEEPABLE`; variables as
        `env:NAME`, where `NAME` may be a pattern. The text of a StateLeakError lists all other changes.
        """
        until_s = time.monotonic() + _LEAVING_S
        has_collected = False
        while True:
            # Not if it has destroyed them all: without the default group, the next case could make no call.
            has_kept_groups = keeps_groups and 0 < _count_groups() != self.settings["torch"].get(_GROUPS)
            running, can_end = self._running(has_kept_groups, may_change)
            if not running or time.monotonic() >= until_s or (has_collected and not can_end):
                break
            # Files may belong to objects that only refer to each other, such as a pool of processes that has ended.
            gc.collect()
            if has_collected:
                time.sleep(_LOOK_S)
            has_collected = True
        changes = self._changes(has_kept_groups, may_change) + running
        if changes:
            ranks, way_out = (
                ("are threads of one process", "put the test into a class or module of its own")
                if are_threads
                else ("belong to a worker pool", "use the default isolation, which gives each test new ranks")
            )
            raise StateLeakError(
                f"changed and not undone: {'; '.join(changes)}.\n"
                f"The test itself has passed, but its ranks {ranks}, which runs the next test, too."
                f"{' Any of them may have done it.' if are_threads else ''}\n"
                f"Undo the change in the test or a fixture, or {way_out}."
            )

    def rewind_generators(self) -> None:
        """Reset the random generators, so that each case gets the same numbers as the first one."""
        for rewind in self._rewinds:
            rewind()

    def _changes(self, has_kept_groups: bool, may_change: Collection[str]) -> list[str]:
        """Return the changes that stay as they are."""
        changes = []
        env = _environment()
        patterns = [kept.removeprefix(ENV_PREFIX) for kept in may_change if kept.startswith(ENV_PREFIX)]
        patterns += ["*"] if ALL_ENV in may_change else []
        differ = env.items() ^ self.env.items() if env != self.env else ()
        names = {os.fsdecode(name) for name, _ in differ} - _SET_BY_OTHERS
        if names := {name for name in names if not any(fnmatch.fnmatchcase(name, p) for p in patterns)}:
            changes.append(f"environment variable(s) {', '.join(sorted(names))}")
        for kind, now in _settings().items():
            before = self.settings[kind]
            if now == before:
                continue
            changes += [
                _described(name, before.get(name), now.get(name))
                for name in sorted(before.keys() | now.keys())
                if before.get(name) != now.get(name)
                and kind not in may_change
                and not (has_kept_groups and name == _GROUPS)
            ]
        return changes

    def _running(self, has_kept_groups: bool, may_change: Collection[str]) -> tuple[list[str], bool]:
        """Return the changes of descriptors, threads and processes, and whether they can still end by themselves."""
        helpers, pipes = helpers_of_multiprocessing()
        allowed: tuple[str, ...] = ("anon_inode:",)
        if uses_cuda := _uses_cuda():
            allowed += _OF_GPUS
        # Sockets and pipes of a process group, and those of CUDA and NCCL, look like all others.
        if has_kept_groups or uses_cuda:
            allowed += ("socket:", "pipe:")
        with LOOKING:
            now = open_descriptors()
            new = now - self.files.keys() - pipes
            named = {fd: name for fd, name in open_files().items() if fd in new} if new else {}
            opened = [name for fd, name in named.items() if not name.startswith(allowed) and not _stays(fd, name)]
        closed = [
            f"{fd} ({name})"
            for fd, name in self.files.items()
            if fd not in now and not (uses_cuda and name.startswith(allowed))
        ]
        known = self.threads | _threads_of_torch()
        found: tuple[tuple[str, str, Collection[Any]], ...] = (
            ("files", "open file(s)", opened),
            ("files", "closed descriptor(s)", closed),
            ("threads", "running thread(s)", [one.name for one in threading.enumerate() if one.ident not in known]),
            ("processes", "running process(es)", children_but(helpers) - self.children),
        )
        left = [row for row in found if row[2] and row[0] not in may_change]
        can_end = any(
            kind != "files" or any(str(name).startswith("pipe:") for name in names) for kind, _, names in left
        )
        return [f"{what} {_counted(names)}" for _, what, names in left], can_end


def _counted(names: Collection[Any]) -> str:
    """Return the names in order, each once: RPC, for one, leaves 20 files of the same name."""
    counts = Counter(map(str, sorted(names)))
    return ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in counts.items())


def _threads_of_torch() -> frozenset[int | None]:
    """Return the threads in which torch.compile runs compilers; torch keeps them once they are needed."""
    compiler = getattr(sys.modules.get("torch._inductor.async_compile"), "AsyncCompile", None)
    pool = getattr(compiler, "pool", None)
    # The call would make the pool if there is none.
    if pool is None or not hasattr(pool, "cache_info") or not pool.cache_info().currsize:
        return frozenset()
    return frozenset(thread.ident for thread in pool()._threads)


def _uses_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _stays(fd: int, name: str) -> bool:
    """Return whether it is a connection of torch's `file_system` sharing, or libuv's lock, which stay once needed."""
    try:
        if name.startswith("pipe:"):
            # torch's TCPStore serves by libuv. Its lock for the whole process is a pipe in which one byte waits.
            return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder) == 1
        if not name.startswith("socket:"):
            return False
        with socket.socket(fileno=os.dup(fd)) as copy:
            return _MANAGER.search(str(copy.getpeername())) is not None
    except OSError:
        return False


def _environment() -> dict[bytes, bytes]:
    # The mapping itself makes a string of each name and value: as slow as the rest of a comparison.
    data: dict[bytes, bytes] = vars(os.environ)["_data"]
    return data.copy()


def _settings() -> dict[str, dict[str, Any]]:
    """Return the settings of the process: by the name of their kind, each by the name that a report uses."""
    settings: dict[str, dict[str, Any]] = {
        "cwd": {"working directory": os.getcwd()},
        "umask": {"umask": f"{current_umask():#o}"},
        "sys.path": {"sys.path": [entry for entry in sys.path if not str(entry).endswith(_ADDED_BY_SETUPTOOLS)]},
        "logging": {"logging.disable": logging.root.manager.disable},
        "torch": {},
    }
    if (torch := sys.modules.get("torch")) is not None:
        settings["torch"] = {
            "default dtype": torch.get_default_dtype(),
            "default device": torch.get_default_device(),
            "gradient mode": torch.is_grad_enabled(),
            "anomaly detection": torch.is_anomaly_enabled(),
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "float32 matmul precision": torch.get_float32_matmul_precision(),
            "intra-op threads": torch.get_num_threads(),
            _GROUPS: _count_groups(),
        }
    return settings


def _described(name: str, before: object, now: object) -> str:
    if isinstance(before, list) and isinstance(now, list):
        # Lists of folders are long.
        new, gone = [
            [repr(entry) for entry in one if entry not in other] for one, other in ((now, before), (before, now))
        ]
        how = [f"{word} {', '.join(entries)}" for word, entries in (("with", new), ("without", gone)) if entries]
        return f"{name}, now {' and '.join(how) or 'in another order'}"
    return f"{name}, from {before} to {now}"


def _count_groups() -> int:
    """Return the number of process groups; the public count does not decrease when a test destroys its groups."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return 0
    return len(torch.distributed.distributed_c10d._world.pg_map)
