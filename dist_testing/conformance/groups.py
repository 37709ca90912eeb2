"""Names the groups of cells, and says which ranks are their members."""

from __future__ import annotations

from dist_testing.conformance.cell import WHOLE

# Each name with the smallest world that has such a group.
GROUPS = {
    WHOLE: 1,  # the default group, as None
    "world": 1,  # the default group, as `group.WORLD`
    "part": 4,  # ranks whose numbers in the group are others, without rank 0
    "overlap": 3,  # shares a rank with "part", and leaves rank 0 out
    "single": 2,  # a group of the last rank alone
}


def members(group: str, world_size: int) -> tuple[int, ...]:
    """Return the global ranks of a group, by their rank in the group."""
    match group:
        case "part":
            return tuple(range(1, world_size, 2))
        case "overlap":
            return tuple(range(1, world_size))
        case "single":
            return (world_size - 1,)
        case _:
            return tuple(range(world_size))


def root_of(root: str, ranks: tuple[int, ...]) -> int:
    """Return the global rank of a root by its name: "first", "middle" or "last", with or without "_in_group"."""
    place = root.removesuffix("_in_group")
    return ranks[{"first": 0, "middle": len(ranks) // 2, "last": -1}[place]]
