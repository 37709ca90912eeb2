"""What a test's `world` is to a type checker: the core's class, with the attributes of the library's add-ons."""

from __future__ import annotations

from dist_testing.core.ground import world
from dist_testing.nodes.faults import Faults
from dist_testing.numbers.parity import Parity
from dist_testing.numbers.recorder import Recorder


class World(world.World):
    """Declares the attributes. At runtime they are made at their first use (`AddOn.on_world`)."""

    # Faults on purpose: kill, stop or delay ranks of this world, and break the network between its nodes.
    faults: Faults
    # What a function computes on all ranks must be what it computes on one.
    parity: Parity
    # Numbers of this rank in the record of the case, compared with a file of earlier ones.
    record: Recorder
