"""Writes docs/evidence/torch_names.md: each public name of the installed torch's module, with ours."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from dist_testing.compat import common_distributed
from dist_testing.compat.unknown import Unknown, torchs_own

# Relative to the repository's root.
PAGE = Path("docs", "evidence", "torch_names.md")
REPAIR = "PYTHONPATH=. python tests/compat/names_page.py, or ./bazelw run //tests/compat:names_page"

# Name to the difference that a user of torch's module notices.
DIFFERENCES = {
    "C10dTorchCommsTestBase": "Not tested: our environments do not have the package torchcomms. Without it, every "
    "test skips, as with torch's.",
    "DEFAULT_WORLD_SIZE": "A class that sets no `world_size` has the size of its target, else 4, on ROCm too.",
    "DistTestCases": "`backend_feature` has `hpu` and `xpu` on every machine.",
    "DynamoDistributedSingleProcTestCase": "Skips without an accelerator, where torch's raises an AttributeError. No "
    "fixed port.",
    "IS_SANDCASTLE": "Does not turn a skip into a pass here, as it does in torch's classes: a test that has not run "
    "counts as skipped.",
    "MultiProcContinuousTest": "A failure costs one test, and the next gets fresh ranks; `skipTest` on a rank is a "
    "skip; on the CPU an unset `world_size` is 4, where torch's is 1.",
    "MultiProcessTestCase": "All ranks count, a crash ends the test at once, cleanups run on ranks, no spawn is "
    "needed ([measured](compared_with_torch.md)).",
    "MultiThreadedTestCase": "On this library's threaded group, which finds mismatched collectives and deadlocks "
    "([isolation](../isolation.md)).",
    "ProcessLocalGroup": "torch's own; the ranks of `MultiThreadedTestCase` have this library's group.",
    "TEST_SKIPS": 'Has a row for any number of GPUs: `TEST_SKIPS["multi-gpu-9"]` is a KeyError in torch.',
    "TIMEOUT_DEFAULT": "An invalid value is an error with three parts.",
    "cleanup_temp_dir": "Removes the directories of all calls.",
    "create_tcp_store": "The port is bound once, so no other process can take it; the server listens on loopback "
    "only; `timeout` has an effect. `is_master=False` and `jit_class=True`, which cannot work, are errors.",
    "get_required_world_size": "An error in the class is reported, not replaced by the default.",
    "has_efa": "Prints nothing.",
    "import_transformers_or_skip": "Decided before ranks start if the package is missing.",
    "nccl_skip_if_lt_x_gpu": "Decided before ranks start; any number of GPUs.",
    "require_n_gpus_for_nccl_backend": "Decided before ranks start; any number of GPUs.",
    "requires_accelerator_dist_backend": "Any of the backends that torch can be built with.",
    "retrieve_result_from_completion_queue": "Waits for the end of the process instead of polling.",
    "run_subtests": "Does not load torch._dynamo; a failed sub-test is reported with its values.",
    "setup_torchcomms_pg": "torch's own.",
    "skip_if_lt_x_gpu": "Decided before ranks start; any number of GPUs; a missing argument is an error.",
    "skip_if_no_gpu": "Decided before ranks start; any number of GPUs.",
    "skip_if_odd_worldsize": "Decided before ranks start; `BACKEND` need not be set.",
    "skip_if_small_worldsize": "Decided before ranks start; `BACKEND` need not be set. As in torch since 2.6, a world "
    "of fewer than 8 ranks is small; in `dist_testing` itself, a world of 1 or 2.",
    "spawn_threads_and_init_comms": "On this library's threaded group; `timeout` has an effect.",
    "tmp_dir": "Always the newest directory. Torch's stays None in a file that imported it before the directory "
    "existed.",
    "with_dist_debug_levels": "Restores the level, also after a failure.",
    "with_nccl_blocking_wait": "Also removes the variables again that were not set before.",
}

_HEAD = """# Which names does torch's `common_distributed` have, and what are ours?

The {count} public names that torch {version} has in `torch.testing._internal.common_distributed`, each with the object
of that name in `dist_testing.compat.common_distributed`. "The same" means the same object. A name that a newer torch
adds is an object here that raises an error at its first use. [migration](../migration.md) shows how to change over.

Written by `tests/compat/names_page.py`. Do not edit.

| name | here | what differs |
| --- | --- | --- |
"""


# Private names and members that test files use, and older names, to what differs.
_MEMBERS = {
    "`_dynamo_dist_per_rank_init`": "Sets no `MASTER_ADDR` and no `MASTER_PORT`: torch's port 6789 can belong to "
    "another test of the machine. The ranks find each other by a file that only they share.",
    "`MultiProcessTestCase._check_return_codes`": "An override gets `(fn, elapsed_time)`, or `(elapsed_time)` if it "
    "takes one argument, as until torch 2.5; both forms of a `super()` call work. All ranks have ended, and "
    "`self.processes` has their codes.",
    "`MultiProcessTestCase._check_no_test_errors`": "Called for a test in `skip_return_code_checks`, as until torch "
    "2.5; an override decides.",
    "`MultiProcessTestCase._start_processes`": "Takes a process class of `multiprocessing`. Any other callable is "
    "refused: the engine makes the ranks, and a function of the test would make processes that nothing watches. "
    "`_spawn_processes` calls an override. The override must call `super()._start_processes(proc)`; it must not make "
    "processes from `proc`.",
    "`MultiProcessTestCase._join_processes`": "An override may wait as torch's does, by the `exitcode` of "
    "`self.processes`, and must end with `super()._join_processes(fn)` or `self._check_return_codes`. Without a "
    "verdict the test fails.",
    "`MultiProcessTestCase._get_timedout_process_traceback`": "An override is called after a test in which a rank "
    "hung. All ranks have ended by then; the report has their stacks.",
    "`MultiProcessTestCase._spawn_processes`": "A second call in one test is refused: a test has one world. torch's "
    "makes other processes, and judges only those.",
    "`MultiProcessTestCase.pid_to_pipe`": "Empty after the test; torch's keeps closed pipes.",
    "`MultiThreadedTestCase.perThreadTearDown`": "Runs while the default group exists, so that it can use the group; "
    "torch's has destroyed the group by then.",
    "`requires_gloo`, `requires_nccl`, `requires_ucc` and others, on a helper function that is no test": "Its call "
    "skips the test. torch's only marks the helper, which then fails for want of the backend. Tests that are plain "
    "functions of pytest need the skip.",
    "`_maybe_handle_skip_if_lt_x_gpu`": "Without arguments it returns False, where torch's raises an IndexError.",
    "`MultiThreadedTestCase._spawn_threads`, `threads`": "`self.threads` has one object per rank, with `join`, "
    "`is_alive` and `name`. The ranks run when the method begins, or at the first `join`. The class cannot replace "
    "them by threads of its own.",
    "`MultiThreadedTestCase._join_threads`": "An override gets `(threads, fn)`; a `super()` call runs the ranks and "
    "judges.",
    "`MultiThreadedTestCase._check_return_codes`": "An override gets `(failed_ranks, timeout, fn)`: pairs of a rank "
    "and a `sys.exc_info()`, of every rank that did not pass. What an override removes from the list does not count.",
    "`MultiProcContinuousTest._run_test_given_id`": "Runs one test on a rank. An override must call it by `super()`. "
    "If it does not, the test fails: the library cannot know whether the test ran.",
    "`MultiProcContinuousTest._ensure_processes_spawned`, `_spawn_processes`, `_worker_loop`, `_get_world_size`, "
    "`_worker_run_main_wait`; `MultiProcessTestCase._event_listener`": (
        "Not here: the engine starts the ranks, sends them tests and asks them for stacks. A class that has one of "
        "them fails with a text that names the fix, because the library would never call the method."
    ),
    "`EFA_PROBE_RESULT`, `MultiProcContinousTest`, `run_tests`, `abc`, `Dict`, `List`, `Optional`, `Tuple`, `Union`": (
        "Names of older releases of torch; still here."
    ),
    "`core_dumps_disabled`, `requires_xccl`, `skip_if_rocm_ver_atleast_multiprocess`": "Names that torch 2.15 has "
    "added; here with every torch. torch 2.15 does not import `patch` any more; it is still here.",
}

_MORE = """
## Which private names and members work, and what do they do?

Test files of torch also use names that begin with an underscore, and classes override members. Each row says what
works:

| name | what differs |
| --- | --- |
"""


def public_names(module: ModuleType) -> list[str]:
    """Return the names of a module that do not begin with an underscore, sorted."""
    return sorted((name for name in dir(module) if not name.startswith("_")), key=lambda name: (name.lower(), name))


def page() -> str:
    """Return the page's text for the installed torch."""
    import torch

    theirs = torchs_own()
    names = public_names(theirs)
    version = str(torch.__version__).partition("+")[0]
    rows = [f"| `{name}` | {_here(theirs, name)} | {DIFFERENCES.get(name, '')} |" for name in names]
    more = "".join(f"| {name} | {text} |\n" for name, text in _MEMBERS.items())
    return _HEAD.format(version=version, count=len(names)) + "\n".join(rows) + "\n" + _MORE + more


def _here(theirs: ModuleType, name: str) -> str:
    ours: Any = getattr(common_distributed, name)
    if isinstance(ours, Unknown):
        return "**an error at its first use**"
    theirs_has: Any = getattr(theirs, name)
    home = inspect.getmodule(inspect.unwrap(ours)) if callable(ours) else None
    if home is not None and home.__name__.startswith("dist_testing."):
        return f"`{home.__name__}`"
    if isinstance(ours, (bool, dict, int, list, str)) or ours is None:
        return "the same value" if ours == theirs_has else "a value of its own"
    return "the same" if ours is theirs_has else "an object of its own"


def main() -> int:
    """Write the page."""
    # `bazel run` sets the variable to the directory of the sources.
    path = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."), PAGE)
    path.write_text(page(), encoding="utf-8")
    print(f"Wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
