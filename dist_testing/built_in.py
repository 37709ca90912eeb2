"""The library's own add-ons. Each is a folder or a file beside the core, and can be deleted with its entry here."""

from __future__ import annotations

from dist_testing.add_ons import AddOn

ADD_ONS = (
    # Half the price of a fork is page tables.
    AddOn(name="huge_pages", ext_version=1, idle_work="dist_testing.huge_pages:HugePages"),
)
