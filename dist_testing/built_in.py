"""The library's own add-ons. Each is a folder or a file beside the core, and can be deleted with its entry here."""

from __future__ import annotations

from dist_testing.add_ons import AddOn

ADD_ONS = (
    AddOn(
        name="nodes",
        ext_version=1,
        wanted=lambda case, spec: case.nodes != 1,
        check="dist_testing.nodes.check:check",
        missing="dist_testing.nodes.check:missing",
        place="dist_testing.nodes.place:NodePlace",
    ),
    # Wanted for planned faults; those of `world.faults` bring it with their first message.
    AddOn(
        name="faults",
        ext_version=1,
        wanted=lambda case, spec: bool(case.faults),
        check="dist_testing.nodes.fault_plans:check",
        watcher="dist_testing.nodes.fault_desk:FaultDesk",
        on_world="dist_testing.nodes.fault_client:faults_of",
    ),
    # Half the price of a fork is page tables.
    AddOn(name="huge_pages", ext_version=1, idle_work="dist_testing.huge_pages:HugePages"),
)
