"""A test class whose tests share one world and its process group: the logic of `MultiProcContinuousTest`."""

from __future__ import annotations

import datetime
import os
import unittest
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from dist_testing.backends import all_declared, parts_of
from dist_testing.doors.cases.world import WorldCase, default_world_size
from dist_testing.doors.rank_unittest import RankPipe, seed_generators
from dist_testing.doors.session import current_session
from dist_testing.errors import UsageError
from dist_testing.gpus.devices import gpus_present, visible_gpus
from dist_testing.gpus.vendors import NVIDIA, vendor_named
from dist_testing.runner.needs import missing_backend
from dist_testing.skips import TEST_SKIPS

__all__ = ["ContinuousCase"]

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# torch's mark for a class that does not say how many ranks it wants.
_UNSET = -2
# In the world's folder, which all ranks see, and which is new for every world.
_RENDEZVOUS = "rendezvous"


class ContinuousCase(WorldCase):
    """All test methods run on the same ranks, in one process group that is made once.

    The group is `pg`, and the default group. A rank that is not as clean after a test as before it, fails that test.
    After anything but a pass the next test gets fresh ranks and a new group, so one failure costs one test.

    `setUp` and `tearDown` run in the runner, `setUpRank` and `tearDownRank` on every rank, around each test.

    In a process that torchrun or the like has started (`run_rank`), the process is a rank itself: the class makes its
    group there, and runs its tests in place; `setUp` and `tearDown` then run there, too.

    Attributes:
        world_size: Ranks; a property will do, too. If unset: the GPUs, if the device is one; else the target's size,
            else 4.
        rank: This rank; `MAIN_PROCESS_RANK` in the runner.
        rdvz_file: On a rank, the file that the group was made with; None if it was made from the environment.
        timeout: Limit of the group's operations.
        poison_pill: Set it, and the tests after that are skipped. The library never does.
        pg: On a rank, the group.
        keeps_state: Whether a test may leave other things than groups to the next one, which then finds them.
    """

    isolation = "pool"
    world_size: Any = _UNSET
    rank: Any = _UNSET
    rdvz_file: ClassVar[str | None] = None
    timeout: ClassVar[datetime.timedelta] = datetime.timedelta(seconds=120)
    poison_pill: ClassVar[bool] = False
    pg: ClassVar[Any] = None
    keeps_state: ClassVar[bool] = False
    # Whether this process, which is not the library's, is a rank.
    _is_joined: ClassVar[bool] = False

    def __init__(self, methodName: str = "runTest", method_name: str | None = None) -> None:
        super().__init__(methodName, method_name)
        if self._is_joined:
            self.rank = type(self).rank

    @classmethod
    def backend_str(cls) -> str | None:
        """Backend of the group; None leaves it to torch, which takes one per kind of device."""
        return None

    @classmethod
    def device_type(cls) -> str:
        """What the tests run on; override it, also by a property or a text. Default: the accelerator, else the CPU."""
        import torch

        found = torch.accelerator.current_accelerator()
        return found.type if found is not None else "cpu"

    @classmethod
    def opts(cls, high_priority_stream: bool = False) -> Any:
        """Options of the backend for the group; None for its defaults."""
        del high_priority_stream
        return None

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str | None) -> None:
        """On a rank: make the group. If it calls `sys.exit` with the code of a skip, every test is skipped.

        Args:
            rank: This rank.
            world_size: Ranks in the world.
            rdvz_file: For a FileStore; None to take the rendezvous from the environment.
        """
        import torch.distributed as dist

        store = None
        if rdvz_file is not None:
            # As torchrun sets it; torch takes the device of a mesh from it.
            os.environ["LOCAL_RANK"] = str(rank)
            store = dist.FileStore(rdvz_file, world_size)  # type: ignore[attr-defined]  # public, but not in __all__
        dist.init_process_group(
            backend=_called(cls.backend_str),
            world_size=world_size,
            rank=rank,
            store=store,
            pg_options=cls.opts(),
            timeout=cls.timeout,
        )
        cls.pg = dist.group.WORLD

    @classmethod
    def run_rank(cls, rank: int, world_size: int, rdvz_file: str | None = None) -> NoReturn:
        """Be a rank: run the tests of this class in this process, and end it with unittest's exit code.

        For ranks that are started by others, torchrun or `torch.multiprocessing.spawn`. All of them must run the same
        tests, so name them on the command line, if at all.

        Args:
            rank: This rank.
            world_size: Ranks in the world.
            rdvz_file: A file that all ranks see; None to take the rendezvous from the environment, as torchrun sets it.

        Raises:
            UsageError: If there is no such rank.
        """
        if not 0 <= rank < world_size:
            raise UsageError(
                f"{cls.__qualname__}.run_rank: rank = {rank} in a world of {world_size}.\n"
                "Ranks are numbers from 0, below world_size.\n"
                "Pass RANK and WORLD_SIZE as the launcher sets them."
            )
        cls.rank, cls.world_size, cls.rdvz_file = rank, world_size, rdvz_file
        cls._is_joined = True
        program = unittest.main(testLoader=_LoaderOf(cls), exit=False)
        raise SystemExit(not program.result.wasSuccessful())

    @classmethod
    def setUpClass(cls) -> None:
        """On a rank that joined: make the group. In the runner the ranks are asked for by the first test."""
        super().setUpClass()
        if cls._is_joined:
            cls._init_pg(cls.rank, cls.world_size, cls.rdvz_file)

    @classmethod
    def _let_ranks_go(cls) -> str:
        if not cls._is_joined:
            return super()._let_ranks_go()
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
        return ""

    def setUp(self) -> None:
        """In the runner, before the ranks are asked for."""
        super().setUp()
        if self.poison_pill:
            self.skipTest("the class's poison_pill is set")
        if self._is_joined:
            seed_generators()
            self.setUpRank()
            self.addCleanup(self.tearDownRank)

    def _join_processes(self, fn: Callable[[], Any]) -> None:
        self._ask_for_ranks(
            self._wanted_world_size(),
            self.isolation,
            lacking=_lacking(_called(self.backend_str)),
            keeps_groups=True,
            keeps_state=self.keeps_state,
        )
        result = self._wait_for_ranks()
        self._judge(result, result.verdict)

    def _wanted_world_size(self) -> object:
        size: object = self.world_size
        if size != _UNSET:
            return size
        device = _called(self.device_type)
        if device == "cpu" or current_session().engine.spec.target:
            return default_world_size()
        import torch

        if device == "cuda":
            # AMD's GPUs have that type, too.
            vendor = vendor_named(current_session().engine.spec.backend.vendor) or NVIDIA
            count = len(visible_gpus(gpus_present(vendor=vendor), vendor=vendor).gpus)
        else:
            count = torch.get_device_module(device).device_count()
        if not count:
            self.skipTest(TEST_SKIPS["no_cuda" if device == "cuda" else "no_accelerator"].message)
        return count

    @classmethod
    def _open_rank(cls, rank: int, world_size: int, directory: str) -> None:
        cls.rank, cls.world_size, cls.rdvz_file = rank, world_size, os.path.join(directory, _RENDEZVOUS)
        cls._init_pg(rank, world_size, cls.rdvz_file)

    @classmethod
    def _run_on_rank(cls, rank: int, body: dict[str, Any], pipe: RankPipe) -> None:
        self = cls(body["method"])
        self.rank = rank
        pipe.run(self, body["method"])


class _LoaderOf(unittest.TestLoader):
    """Loads one class where unittest would load the main module; names on the command line it finds as always."""

    def __init__(self, cls: type[unittest.TestCase]) -> None:
        super().__init__()
        self._cls = cls

    def loadTestsFromModule(self, *_: Any, **__: Any) -> unittest.TestSuite:
        return self.loadTestsFromTestCase(self._cls)


def _called(value: Any) -> Any:
    """What a class says by a method, or by a plain value."""
    return value() if callable(value) else value


def _lacking(backend: str | None) -> str | None:
    """Why there can be no group of that backend; None if nothing is known against it."""
    import torch.distributed as dist

    # Only the ranks can tell of a backend that a module registers, or that has no declaration.
    if backend is None or not all_declared(backend, lambda declared: not declared.register_module):
        return None
    lacking = (part for part in parts_of(backend) if dist.is_available() and not dist.is_backend_available(part))
    return next(map(missing_backend, lacking), None)
