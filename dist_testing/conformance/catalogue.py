"""Lists the cells: the table of tensor operations, chosen by pairwise cover, and the scripts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from dist_testing.conformance.axes import (
    DTYPES,
    GROUPS,
    LAYOUTS,
    OPS,
    SHAPES,
    fits,
    is_complex,
    is_defined,
    is_floating,
)
from dist_testing.conformance.cell import WHOLE, Cell, Status, matches
from dist_testing.conformance.pairwise import pairwise
from dist_testing.conformance.rows.registry import scripted_cells
from dist_testing.core.ground.errors import UsageError

WORLD_SIZES = (1, 2, 3, 4, 5, 7)
_ROOTS = ("first", "middle", "last", "first_in_group", "middle_in_group", "last_in_group")
_MODES = ("sync", "async")
# Of the axes that all operations share, the values that matter for reductions beside the operation itself.
_SOME_DTYPES = ("float32", "int64", "bfloat16", "complex64")

# The same for operations that move bytes.
_MOVED_DTYPES = ("bool", "int8", "int64", "bfloat16", "float32", "complex64")

# Operations that reduce, with their rows.
_REDUCING = {
    "all_reduce": "6.1",
    "reduce": "6.3",
    "reduce_scatter": "6.4",
    "reduce_scatter_tensor": "6.5",
}
# Operations that move, each with its row and its variants.
_MOVING: dict[str, tuple[str, tuple[str, ...]]] = {
    "broadcast": ("7.1", ("",)),
    "all_gather": ("7.2", ("",)),
    "all_gather_into_tensor": ("7.3", ("concat", "stack")),
    "gather": ("7.5", ("",)),
    "scatter": ("7.6", ("",)),
    "all_to_all_single": ("7.7", ("even", "uneven")),
    "all_to_all": ("7.8", ("even", "uneven")),
    "send_recv": ("5.1", ("",)),
    "batch_isend_irecv": ("5.7", ("",)),
}
_WITH_ROOT = {"broadcast": _ROOTS, "gather": _ROOTS, "scatter": _ROOTS, "reduce": _ROOTS}
# Peers by global rank, or by their rank in the group.
_PEERS = ("first", "first_in_group")
_WITH_PEERS = ("send_recv", "batch_isend_irecv")
# Names that few programs use: one cell for each of some settings.
_RARE = (
    ("6.2", "all_reduce_coalesced", "sum"),
    ("6.5", "reduce_scatter_single", "sum"),
    ("7.3", "all_gather_single", ""),
    ("7.4", "all_gather_coalesced", ""),
)


def table_cells() -> list[Cell]:
    """Return the cells of the table of tensor operations, each once."""
    cells = [*itertools.chain.from_iterable(map(_reducing, _REDUCING)), *map(_as_cell, _moving()), *_rare()]
    return list(dict.fromkeys(cells))


@functools.cache
def all_cells() -> tuple[Cell, ...]:
    """Return every cell, ordered by world size, so that neighbours can share a world."""
    cells = [*scripted_cells(), *table_cells()]
    order = {"": 0, **{name: number for number, name in enumerate(GROUPS)}}
    return tuple(sorted(cells, key=lambda cell: (cell.fresh, cell.world_size, order[cell.group])))


@functools.cache
def _by_name() -> Mapping[str, Cell]:
    return {cell.name: cell for cell in all_cells()}


def cell_named(name: str) -> Cell:
    """Return the cell of that name.

    Raises:
        KeyError: If there is none.
    """
    return _by_name()[name]


def chosen_cells(cells: Sequence[Cell], patterns: Sequence[str], world_sizes: str | None) -> list[Cell]:
    """Return the cells that a command line asks for.

    Args:
        cells: All cells.
        patterns: Patterns of names; empty for all.
        world_sizes: The sizes, such as "2,4"; None for all.

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


def _contract(operation: str, op: str, dtype: str) -> Status:
    # Products of complex numbers have a value. These functions alone ask c10d's `supports_complex`, which refuses them.
    asks = operation in ("all_reduce", "all_reduce_coalesced")
    refuses = op and (not is_defined(op, dtype) or (asks and op == "product" and is_complex(dtype)))
    return Status.REFUSES if refuses else Status.WORKS


def _as_cell(values: Mapping[str, Any]) -> Cell:
    operation = values["operation"]
    contract = _contract(operation, values.get("op", ""), values["dtype"])
    return Cell(**values, contract=contract)


def _reducing(operation: str) -> list[Cell]:
    """Return the cells of an operation that reduces: every op with every dtype, then the other axes by pairs."""
    row = _REDUCING[operation]
    roots = _WITH_ROOT.get(operation, ("",))
    common = {"row": row, "operation": operation}
    cells = []
    for number, (op, dtype) in enumerate(itertools.product(OPS, DTYPES)):
        # Every pair once, for the function that most programs call; for the others every op, and every dtype.
        if operation != "all_reduce" and op != "sum" and dtype not in ("bool", "int32", "float32", "complex64"):
            continue
        if op == "premul_sum" and not is_floating(dtype):
            # c10d offers its factor for floating-point tensors.
            continue
        size = 2 + number % 2
        axes = {"world_size": size, "op": op, "dtype": dtype, "layout": "contiguous", "size": "odd"}
        cells.append(_as_cell({**common, **axes, "root": roots[-1], "group": WHOLE, "mode": _MODES[number // 2 % 2]}))
    for values in pairwise({**_axes(_SOME_DTYPES, roots), "op": ("sum", "avg")}, _possible_reduction):
        cells.append(_as_cell({**common, **values}))
    return cells


def _moving() -> list[dict[str, Any]]:
    found = []
    for operation, (row, variants) in _MOVING.items():
        roots = _PEERS if operation in _WITH_PEERS else _WITH_ROOT.get(operation, ("",))
        axes = {**_axes(_MOVED_DTYPES, roots), "variant": variants}
        if operation == "batch_isend_irecv":
            axes["mode"] = ("async",)

        def possible(values: Mapping[str, Any], operation: str = operation) -> bool:
            return _possible(values) and _possible_move(operation, values)

        chosen = pairwise(axes, possible)
        # The other dtypes once each, in turn under the conditions that the pairs have.
        for number, dtype in enumerate(sorted(set(DTYPES) - set(_MOVED_DTYPES))):
            chosen.append({**chosen[(7 * number) % len(chosen)], "dtype": dtype})
        found += [{"row": row, "operation": operation, **values} for values in chosen]
    return found


def _rare() -> list[Cell]:
    cells = []
    for row, operation, op in _RARE:
        for size, dtype, mode, group in (
            (1, "float32", "sync", WHOLE),
            (2, "int32", "sync", WHOLE),
            (3, "float64", "async", "world"),
            (4, "complex64", "sync", WHOLE),
            (5, "bfloat16", "async", "overlap"),
        ):
            axes = {"world_size": size, "op": op, "dtype": dtype, "layout": "contiguous", "size": "matrix"}
            cells.append(_as_cell({"row": row, "operation": operation, **axes, "group": group, "mode": mode}))
    return cells


def _axes(dtypes: Sequence[str], roots: Sequence[str]) -> dict[str, Sequence[Any]]:
    return {
        "dtype": dtypes,
        "world_size": WORLD_SIZES,
        "size": tuple(SHAPES),
        "root": roots,
        "group": tuple(GROUPS),
        "layout": LAYOUTS,
        "mode": _MODES,
    }


def _possible(values: Mapping[str, Any]) -> bool:
    if "layout" in values and "size" in values and not fits(values["layout"], values["size"]):
        return False
    if "group" in values and "world_size" in values:
        return int(values["world_size"]) >= GROUPS[values["group"]]
    return True


def _possible_reduction(values: Mapping[str, Any]) -> bool:
    # An average of integers is rounded, and some backends refuse it: one cell per dtype shows that.
    return _possible(values) and not (values.get("op") == "avg" and values.get("dtype") == "int64")


def _possible_move(operation: str, values: Mapping[str, Any]) -> bool:
    size, variant = values.get("size"), values.get("variant")
    if operation in ("all_to_all", "all_to_all_single"):
        # Parts are cut along the first dimension.
        if size == "0d":
            return False
        # Uneven parts have lengths of their own.
        if variant == "uneven" and size not in (None, "odd", "matrix"):
            return False
        # A part of one row is contiguous in every layout, so some ranks could refuse the others.
        if variant == "uneven" and values.get("layout") not in (None, "contiguous", "offset"):
            return False
    if operation == "all_gather_into_tensor" and values.get("layout") == "transposed" and variant == "stack":
        # Its output has three dimensions.
        return False
    if operation == "send_recv" and values.get("mode") == "sync":
        # c10d refuses a blocking send to the own rank.
        return values.get("group") != "single" and values.get("world_size") != 1
    return True
