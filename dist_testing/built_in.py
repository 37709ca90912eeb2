"""The library's own add-ons. Each is a folder or a file beside the core, and can be deleted with its entry here."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from dist_testing.core.ground.add_ons import EXT_VERSION, AddOn

if TYPE_CHECKING:
    from dist_testing.core.ground.case import Case
    from dist_testing.core.ground.spec import Spec


def _has_processes(case: Case, spec: Spec) -> bool:
    # Late: every session of pytest loads this table.
    from dist_testing.core.launch.isolation import isolation_named

    del spec
    return not isolation_named(case.isolation).in_process


# All have the version of this library.
_own = functools.partial(AddOn, ext_version=EXT_VERSION)

ADD_ONS = (
    _own(name="backend_files", more={"read": "dist_testing.backend_files:read_backend_file"}),
    _own(
        name="event_file",
        more={"kept_events": "dist_testing.event_file:keep_events", "file": "dist_testing.event_file:EventFile"},
    ),
    _own(
        name="continued",
        options={"--dist-continue": "run the cases that have not passed yet; the file VALUE keeps their results"},
        from_options="dist_testing.continued:from_options",
        more={"pytest_plugin": "dist_testing.continued:ContinuedRun"},
    ),
    _own(name="watchdog", more={"watchdog": "dist_testing.watchdog:watchdog_for"}),
    _own(name="direct", more={"start": "dist_testing.direct:start_directly"}),
    _own(name="log_limits", order=-3, watcher="dist_testing.log_limits:watch"),
    _own(
        name="memory_limit",
        wanted=lambda case, spec: "memory_limit" in case.settings,
        setting="dist_testing.memory_limit:read_limit",
        options={"--dist-memory-limit": "limit of all ranks of a case together, such as 2GiB (default: none)"},
        from_options="dist_testing.memory_limit:from_options",
        watcher="dist_testing.memory_limit:MemoryWatch",
    ),
    _own(name="dtensor", wanted=_has_processes, rank_service="dist_testing.dtensor:SparedImport"),
    # The last to start, and so the first to end: what the others find then is left behind.
    _own(name="daemons", order=1000, wanted=_has_processes, rank_service="dist_testing.daemons:Daemons"),
    _own(
        name="attach",
        more={
            "existing_rank": "dist_testing.attach.launchers:rank_info_in",
            "pytest_engine": "dist_testing.attach.pytest_ranks:make_engine",
        },
    ),
    _own(
        name="jobs",
        more={"read": "dist_testing.jobs.count:read_jobs", "look_ahead": "dist_testing.jobs.look_ahead:LookAhead"},
    ),
    _own(
        name="watch",
        more={
            "around_conftests": "dist_testing.watch.pytest_session:watched_session",
            "target": "dist_testing.watch.target:watch_target",
            "at_configure": "dist_testing.watch.pytest_session:check_taken_over",
        },
    ),
    _own(name="programs", more={"session": "dist_testing.programs.items:target_session"}),
    _own(
        name="hang",
        # It tells the cause; what other add-ons say of a failure comes after it.
        order=-2,
        rank_service="dist_testing.hang.ledger_thread:LedgerService",
        watcher="dist_testing.hang.watch:watch",
    ),
    _own(
        name="calls", rank_service="dist_testing.hang.call_record:CallRecord", watcher="dist_testing.hang.calls:watch"
    ),
    _own(
        name="perturb",
        # Its note comes before those about calls.
        order=-3,
        wanted=lambda case, spec: "perturb" in case.settings,
        setting="dist_testing.perturb.plan:read_plan",
        options={
            "--dist-perturb": "delay ranks before their calls, by this seed; random chooses one",
            "--dist-repeat": "with --dist-perturb: runs of a case with the next seeds, until it fails (default: 1)",
        },
        from_options="dist_testing.perturb.plan:from_options",
        resource="dist_testing.perturb.delays:PlanOfWorld",
        watcher="dist_testing.perturb.delays:DelayWatch",
        rerun="dist_testing.perturb.search:search",
        rank_service="dist_testing.perturb.rank:Delays",
    ),
    _own(
        name="threads",
        more={
            "pytest_items": "dist_testing.threaded.pytest_items:ThreadItems",
            "rank_process": "dist_testing.threaded.rank_process:enter_together",
            "refused_fixtures": "dist_testing.threaded.pytest_items:REFUSED_FIXTURES",
            "stacks_by_rank": "dist_testing.threaded.shared_process:stacks_by_rank",
            "blame": "dist_testing.threaded.shared_process:blame",
        },
    ),
    _own(
        name="nodes",
        wanted=lambda case, spec: case.settings.get("nodes", 1) != 1,
        setting="dist_testing.nodes.check:check_node_count",
        options={
            "--dist-nodes": "simulated nodes that the ranks of a test are spread over, if it sets no nodes (default: 1)"
        },
        from_options="dist_testing.nodes.check:from_options",
        check="dist_testing.nodes.check:check",
        missing="dist_testing.nodes.check:missing",
        resource="dist_testing.nodes.check:Spread",
        place="dist_testing.nodes.place:NodePlace",
    ),
    _own(
        name="gpus",
        wanted=lambda case, spec: spec.backend.gpus_per_rank > 0 or spec.backend.device != "cpu",
        target="dist_testing.gpus.needs:of_target",
        promised="dist_testing.gpus.needs:promised",
        options={"--dist-ranks-per-gpu": "ranks that share a GPU, if the backend allows it (default: 1)"},
        from_options="dist_testing.gpus.needs:from_options",
        missing="dist_testing.gpus.missing:missing",
        resource="dist_testing.gpus.world_gpus:GpuResource",
        explainer="dist_testing.gpus.world_gpus:blame_by_error",
        more={"device_count": "dist_testing.gpus.missing:device_count", "room": "dist_testing.gpus.missing:room"},
    ),
    _own(
        name="nccl",
        # What it says of the machine comes before the wait for GPUs.
        order=-1,
        wanted=lambda case, spec: spec.backend.uses_nccl,
        resource="dist_testing.gpus.nccl:NcclSupport",
        rank_service="dist_testing.gpus.nccl_rank:OwnHost",
    ),
    # Wanted for planned faults; those of `world.faults` bring it with their first message.
    _own(
        name="faults",
        wanted=lambda case, spec: "faults" in case.settings,
        setting="dist_testing.nodes.planned:read_fault_plan",
        check="dist_testing.nodes.planned:check",
        watcher="dist_testing.nodes.fault_desk:FaultDesk",
        on_world="dist_testing.nodes.faults:faults_of",
        more={"at_barrier": "dist_testing.nodes.faults:be_late"},
    ),
    _own(
        name="record",
        # Of a run that compares or writes numbers: a case may miss one that it had. Others bring it with their first.
        wanted=lambda case, spec: "record" in case.settings,
        options={
            "--dist-numbers": "compare the numbers that cases record with those in the file VALUE",
            "--dist-numbers-update": "write the numbers that cases record to the file VALUE",
        },
        from_options="dist_testing.numbers.base:from_options",
        watcher="dist_testing.numbers.desk:NumberDesk",
        on_world="dist_testing.numbers.recorder:recorder_of",
    ),
    _own(name="parity", on_world="dist_testing.numbers.parity:parity_of"),
    # Before all others on a rank, to measure what they do.
    _own(
        name="coverage",
        order=-1,
        wanted=lambda case, spec: "DIST_TESTING_COVERAGE" in os.environ,
        rank_service="dist_testing.coverage.bazel:RankCoverage",
        more={"bazel": "dist_testing.coverage.bazel:start_coverage"},
    ),
    _own(
        name="pool_state",
        # What another add-on does before and after a test is no change by the test.
        order=100,
        wanted=lambda case, spec: bool(case.pool) or not _has_processes(case, spec),
        rank_service="dist_testing.pool_state:PoolState",
    ),
    # Half the price of a fork is page tables.
    _own(name="huge_pages", idle_work="dist_testing.huge_pages:HugePages"),
)
