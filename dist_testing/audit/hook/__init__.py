"""Runs inside each Python process of an audited suite: notes what happens, and plants the one fault of the run.

`bootstrap/sitecustomize.py` loads this package under the name `_dist_testing_audit`. It needs only the standard
library, because the suite's Python may not have `dist_testing`. It writes only into the folder of the
run.
"""

from __future__ import annotations

import os

from . import cases, children, imports, leaving, ranks, record


def start(folder: str) -> None:
    """Start the hook in this process, unless the folder of the run has no plan: then the audit has ended."""
    if not record.open_run(folder):
        return
    record.note("process", how="start", command=_command())
    os.register_at_fork(after_in_child=_forked)
    imports.after_import(
        {
            "torch.distributed.distributed_c10d": ranks.watch,
            "torch.testing._internal.common_distributed": leaving.open_torch_classes,
            "torch.multiprocessing.spawn": leaving.open_torch_spawn,
            "_pytest.config": cases.join_pytest,
            "multiprocessing.pool": leaving.open_pool,
            "multiprocessing.process": leaving.open_process,
            "threading": leaving.open_thread,
            "subprocess": children.keep_environment,
            "unittest.case": cases.watch,
        }
    )


def _forked() -> None:
    leaving.forget_doors()
    record.note("process", how="fork")


def _command() -> str:
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return file.read(300).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
