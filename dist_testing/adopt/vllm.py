"""A plugin of pytest for suites with vLLM's test decorators: `pytest -p dist_testing.adopt.vllm`.

A test with one of the decorators `fork_new_process_for_each_test`, `spawn_new_process_for_each_test`,
`create_new_process_for_each_test` or `multi_gpu_test` runs on a world of one rank, forked from the test's process. What
`multi_process_parallel` hands to ray runs on the ranks of a world.
"""

from __future__ import annotations

import copy
import functools
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from dist_testing.adopt.on_ranks import keeps_own_way, run_on_ranks
from dist_testing.core.ground.error_text import name_of
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.launch.clean import spare_cuda, unshareable_reasons
from dist_testing.core.process.lifetime import become_subreaper
from dist_testing.core.process.orphans import Orphans
from dist_testing.programs.program import NO_LIMIT_S

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# vLLM has them in `tests/utils.py`; projects that build on it, in a module of a similar name.
_MODULES = "utils"
_FORK, _SPAWN = "fork_new_process_for_each_test", "spawn_new_process_for_each_test"
_CHOICE = "create_new_process_for_each_test"
_PARALLEL = "multi_process_parallel"
_PACKAGES = {"dist-packages", "site-packages"}
# Limit of a world in seconds; None for that of the session.
_limit_s: list[float | None] = [NO_LIMIT_S]

# At import, before a test file asks for the GPUs: no rank could be forked then.
spare_cuda()


def pytest_configure(config: pytest.Config) -> None:
    """Give worlds no limit, unless the command line has `--dist-timeout`.

    The project's own harness has none, and tests that load models take long. A proven hang ends without a limit.
    """
    _limit_s[0] = NO_LIMIT_S if config.getoption("--dist-timeout", default=None) is None else None


def _adopt(module: ModuleType) -> None:
    """Replace the decorators that a module defines; the others are made from these."""
    own = {
        name: value
        for name in (_FORK, _SPAWN, _CHOICE, _PARALLEL)
        if isinstance(value := vars(module).get(name), FunctionType) and value.__module__ == module.__name__
    }
    if _CHOICE in own and _FORK not in own and _SPAWN not in own:
        raise UsageError(
            f"{module.__name__} defines {_CHOICE}, but neither {_FORK} nor {_SPAWN}.\n"
            "The adapter replaces these two, so the version of the decorators is not one that it knows.\n"
            "Run the suite without -p dist_testing.adopt.vllm."
        )
    for name, replacement in ((_FORK, _decorator), (_SPAWN, _decorator), (_PARALLEL, _parallel)):
        if name in own and not hasattr(own[name], "__wrapped__"):
            setattr(module, name, replacement(own[name]))


def _decorator(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            _refuse_unshareable(name_of(test))
            run_on_ranks(lambda _: _call(test, args, kwargs), name_of(test), 1, _limit_s[0])

        return run

    return decorate


def _refuse_unshareable(test: str) -> None:
    """Refuse a test whose ranks cannot be forked: the decorators themselves may pass a test that fails."""
    __tracebackhide__ = True
    if reasons := unshareable_reasons():
        raise UsageError(
            f"{test}: its ranks cannot be forked from pytest's process: {'; '.join(reasons)}.\n"
            "An earlier test, a fixture or an import has used the GPU or a process group in that process.\n"
            "Move that use into tests that run on ranks; or run this test alone, or without "
            "-p dist_testing.adopt.vllm."
        )


def _call(test: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call the test on the rank, and end the processes of engines that it has not shut down, as the decorators do."""
    become_subreaper()
    children = Orphans()
    try:
        test(*args, **kwargs)
    finally:
        children.remove()


def _parallel(original: Any) -> Callable[..., None]:
    """Return the replacement of the function that runs one function of ray on all ranks."""

    @functools.wraps(original)
    def run(monkeypatch: Any, tp_size: int, pp_size: int, test_target: Any) -> None:
        __tracebackhide__ = True
        # ray keeps the function that it has decorated.
        function: Any = getattr(test_target, "_function", None)
        unknown = f"{test_target!r} is no function of ray" if function is None else ""
        if keeps_own_way(_PARALLEL, "ray runs the ranks", unknown):
            original(monkeypatch, tp_size, pp_size, test_target)
            return
        with socket.socket() as held:
            # The kernel gives a free port to any process before rank 0 listens. A socket that is bound and does not
            # listen prevents that. Rank 0 can still listen, because torch's stores set SO_REUSEADDR, too.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("", 0))
            port = held.getsockname()[1]
            run_on_ranks(
                lambda rank: function(monkeypatch, tp_size, pp_size, rank, port),
                name_of(function),
                tp_size * pp_size,
                _limit_s[0],
            )

    return run


class _AdoptOnImport(MetaPathFinder):
    """Finds modules as the other finders do, and adopts those with decorators before another module takes names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.endswith(_MODULES):
            return None
        found = (other.find_spec(fullname, path, target) for other in sys.meta_path if other is not self)
        spec = next(filter(None, found), None)
        # An installed package belongs to no suite.
        if spec is not None and spec.loader is not None and _PACKAGES.isdisjoint(Path(spec.origin or "").parts):
            spec.loader = _adopting(spec.loader)
        return spec


def _adopting(loader: Any) -> Any:
    """Return a copy of a loader that also changes the module. The loader itself may be that of other modules, too."""

    def exec_module(module: ModuleType) -> None:
        loader.exec_module(module)
        _adopt(module)

    changed = copy.copy(loader)
    changed.exec_module = exec_module
    return changed


sys.meta_path.insert(0, _AdoptOnImport())
for _module in list(sys.modules.values()):
    if isinstance(_module, ModuleType) and _module.__name__.endswith(_MODULES):
        _adopt(_module)
