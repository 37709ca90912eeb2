"""Lists the cells: the table of tensor operations, chosen by pairwise cover, and the scripts."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dist_testing.conformance.axes import COMPLEX, DTYPES, FLOATS, GROUPS, LAYOUTS, OPS, SHAPES, fits, is_defined
from dist_testing.conformance.cell import WHOLE, Cell, Status, matches
from dist_testing.conformance.rows import scripted_cells
from dist_testing.core.ground.errors import UsageError

WORLD_SIZES = (1, 2, 3, 4, 5, 7)
_MODES = ("sync", "async")
# Of the axes that all operations share, the values that matter for reductions beside the operation itself.
_SOME_DTYPES = ("float32", "int64", "bfloat16", "complex64")
# The same for operations that move bytes.
_MOVED_DTYPES = ("bool", "int8", "int64", "bfloat16", "float32", "complex64")

# Operations that reduce, with their rows.
_REDUCING = {"all_reduce": "6.1", "reduce": "6.3", "reduce_scatter": "6.4", "reduce_scatter_tensor": "6.5"}
# Operations that move, with their rows.
_MOVING = {
    "broadcast": "7.1",
    "all_gather": "7.2",
    "all_gather_into_tensor": "7.3",
    "gather": "7.5",
    "scatter": "7.6",
    "all_to_all_single": "7.7",
    "all_to_all": "7.8",
    "send_recv": "5.1",
    "batch_isend_irecv": "5.7",
}
_EVEN = ("even", "uneven")
_VARIANTS = {"all_gather_into_tensor": ("concat", "stack"), "all_to_all_single": _EVEN, "all_to_all": _EVEN}
_ROOTS = ("first", "middle", "last", "first_in_group", "middle_in_group", "last_in_group")
# Peers by global rank, or by their rank in the group.
_PEERS = ("first", "first_in_group")
_ROOTS_OF = {
    **dict.fromkeys(("broadcast", "gather", "scatter", "reduce"), _ROOTS),
    **dict.fromkeys(("send_recv", "batch_isend_irecv"), _PEERS),
}
# Names that few programs use: one cell for each of some settings.
_RARE = (
    ("6.2", "all_reduce_coalesced", "sum"),
    ("6.5", "reduce_scatter_single", "sum"),
    ("7.3", "all_gather_single", ""),
    ("7.4", "all_gather_coalesced", ""),
)
_RARE_AXES = (
    (1, "float32", "sync", WHOLE),
    (2, "int32", "sync", WHOLE),
    (3, "float64", "async", "world"),
    (4, "complex64", "sync", WHOLE),
    (5, "bfloat16", "async", "overlap"),
)


def table_cells() -> list[Cell]:
    """Return the cells of the table of tensor operations, each once."""
    cells = [_cell(row, operation, values) for operation, row in _REDUCING.items() for values in _reducing(operation)]
    cells += [_cell(row, operation, values) for operation, row in _MOVING.items() for values in _moving(operation)]
    for row, operation, op in _RARE:
        for size, dtype, mode, group in _RARE_AXES:
            axes = {"world_size": size, "op": op, "dtype": dtype, "layout": "contiguous", "size": "matrix"}
            cells.append(_cell(row, operation, {**axes, "group": group, "mode": mode}))
    return list(dict.fromkeys(cells))


@functools.cache
def all_cells() -> tuple[Cell, ...]:
    """Return every cell, ordered by world size, so that neighbours can share a world."""
    cells = [*scripted_cells(), *table_cells()]
    order = {"": 0, **{name: number for number, name in enumerate(GROUPS)}}
    return tuple(sorted(cells, key=lambda cell: (cell.fresh, cell.world_size, order[cell.group])))


@functools.cache
def cells_by_name() -> Mapping[str, Cell]:
    """Return every cell by its name."""
    return {cell.name: cell for cell in all_cells()}


def chosen_cells(cells: Sequence[Cell], patterns: Sequence[str], world_sizes: str | None) -> list[Cell]:
    """Return those of all cells that a command line asks for.

    No pattern stands for all names. `world_sizes` are such as "2,4"; None for all.

    Raises:
        UsageError: If a pattern matches nothing, or a size is none of the kit's.
    """
    sizes = set(WORLD_SIZES)
    if world_sizes is not None:
        parts = world_sizes.split(",")
        if not all(part.isdecimal() and int(part) in sizes for part in parts):
            raise UsageError(
                f"--world-sizes={world_sizes}: expected some of {', '.join(map(str, WORLD_SIZES))}.\n"
                "The kit has cells for these sizes only.\n"
                "Write --world-sizes=2,3, for example."
            )
        sizes = {int(part) for part in parts}
    for pattern in patterns:
        if not any(matches(cell.name, [pattern]) for cell in cells):
            raise UsageError(
                f"--cells={pattern}: no cell has such a name.\n"
                'A pattern covers the whole name, and "*" stands for any text.\n'
                "--list shows the names of all cells."
            )
    chosen = [cell for cell in cells if cell.world_size in sizes and (not patterns or matches(cell.name, patterns))]
    if not chosen:
        raise UsageError(
            f"--cells={','.join(patterns)} --world-sizes={world_sizes}: no cell fits both.\n"
            "The cells of these names need other world sizes.\n"
            "Leave one of the options out."
        )
    return chosen


def _cell(row: str, operation: str, values: dict[str, Any]) -> Cell:
    op, dtype = values.get("op"), values["dtype"]
    # Products of complex numbers have a value. These functions alone ask c10d's `supports_complex`, which refuses them.
    asks = operation in ("all_reduce", "all_reduce_coalesced")
    refuses = op and (not is_defined(op, dtype) or (asks and op == "product" and dtype in COMPLEX))
    return Cell(row, operation, **values, contract=Status.REFUSES if refuses else Status.WORKS)


def _reducing(operation: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of an operation that reduces: every op with every dtype, then the other axes by pairs."""
    roots = _ROOTS_OF.get(operation, ("",))
    for number, (op, dtype) in enumerate(itertools.product(OPS, DTYPES)):
        # Every pair once, for the function that most programs call; for the others every op, and every dtype.
        if operation != "all_reduce" and op != "sum" and dtype not in ("bool", "int32", "float32", "complex64"):
            continue
        if op == "premul_sum" and dtype not in FLOATS:
            # c10d offers its factor for floating-point tensors.
            continue
        axes = {"world_size": 2 + number % 2, "op": op, "dtype": dtype, "layout": "contiguous", "size": "odd"}
        yield {**axes, "root": roots[-1], "group": WHOLE, "mode": _MODES[number // 2 % 2]}
    yield from _pairs(operation, _SOME_DTYPES, op=("sum", "avg"))


def _moving(operation: str) -> Iterator[dict[str, Any]]:
    more = {"mode": ("async",)} if operation == "batch_isend_irecv" else {}
    chosen = _pairs(operation, _MOVED_DTYPES, variant=_VARIANTS.get(operation, ("",)), **more)
    # The other dtypes once each, in turn under the conditions that the pairs have.
    for number, dtype in enumerate(sorted(set(DTYPES) - set(_MOVED_DTYPES))):
        chosen.append({**chosen[(7 * number) % len(chosen)], "dtype": dtype})
    yield from chosen


def _pairs(operation: str, dtypes: Sequence[str], **more: Sequence[str]) -> list[dict[str, Any]]:
    axes: dict[str, Sequence[Any]] = {
        "dtype": dtypes,
        "world_size": WORLD_SIZES,
        "size": tuple(SHAPES),
        "root": _ROOTS_OF.get(operation, ("",)),
        "group": tuple(GROUPS),
        "layout": LAYOUTS,
        "mode": _MODES,
        **more,
    }
    return pairwise(axes, functools.partial(_possible, operation))


def _possible(operation: str, values: Mapping[str, Any]) -> bool:
    """Return whether an operation can have these values together: some of the axes, or all."""
    size, layout, variant = values.get("size"), values.get("layout"), values.get("variant")
    group, world_size = values.get("group"), values.get("world_size")
    if (layout and size and not fits(layout, size)) or (group and world_size and world_size < GROUPS[group]):
        return False
    match operation:
        case "all_to_all" | "all_to_all_single" if variant == "uneven":
            # Uneven parts have lengths of their own. One of a single row is contiguous in every layout, so some ranks
            # could refuse the others.
            return size in (None, "odd", "matrix") and layout in (None, "contiguous", "offset")
        case "all_to_all" | "all_to_all_single":
            # Parts are cut along the first dimension.
            return size != "0d"
        case "all_gather_into_tensor":
            # The output of a stack has three dimensions.
            return layout != "transposed" or variant != "stack"
        case "send_recv":
            # c10d refuses a blocking send to the own rank.
            return values.get("mode") != "sync" or (group != "single" and world_size != 1)
        case _:
            # An average of integers is rounded, and some backends refuse it: one cell per dtype shows that.
            return values.get("op") != "avg" or values.get("dtype") != "int64"


def pairwise(axes: Mapping[str, Sequence[Any]], allowed: Callable[[Mapping[str, Any]], bool]) -> list[dict[str, Any]]:
    """Return combinations that cover every pair of values that an allowed combination can have.

    The choice is greedy and depends on the arguments alone: equal arguments give equal combinations in equal order.
    There are two axes at least, with hashable values, and every combination has a value for each axis, in their order.
    `allowed` gets some axes or all of them, and must not refuse a part of a combination that it allows as a whole.
    """
    # In a dict, because it keeps their order. A pair is the set of its two axes with their values.
    open_pairs = {
        frozenset({(first, value), (second, other)}): None
        for first, second in itertools.combinations(axes, 2)
        for value in axes[first]
        for other in axes[second]
    }
    used: Counter[tuple[str, Any]] = Counter()
    chosen: list[dict[str, Any]] = []

    def completed(begun: dict[str, Any]) -> dict[str, Any] | None:
        """Return an allowed combination with these values, that covers many open pairs; None if there is none."""
        if not allowed(begun):
            return None
        name = next((name for name in axes if name not in begun), None)
        if name is None:
            return begun

        def worth(value: Any) -> tuple[int, int]:
            new = sum(frozenset({item, (name, value)}) in open_pairs for item in begun.items())
            return (-new, used[name, value])

        # Lazily: most often the first value leads to a combination.
        every = (completed({**begun, name: value}) for value in sorted(axes[name], key=worth))
        return next((found for found in every if found is not None), None)

    while open_pairs:
        pair = next(iter(open_pairs))
        combination = completed(dict(pair))
        if combination is None:
            del open_pairs[pair]
            continue
        chosen.append({name: combination[name] for name in axes})
        used.update(combination.items())
        for covered in itertools.combinations(combination.items(), 2):
            open_pairs.pop(frozenset(covered), None)
    return chosen
