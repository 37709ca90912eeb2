"""Finds the changes that a case leaves behind in its process, where the next case would see them."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from dataclasses import dataclass
from typing import Any

from dist_testing.errors import StateLeakError

__all__ = ["RankState", "child_processes"]

# torch sets this variable at the first call of some unrelated functions.
_SET_BY_TORCH = frozenset({"TORCHINDUCTOR_CACHE_DIR"})
_GROUPS = "process groups"
# Modules that keep a helper process: the name of the module, of its object, and of the object's two attributes for the
# helper's pid and for the pipe whose closing ends the helper.
_HELPERS = (
    ("multiprocessing.resource_tracker", "_resource_tracker", "_pid", "_fd"),
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid", "_forkserver_alive_fd"),
)


@dataclass(frozen=True, slots=True)
class RankState:
    """The state of a rank between two cases.

    The comparison leaves out random generators, which are reset instead: drawing a number is no leak. It leaves out
    native threads and descriptors of the kernel's own objects, because torch makes pools of both at the first use, and
    the helpers of multiprocessing, which stay after their first use.
    """

    env: dict[str, str]
    cwd: str
    descriptors: frozenset[int]
    threads: frozenset[int]
    children: frozenset[int]
    torch: dict[str, Any]
    generators: dict[str, Any]

    @classmethod
    def now(cls) -> RankState:
        """Return the current state."""
        return cls(
            dict(os.environ),
            os.getcwd(),
            _descriptors(),
            frozenset(thread.ident or 0 for thread in threading.enumerate()),
            _children(_helpers()[0]),
            _torch_state(),
            _generators(),
        )

    def verify(self, *, keeps_groups: bool = False, are_threads: bool = False) -> None:
        """Compare the current state with this one.

        Args:
            keeps_groups: Whether a case may leave process groups to the next one.
            are_threads: Whether the ranks are threads of this process.

        Raises:
            StateLeakError: If a case has changed something. The text lists all changes.
        """
        if not (changes := self._changes(keeps_groups)):
            return
        if are_threads:
            cause = "its ranks are threads of one process, which runs the next test, too. Any of them may have done it."
            way_out = "put the test into a class or module of its own"
        else:
            cause = "its ranks belong to a worker pool, which runs the next test, too."
            way_out = "use the default isolation, which gives each test new ranks"
        raise StateLeakError(
            f"changed and not undone: {'; '.join(changes)}.\n"
            f"The test itself has passed, but {cause}\n"
            f"Undo the change in the test or a fixture, or {way_out}."
        )

    def rewind_generators(self) -> None:
        """Reset the random generators, so that each case gets the same numbers as the first one."""
        random.setstate(self.generators["random"])
        if "numpy" in self.generators:
            sys.modules["numpy"].random.set_state(self.generators["numpy"])
        if "torch" in self.generators:
            sys.modules["torch"].set_rng_state(self.generators["torch"])

    def _changes(self, keeps_groups: bool) -> list[str]:
        changes = []
        env = dict(os.environ)
        if env != self.env:
            names = {name for name in env.keys() | self.env.keys() if env.get(name) != self.env.get(name)}
            if names := names - _SET_BY_TORCH:
                changes.append(f"environment variable(s) {', '.join(sorted(names))}")
        if (cwd := os.getcwd()) != self.cwd:
            changes.append(f"working directory, now {cwd}")
        descriptors = _descriptors()
        now = _torch_state()
        has_kept_groups = keeps_groups and now.get(_GROUPS) != self.torch.get(_GROUPS)
        helpers, pipes = _helpers()
        names_opened = [name for fd in descriptors - self.descriptors - pipes if (name := _descriptor_name(fd))]
        # Sockets and pipes of a process group look like all others.
        allowed = ("socket:", "pipe:") if has_kept_groups else ()
        if opened := [name for name in names_opened if not name.startswith(allowed)]:
            changes.append(f"open file(s) {', '.join(sorted(opened))}")
        if closed := self.descriptors - descriptors:
            changes.append(f"closed descriptor(s) {', '.join(map(str, sorted(closed)))}")
        started = [thread.name for thread in threading.enumerate() if thread.ident not in self.threads]
        if started:
            changes.append(f"running thread(s) {', '.join(sorted(started))}")
        if left := _children(helpers) - self.children:
            changes.append(f"running process(es) {', '.join(map(str, sorted(left)))}")
        changes += [
            f"{name}, from {self.torch.get(name)} to {now.get(name)}"
            for name in sorted(self.torch.keys() | now.keys())
            if self.torch.get(name) != now.get(name) and not (has_kept_groups and name == _GROUPS)
        ]
        return changes


def _descriptors() -> frozenset[int]:
    # The list includes the descriptor that read it, which is closed by now.
    return frozenset(fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _descriptor_name(fd: int) -> str | None:
    """Return the name of a descriptor's file; None if it is no leak."""
    with contextlib.suppress(OSError):
        name = os.readlink(f"/proc/self/fd/{fd}")
        if not name.startswith("anon_inode:"):
            return name
    return None


def child_processes() -> frozenset[int]:
    """Return the processes that this one has started, apart from the helpers of multiprocessing."""
    return _children(_helpers()[0])


def _children(helpers: frozenset[int]) -> frozenset[int]:
    """Return the pids of the processes that this process or one of its helpers has started."""
    try:
        # In the usual case, without children, one call is faster than a file per thread.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()
    children = _children_of(os.getpid())
    return (children - helpers).union(*map(_children_of, children & helpers))


def _children_of(pid: int) -> frozenset[int]:
    children: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as listed:
                children.update(map(int, listed.read().split()))
    return frozenset(children)


def _helpers() -> tuple[frozenset[int], frozenset[int]]:
    """Return the pids of multiprocessing's helpers of this process, and the descriptors of the pipes to them."""
    pids, descriptors = set[int](), set[int]()
    for module, name, pid, descriptor in _HELPERS:
        # The module tells the pid, because a helper that was just started has no command line yet.
        helper = getattr(sys.modules.get(module), name, None)
        for attribute, numbers in ((pid, pids), (descriptor, descriptors)):
            if (number := getattr(helper, attribute, None)) is not None:
                numbers.add(number)
    return frozenset(pids), frozenset(descriptors)


def _torch_state() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    dist = torch.distributed
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradient mode": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "intra-op threads": torch.get_num_threads(),
        # The public count does not decrease when a test destroys its groups.
        _GROUPS: len(dist.distributed_c10d._world.pg_map) if dist.is_available() else 0,
    }


def _generators() -> dict[str, Any]:
    generators: dict[str, Any] = {"random": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        generators["numpy"] = numpy.random.get_state()
    if (torch := sys.modules.get("torch")) is not None:
        generators["torch"] = torch.get_rng_state()
    return generators
