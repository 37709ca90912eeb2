"""Notices the cases of a suite that unittest runs, and leaves out those that the plan does not select."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from . import leaving, record

# The process that runs pytest. pytest runs the cases of unittest's classes too, and tells of them itself.
_pytest_pids: set[int] = set()


def leave_to_pytest() -> None:
    """Have pytest tell of all cases of this process, and of those that it forks."""
    _pytest_pids.add(os.getpid())


def join_pytest(config: ModuleType) -> None:
    """Have each pytest of this process load the plugin, where it loads those of its environment variable.

    The variable itself stays as it is: a Python that ignores PYTHONPATH could not import the plugin.
    """
    owner = config.PytestPluginManager
    consider_env = owner.consider_env

    @functools.wraps(consider_env)
    def consider(self: Any) -> None:
        consider_env(self)
        self.import_plugin("_dist_testing_audit.pytest_plugin")

    owner.consider_env = consider


def watch(unittest_case: ModuleType) -> None:
    """Stand around the call of each case, and of its test method."""
    owner = unittest_case.TestCase
    call = owner.__call__

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _run(self, call, *args, **kwargs)

    method_call = owner._callTestMethod

    @functools.wraps(method_call)
    def _callTestMethod(self: Any, method: Any) -> Any:
        return method_call(self, leaving.leavable("the test function", method))

    owner.__call__, owner._callTestMethod = __call__, _callTestMethod


def _run(case: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    result = args[0] if args else kwargs.get("result")
    # A set that forks inherit: ranks of a pytest session leave the telling to it, too.
    if _pytest_pids or result is None:
        return call(case, *args, **kwargs)
    name = case.id()
    plan = record.plan
    if plan.cases is not None and name not in plan.cases:
        return result
    module = sys.modules.get(type(case).__module__)
    record.begin_case(name, os.path.abspath(getattr(module, "__file__", None) or ""))
    before = {part: len(getattr(result, part, ())) for part in ("failures", "errors", "unexpectedSuccesses", "skipped")}
    returned = call(case, *args, **kwargs)
    new = {part: getattr(result, part, [])[count:] for part, count in before.items()}
    has_failed = new["failures"] or new["errors"] or new["unexpectedSuccesses"]
    outcome = "failed" if has_failed else "skipped" if new["skipped"] else "passed"
    text = "\n".join(str(entry[-1]) for part in ("failures", "errors", "skipped") for entry in new[part])
    record.note_result(name, outcome, text)
    record.begin_case("", "")
    return returned
