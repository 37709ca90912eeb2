"""What a test needs, as far as it is known before it runs: from its marker, its class and its decorators."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dist_testing.core.ground.backends import any_declared
from dist_testing.core.ground.case import SETTINGS
from dist_testing.core.ground.skips import REQUIRED
from dist_testing.core.ground.spec import Spec
from dist_testing.core.pytest.marked_items import CASE_KEY, function_of, is_marked, is_multi_process
from dist_testing.core.unittest.continuous import ContinuousCase
from dist_testing.gpus.needs import needs_of
from dist_testing.threaded import BACKEND as THREADED


@dataclass(frozen=True, slots=True)
class Need:
    """The need of one case.

    Attributes:
        case: Its node id.
        backend: Name of the backend that it is for; "" for none.
        ranks: Size of its world; 1 without ranks. None if the class cannot tell it before the test runs.
        gpus: GPUs of the whole world. None as for `ranks`.
        nodes: Simulated nodes of its world; 1 for the machine itself.
    """

    case: str
    backend: str = ""
    ranks: int | None = 1
    gpus: int | None = 0
    nodes: int = 1


def need_of(item: pytest.Item, spec: Spec) -> Need:
    """Return the need of a collected test in a run with this spec. The markers must have been read."""
    function = function_of(item)
    required = (*getattr(function, REQUIRED, ()), *getattr(getattr(item, "cls", None), REQUIRED, ()))
    need = Need(item.nodeid, next((backend for _, backend in required if backend), ""))
    if is_marked(item):
        case = item.stash[CASE_KEY]
        gpus = needs_of(spec).of(case.world_size)
        need = Need(item.nodeid, spec.backend.name, case.world_size, gpus, case.settings.get("nodes", 1))
    elif is_multi_process(item):
        try:
            need = _need_of_class(item, function, spec, need)
        except (Exception, pytest.fail.Exception, pytest.skip.Exception):
            # The class's own code. The error is reported when the test runs.
            return replace(need, ranks=None, gpus=None)
    assert need.ranks is not None
    assert need.gpus is not None
    return replace(need, gpus=max([need.gpus, *(gpus(need.ranks) for gpus, _ in required)]))


def _need_of_class(item: pytest.Item, function: Any, spec: Spec, need: Need) -> Need:
    """Return the need of a method of a unittest class, which an instance of the class tells."""
    test: Any = item.cls(item.name)  # type: ignore[attr-defined]
    is_continuous = isinstance(test, ContinuousCase)
    size = test._wanted_world_size() if is_continuous else test.world_size
    with warnings.catch_warnings():
        # They are shown when the test runs.
        warnings.simplefilter("ignore")
        ranks, _, isolation = test._checked(function, size, test.isolation)
    if isolation.in_process:
        return replace(need, backend=THREADED, ranks=ranks)
    named = _called(test.backend_str) if is_continuous else None
    on_gpus = named is not None and any_declared(named, lambda declared: declared.gpus_per_rank > 0)
    settings = {**spec.settings, **test._settings(), **getattr(function, SETTINGS, {})}
    return replace(
        need,
        backend=need.backend or named or spec.backend.name,
        ranks=ranks,
        gpus=max(needs_of(spec).of(ranks), ranks if on_gpus else 0),
        nodes=settings.get("nodes", 1),
    )


def _called(value: Any) -> Any:
    return value() if callable(value) else value
