"""`MultiProcContinuousTest` and its logic: the tests of a class share one world and its process group."""

from __future__ import annotations

import datetime
import os
import unittest
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

from dist_testing.core.engine.needs import device_count, missing_backend
from dist_testing.core.ground.backends import all_declared, parts_of
from dist_testing.core.ground.case import check_keepable
from dist_testing.core.ground.error_text import did_you_mean
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.skips import TEST_SKIPS
from dist_testing.core.launch.isolation import POOL
from dist_testing.core.rank.generators import seed_generators
from dist_testing.core.rank.groups import destroy_groups
from dist_testing.core.unittest.comparison import TensorComparisons
from dist_testing.core.unittest.plain import current_session
from dist_testing.core.unittest.unittest_messages import UnittestCase
from dist_testing.core.unittest.unittest_rank import RankPipe
from dist_testing.core.unittest.world_case import WorldCase, default_world_size

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# torch's value for a class that sets no world_size.
_UNSET = -2
# unittest's own programs end with it if they run no test, from Python 3.12 on.
_NO_TESTS_EXIT_CODE = 5
# File in the world's folder, which all ranks share, and which is new for each world.
_RENDEZVOUS = "rendezvous"


class ContinuousCase(WorldCase):
    """Runs all test methods on the same ranks, in one process group that is made once.

    The group is `pg`, and it is the default group. A test fails if it leaves its rank in another state than before.
    After any result but a pass the next test gets fresh ranks and a new group, so one failure costs one test.

    `setUp` and `tearDown` run in the runner, `setUpRank` and `tearDownRank` on every rank, around each test.

    In a process that torchrun or another launcher has started (`run_rank`), the process is a rank itself: the class
    makes its group there and runs its tests in place, and `setUp` and `tearDown` run there, too.

    Attributes:
        world_size: Ranks of the world, as an attribute or a property. Default: the target's size; without a target,
            the number of GPUs if the tests run on GPUs, else 4.
        rank: This rank; `MAIN_PROCESS_RANK` (-1) in the runner.
        rdvz_file: On a rank, the file that the group was made with; None if it was made from the environment.
        timeout: Limit of each operation of the group; default: 120 seconds.
        poison_pill: If set in the runner, as by `tearDown`, all later tests are skipped. The library never sets it.
        pg: On a rank, the group.
        keeps_state: What a test may leave changed in its process for the next test. False for nothing, True for
            everything, or names such as `("cwd", "env:OMP_*")` (see docs/isolation.md).
    """

    isolation = POOL.name
    world_size: Any = _UNSET
    rank: Any = _UNSET
    rdvz_file: ClassVar[str | None] = None
    timeout: ClassVar[datetime.timedelta] = datetime.timedelta(seconds=120)
    poison_pill: ClassVar[bool] = False
    pg: ClassVar[Any] = None
    keeps_state: ClassVar[bool | Sequence[str]] = False
    _replaced = (
        "_ensure_processes_spawned",
        "_get_world_size",
        "_spawn_processes",
        "_worker_loop",
        "_worker_run_main_wait",
    )
    # The way to the runner of the test that this rank runs.
    _pipe: ClassVar[RankPipe]
    # Whether this process is a rank that another launcher has started.
    _is_given_rank: ClassVar[bool] = False

    def __init__(self, methodName: str = "runTest", method_name: str | None = None) -> None:
        super().__init__(methodName, method_name)
        if self._is_given_rank:
            self.rank = type(self).rank

    @classmethod
    def backend_str(cls) -> str | None:
        """Return the name of the group's backend; None (default) for torch's choice, one per kind of device."""
        return None

    @classmethod
    def device_type(cls) -> str:
        """Return the kind of device of the tests, such as "cuda"; default: the accelerator's, else "cpu".

        A class may override it by a method, a property or a text.
        """
        import torch

        found = torch.accelerator.current_accelerator()
        return found.type if found is not None else "cpu"

    @classmethod
    def opts(cls, high_priority_stream: bool = False) -> Any:
        """Return the backend's options for the group; None (default) for the backend's defaults."""
        del high_priority_stream
        return None

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str | None) -> None:
        """Make the group, on a rank. If the method calls `sys.exit` with the code of a skip, every test is skipped.

        `rdvz_file` is for a FileStore; None to take the rendezvous from the environment.
        """
        import torch.distributed as dist

        store = None
        if rdvz_file is not None:
            # torchrun sets it, too; torch chooses the device of a mesh by it.
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
        """Run the tests of this class in this process as a rank, and end it with unittest's exit code.

        For ranks that torchrun or `torch.multiprocessing.spawn` starts. All ranks must run the same tests; to select
        tests, name them on the command line.

        Args:
            rank: This rank, from 0.
            world_size: Ranks in the world.
            rdvz_file: A file that all ranks share; None for the rendezvous of the environment, as torchrun sets it.

        Raises:
            UsageError: If `rank` is not below `world_size`.
            SystemExit: At the end: 0 if all tests passed, 5 if there was no test to run, else 1.
        """
        if not 0 <= rank < world_size:
            raise UsageError(
                f"{cls.__qualname__}.run_rank: rank = {rank} in a world of {world_size}.\n"
                "Ranks are numbers from 0, below world_size.\n"
                "Pass the values of RANK and WORLD_SIZE that the launcher sets."
            )
        cls.rank, cls.world_size, cls.rdvz_file = rank, world_size, rdvz_file
        cls._is_given_rank = True
        loader = unittest.TestLoader()
        # In place of the main module. Names on the command line are found as usual.
        loader.loadTestsFromModule = lambda *_, **__: loader.loadTestsFromTestCase(cls)  # type: ignore[method-assign]
        result = unittest.main(testLoader=loader, exit=False).result
        if not (result.testsRun or result.skipped):
            raise SystemExit(_NO_TESTS_EXIT_CODE)
        raise SystemExit(not result.wasSuccessful())

    @classmethod
    def setUpClass(cls) -> None:
        """Make the group, if this process is an attached rank. In the runner, the first test starts the ranks."""
        super().setUpClass()
        if cls._is_given_rank:
            cls._init_pg(cls.rank, cls.world_size, cls.rdvz_file)

    @classmethod
    def _let_ranks_go(cls) -> str:
        if not cls._is_given_rank:
            return super()._let_ranks_go()
        destroy_groups()
        return ""

    def setUp(self) -> None:
        """Prepare the test, in the runner, before the ranks are started; on an attached rank, call `setUpRank`."""
        super().setUp()
        if self.poison_pill:
            self.skipTest("the class's poison_pill is set")
        if self._is_given_rank:
            seed_generators()
            self.setUpRank()
            self.addCleanup(self.tearDownRank)

    def _join_processes(self, fn: Callable[[], Any]) -> None:
        keeps = self.keeps_state
        named = () if isinstance(keeps, bool) else check_keepable(f"{type(self).__qualname__}.keeps_state", keeps)
        self._ask_for_ranks(
            self._wanted_world_size(),
            self.isolation,
            lacking=_lacking(_called(self.backend_str)),
            keeps_groups=True,
            keeps_state=keeps is True,
            may_change=named,
        )
        self._judge(self._wait_for_ranks())

    def _wanted_world_size(self) -> object:
        size: object = self.world_size
        if size != _UNSET:
            return size
        device = _called(self.device_type)
        if device == "cpu" or current_session().engine.spec.target:
            return default_world_size()
        count = device_count(device, current_session().engine.spec)
        if not count:
            self.skipTest(TEST_SKIPS["no_cuda" if device == "cuda" else "no_accelerator"].message)
        return count

    @classmethod
    def _open_rank(cls, rank: int, world_size: int, directory: str) -> None:
        cls.rank, cls.world_size, cls.rdvz_file = rank, world_size, os.path.join(directory, _RENDEZVOUS)
        cls._init_pg(rank, world_size, cls.rdvz_file)

    @classmethod
    def _run_on_rank(cls, rank: int, case: UnittestCase, pipe: RankPipe) -> None:
        cls.rank = rank
        cls._pipe = pipe
        cls._run_test_given_id(f"{cls.__module__}.{cls.__qualname__}.{case.method}")
        if not pipe.has_run:
            raise UsageError(
                f"{cls.__qualname__}._run_test_given_id has returned, and {case.method} has not run.\n"
                "The class overrides the method, and does not call the one of its base class.\n"
                "Call super()._run_test_given_id(test_id) there."
            )

    @classmethod
    def _run_test_given_id(cls, test_id: str) -> None:
        """Make the instance and run its test, on a rank. A class may override it, to do something around its tests.

        `test_id` is as of `unittest.TestCase.id()`. A SystemExit ends it if the test did not pass, so that the code
        after it does not run.
        """
        method = test_id.rpartition(".")[2]
        self = cls(method)
        self.rank = cls.rank
        cls._pipe.run(self, method)


class MultiProcContinuousTest(ContinuousCase, TensorComparisons):
    """Runs all tests on the same ranks and process group. See `ContinuousCase`; `assertEqual` compares tensors."""


# The first spelling in torch.
MultiProcContinousTest = MultiProcContinuousTest


def _called(value: Any) -> Any:
    """Return the value that a class gives by a method, or directly."""
    return value() if callable(value) else value


def _lacking(backend: str | None) -> str | None:
    """Return why torch cannot make a group of that backend; None if it can, or if that is unknown.

    A misspelt name raises UsageError.
    """
    import torch.distributed as dist

    known = [name for name in dist.Backend.backend_list if name != "undefined"] if dist.is_available() else []
    for part in parts_of(backend) if backend is not None and known else ():
        if part.lower() not in known and (near := did_you_mean(part.lower(), known, "")):
            raise UsageError(
                f"backend_str() returns {backend!r}, and torch knows no backend {part!r}.\n"
                f"It knows {', '.join(known)}, and those that a module has registered before the ranks start.\n{near}"
            )
    # Only the ranks can tell of a backend that a module registers, or that has no declaration.
    if backend is None or not all_declared(backend, lambda declared: not declared.register_module):
        return None
    lacking = (part for part in parts_of(backend) if dist.is_available() and not dist.is_backend_available(part))
    return next(map(missing_backend, lacking), None)
