"""Names the shapes and layouts of cells."""

from __future__ import annotations

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
