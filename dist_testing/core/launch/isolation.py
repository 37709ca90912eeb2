"""Declares the isolations: how the ranks of a case are made, and what each way can do.

All other code asks an `Isolation` for a fact, such as `in_process`. Add-ons declare further isolations, and a
conftest.py can register one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from dist_testing.core.ground.add_ons import add_ons, blaming
from dist_testing.core.ground.backends import Backend, backends, default_backend
from dist_testing.core.ground.error_text import did_you_mean
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import LOOPBACK
from dist_testing.core.launch.fork import ForkServerLauncher
from dist_testing.core.launch.launcher import Launcher, RunContext


class Reuse(enum.Enum):
    """What stays alive after a passed case for the next case of its class or module."""

    NOTHING = enum.auto()
    RANKS = enum.auto()  # a worker pool: the ranks, and their process group
    PROCESS = enum.auto()  # the process whose threads are the ranks; ranks and groups are new for each case


@dataclass(frozen=True, slots=True)
class Isolation:
    """A way to make the ranks of a case.

    Attributes:
        name: The user's name for it, as in `isolation = "fork"`.
        make_launcher: Makes the launcher of a run. Isolations with the same function share one launcher.
        in_process_of: Name of the add-on whose parts run all ranks as threads of one process; "" if each rank is a
            process. Such ranks share an environment and an exit, their store is in memory, and their backend must
            connect threads.
        fresh_interpreter: Each rank imports the tests again.
        reuse: What stays alive for the next case of the class or module.
        can_debug: A debugger on one rank can have the terminal.
        has_exit_codes: Each rank has its own exit code, which a test can expect.
        starts_ranks: This library starts the processes of the ranks.
        host: Address at which the store of a world listens.
    """

    name: str
    make_launcher: Callable[[RunContext], Launcher]
    in_process_of: str = ""
    fresh_interpreter: bool = False
    reuse: Reuse = Reuse.NOTHING
    can_debug: bool = True
    has_exit_codes: bool = True
    starts_ranks: bool = True
    host: str = LOOPBACK

    @property
    def in_process(self) -> bool:
        """Whether all ranks are threads of one process."""
        return bool(self.in_process_of)

    @property
    def forks_each_case(self) -> bool:
        """Whether each case has ranks that are forked and go on in the memory of the fork server."""
        return self.reuse is Reuse.NOTHING and not self.fresh_interpreter

    def fits(self, backend: Backend) -> bool:
        """Return whether the backend can connect such ranks."""
        return self.in_process == backend.in_process


_registered: dict[str, Isolation] = {}


def register_isolation(isolation: Isolation) -> Isolation:
    """Make an isolation known by its name, for markers, classes and `--dist-isolation`, and return it.

    Raises:
        UsageError: If another isolation has the name.
    """
    if _registered.setdefault(isolation.name, isolation) != isolation:
        raise UsageError(
            f"Isolation {isolation.name!r} is registered twice.\n"
            "Two isolations have the same name, so a test cannot choose one of them.\n"
            "Rename one of them."
        )
    return isolation


FORK = register_isolation(Isolation("fork", ForkServerLauncher))
SPAWN = register_isolation(Isolation("spawn", ForkServerLauncher, fresh_interpreter=True))
POOL = register_isolation(Isolation("pool", ForkServerLauncher, reuse=Reuse.RANKS))


def isolation_names() -> tuple[str, ...]:
    """Return the names that a user can choose from."""
    return tuple(dict.fromkeys([*_registered, *(name for add_on in add_ons() for name in add_on.isolations)]))


def isolation_named(name: str) -> Isolation:
    """Return the isolation with this name.

    Raises:
        UsageError: If there is none.
    """
    if (found := _registered.get(name)) is not None:
        return found
    for add_on in add_ons():
        if name in add_on.isolations:
            with blaming(add_on.name, f"the import of its isolation {name!r}"):
                declared: Isolation = add_on.load_at(add_on.isolations[name])
                if declared.name != name:
                    raise ValueError(f"it has the name {declared.name!r}")
                return register_isolation(declared)
    raise UsageError(
        f"Isolation {name!r} does not exist.\n"
        f"The isolations are {', '.join(isolation_names())}; add-ons of other packages can bring more.\n"
        f"{did_you_mean(name, isolation_names(), 'Use one of them, or install the package that brings it.')}"
    )


def default_isolation(backend: Backend) -> Isolation:
    """Return the isolation of tests that do not choose one.

    Raises:
        UsageError: If the backend connects threads, and no isolation makes such ranks.
    """
    if FORK.fits(backend):
        return FORK
    for name in isolation_names():
        if (isolation := isolation_named(name)).fits(backend):
            return isolation
    raise UsageError(
        f"Backend {backend.name!r} connects threads of one process, and no isolation makes such ranks.\n"
        f"The isolations are {', '.join(isolation_names())}; add-ons of other packages can bring more.\n"
        "Install the package that brings it, or use another backend."
    )


def check_isolation(name: str, backend: Backend, isolation: Isolation) -> None:
    """Refuse ranks that the backend cannot connect. `name` is the subject of the error text, such as the case.

    Raises:
        UsageError: If the two do not fit.
    """
    if isolation.fits(backend):
        return
    if isolation.in_process:
        raise UsageError(
            f'{name}: isolation "{isolation.name}" with backend "{backend.name}".\n'
            "Ranks that are threads share one process: one address, one device, one environment. This backend connects "
            "processes.\n"
            f"Use a backend of threads ({', '.join(name for name, one in backends().items() if one.in_process)}), "
            f'or isolation "{default_isolation(backend).name}".'
        )
    raise UsageError(
        f'{name}: isolation "{isolation.name}" with backend "{backend.name}".\n'
        "This backend connects threads of one process, and the isolation makes processes.\n"
        f'Use isolation "{default_isolation(backend).name}", or another backend, such as "{default_backend().name}".'
    )
