"""The library's own add-ons. Each is a folder or a file beside the core, and can be deleted with its entry here."""

from __future__ import annotations

import functools
import os
from pathlib import Path
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


# Where the build flag //dist_testing/config:quarantine puts its file.
QUARANTINE_FILE = Path(__file__).with_name("config") / "quarantine.toml"


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
        pytest_plugin="dist_testing.continued:continued_run",
    ),
    _own(name="watchdog", more={"watchdog": "dist_testing.watchdog:watchdog_for"}),
    _own(name="direct", more={"start": "dist_testing.direct:start_directly"}),
    _own(name="log_limits", order=-3, watcher="dist_testing.log_limits:LogLimits"),
    _own(
        name="memory_limit",
        wanted=lambda case, spec: "memory_limit" in case.settings,
        setting="dist_testing.memory_limit:read_limit",
        setting_help="str: memory that all ranks may use together, as 2GiB (default: --dist-memory-limit, else none)",
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
            "existing_rank": "dist_testing.attach.rank_info:rank_info_in",
            "pytest_engine": "dist_testing.attach.pytest_ranks:make_engine",
        },
    ),
    _own(
        name="jobs",
        more={
            "read": "dist_testing.jobs.look_ahead:read_jobs",
            "look_ahead": "dist_testing.jobs.look_ahead:LookAhead",
        },
    ),
    _own(
        name="watch",
        more={
            "around_conftests": "dist_testing.watch.pytest_session:watched_session",
            "target": "dist_testing.watch.pytest_session:watch_target",
            "at_configure": "dist_testing.watch.pytest_session:check_taken_over",
        },
    ),
    _own(
        name="selection",
        options={
            "--dist-min-gpus": "deselect tests that need fewer GPUs",
            "--dist-max-gpus": "deselect tests that need more GPUs; 0 leaves those without GPUs",
            "--dist-min-world-size": "deselect tests with fewer ranks; a test without ranks counts as 1",
            "--dist-max-world-size": "deselect tests with more ranks",
        },
        from_options="dist_testing.selection.need:from_options",
        flags={
            "--dist-needs": "print what each test needs (backend, ranks, GPUs, nodes), and run none",
            "--dist-needs-json": "the same, as a line of JSON for each test",
        },
        marks={
            "gpus_0": "tests that need no GPU; computed, for -m",
            "gpus_ge_N": "tests that need N GPUs or more, such as gpus_ge_4; computed, for -m",
            "world_size_ge_N": "tests with N ranks or more; computed, for -m",
        },
        pytest_plugin="dist_testing.selection.need:Selection",
    ),
    _own(
        name="programs",
        target="dist_testing.programs.items:of_target",
        more={"session": "dist_testing.programs.items:target_session"},
    ),
    _own(
        name="hang",
        # It tells the cause; what other add-ons say of a failure comes after it.
        order=-2,
        rank_service="dist_testing.hang.ledger_thread:LedgerService",
        watcher="dist_testing.hang.watch:watch",
    ),
    _own(name="calls", rank_service="dist_testing.hang.recorder:CallRecord", watcher="dist_testing.hang.calls:watch"),
    _own(
        name="perturb",
        # Its note comes before those about calls.
        order=-3,
        wanted=lambda case, spec: "perturb" in case.settings,
        setting="dist_testing.perturb.plan:read_plan",
        setting_help="int or str: seed of the delays before calls of ranks: a number, random, or a seed with its "
        "delays from a report, as 7:1.3,0.2 (default: --dist-perturb, else no delays)",
        options={
            "--dist-perturb": "delay ranks before their calls, by this seed; random chooses one (default: no delays)",
            "--dist-repeat": "with --dist-perturb: number of runs of a case, each with the next seed, until the case "
            "fails (default: 1)",
        },
        from_options="dist_testing.perturb.plan:from_options",
        resource="dist_testing.perturb.delays:PlanOfWorld",
        watcher="dist_testing.perturb.delays:DelayWatch",
        rerun="dist_testing.perturb.delays:search",
        rank_service="dist_testing.perturb.rank:Delays",
    ),
    _own(
        name="threads",
        isolations={"thread": "dist_testing.threaded:THREAD"},
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
        setting_help="int: number of simulated nodes that the ranks are spread over (default: --dist-nodes, else 1)",
        options={
            "--dist-nodes": "simulated nodes for the ranks of a test that sets no nodes (default: 1)",
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
        options={"--dist-ranks-per-gpu": "number of ranks that share a GPU, if the backend allows it (default: 1)"},
        from_options="dist_testing.gpus.needs:from_options",
        missing="dist_testing.gpus.needs:missing",
        resource="dist_testing.gpus.world_gpus:GpuResource",
        explainer="dist_testing.gpus.world_gpus:blame_by_error",
        more={"device_count": "dist_testing.gpus.needs:device_count", "room": "dist_testing.gpus.needs:room"},
    ),
    _own(
        name="nccl",
        # What it says of the machine comes before the wait for GPUs.
        order=-1,
        wanted=lambda case, spec: spec.backend.uses_nccl,
        resource="dist_testing.gpus.nccl:NcclSupport",
        rank_service="dist_testing.gpus.nccl_rank:NcclRank",
    ),
    _own(
        name="services",
        # Its verdict, that a service has ended, comes after what other add-ons say of the ranks.
        order=10,
        wanted=lambda case, spec: "services" in case.settings,
        setting="dist_testing.services.of_world:read_services",
        check="dist_testing.services.of_world:check",
        resource="dist_testing.services.of_world:ServiceResource",
        watcher="dist_testing.services.of_world:watch",
        setting_help="list of Service: servers that run while the ranks do (default: none)",
        pytest_plugin="dist_testing.services.pytest_plugin:plugin_of",
    ),
    # Wanted for planned faults; those of `world.faults` bring it with their first message.
    _own(
        name="faults",
        wanted=lambda case, spec: "faults" in case.settings,
        setting="dist_testing.nodes.planned:read_fault_plan",
        setting_help="dict[float, str]: faults that the runner causes: seconds after the test has begun on all ranks, "
        "to a call of world.faults, as {3: 'kill(2)'} (default: none)",
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
        from_options="dist_testing.numbers.desk:from_options",
        watcher="dist_testing.numbers.desk:NumberDesk",
        on_world="dist_testing.numbers.recorder:Recorder",
    ),
    _own(name="parity", on_world="dist_testing.numbers.parity:Parity"),
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
    _own(
        name="quarantine",
        options={"--dist-quarantine": "file of cases that are known to fail, and do not decide about the run"},
        ini={"dist_quarantine": "as --dist-quarantine; from the folder of the ini file"},
        in_session=lambda config: QUARANTINE_FILE.exists(),
        pytest_plugin="dist_testing.quarantine.session:Quarantine",
    ),
    # Half the price of a fork is page tables.
    _own(name="huge_pages", idle_work="dist_testing.huge_pages:HugePages"),
)
