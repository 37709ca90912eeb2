"""Names the values of the axes of cells: groups and their members, shapes, layouts, dtypes, reductions."""

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
# Members of the groups that are not the default one.
_PLACES = {"part": slice(1, None, 2), "overlap": slice(1, None), "single": slice(-1, None)}


def members(group: str, world_size: int) -> tuple[int, ...]:
    """Return the global ranks of a group, by their rank in the group."""
    return tuple(range(world_size))[_PLACES.get(group, slice(None))]


def root_of(root: str, ranks: tuple[int, ...]) -> int:
    """Return the global rank of a root by its name: "first", "middle" or "last", with or without "_in_group"."""
    place = root.removesuffix("_in_group")
    return ranks[{"first": 0, "middle": len(ranks) // 2, "last": -1}[place]]


# Shape of one part: of a rank's tensor, or of what one rank sends to another.
SHAPES: dict[str, tuple[int, ...]] = {
    "0d": (),
    "empty": (0,),
    "one": (1,),
    "odd": (7,),
    "matrix": (3, 5),
    # Larger than any inline buffer, and no multiple of a block.
    "large": (70_001,),
}

LAYOUTS = ("contiguous", "offset", "strided", "transposed")


def fits(layout: str, size: str) -> bool:
    """Return whether a tensor of this size can have the layout, and differs in it from a contiguous one."""
    if layout == "transposed":
        return size == "matrix"
    if layout == "strided":
        return size in ("odd", "matrix", "large")
    return True


def part_length(source: int, target: int, call: int) -> int:
    """Return how many rows one rank sends to another in uneven calls: it differs between the two directions."""
    return (2 * source + 3 * target + call) % 5


OPS = ("sum", "product", "min", "max", "band", "bor", "bxor", "avg", "premul_sum")
_BITS = ("bool", "uint8", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = (*_BITS, *FLOATS, *COMPLEX)


def is_defined(op: str, dtype: str) -> bool:
    """Return whether the reduction of this dtype has a value. Without one, a backend has to refuse it."""
    match op:
        case "min" | "max":
            return dtype not in COMPLEX
        case "band" | "bor" | "bxor":
            return dtype in _BITS
        case "avg":
            return dtype != "bool"
        case "premul_sum":
            return dtype not in _BITS
        case _:
            return True
