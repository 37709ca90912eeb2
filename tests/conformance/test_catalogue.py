"""The list of cells: complete, stable, and without torch."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dist_testing.conformance.axes import GROUPS, members, root_of
from dist_testing.conformance.catalogue import WORLD_SIZES, all_cells, pairwise, table_cells
from dist_testing.conformance.cell import matches
from dist_testing.conformance.expectations import CONTRACT, ROWS, WITHOUT_CELL

# Public names of `distributed_c10d` that only other builds or versions of torch have.
_OF_OTHER_BUILDS = (
    *(f"ProcessGroup{name}" for name in ("MPI", "NCCL", "NCCL2", "NCCLLazy", "UCC", "XCCL")),
    *("gather_into_tensor", "gather_single", "get_backend_impl", "set_timeout"),
)
# Those that no cell has as its operation, each with the cell that is about it.
_ELSEWHERE = {
    "GroupName": "a type for annotations; it has no behaviour",
    "PrefixStore": "init_process_group/prefix_store",
    "ProcessGroup": "method/allreduce",
    "ProcessGroupGloo": "of gloo alone: allreduce/options_are_obeyed",
    "ProcessGroupMPI": "of mpi alone; only in builds with it",
    "ProcessGroupNCCL": "of nccl alone; only in builds with it",
    "ProcessGroupNCCL2": "of nccl2 alone; only in builds with it",
    "ProcessGroupNCCLLazy": "of nccl_lazy alone; only in builds with it",
    "ProcessGroupUCC": "of ucc alone; only in builds with it",
    "ProcessGroupXCCL": "of xccl alone; only in builds with it",
    "ReduceOp": "all_reduce/sum/float32",
    "Store": "private_names/that_suites_use",
    "Work": "all_reduce/handle_completes",
    "DebugLevel": "names/modules",
    "GroupMember": "group/three_names_of_the_default",
    "get_backend_config": "get_backend/default_and_part",
    "get_debug_level": "names/modules",
    "get_group_rank": "get_global_rank/inverse_of_group_rank",
    "get_world_size": "get_rank/default_and_part",
    "is_gloo_available": "is_backend_available/names",
    "is_mpi_available": "is_backend_available/names",
    "is_nccl_available": "is_backend_available/names",
    "is_ucc_available": "is_backend_available/names",
    "is_xccl_available": "is_backend_available/names",
}


_NAMES = [cell.name for cell in all_cells()]


def test_the_list_is_the_same_in_every_process() -> None:
    """A name in an expectation file must mean the same one cell on every machine."""
    code = "from dist_testing.conformance.catalogue import all_cells; print(*(cell.name for cell in all_cells()))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}; assert 'torch' not in sys.modules"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == _NAMES
    assert len(_NAMES) == len(set(_NAMES)) >= 600


def test_every_public_name_of_c10d_has_a_cell() -> None:
    """Of all builds and versions; a name that the installed torch adds must get a cell, or a reason why it has none."""
    import torch.distributed.distributed_c10d as c10d

    known = {cell.operation for cell in all_cells()} | {cell.variant for cell in all_cells()} | _ELSEWHERE.keys()
    assert len(c10d.__all__) >= 70
    assert {*c10d.__all__, *_OF_OTHER_BUILDS} - known == set()
    for reason in _ELSEWHERE.values():
        for word in reason.split():
            assert "/" not in word or any(name.startswith(word) for name in _NAMES), word


def test_every_row_of_the_contract_has_cells() -> None:
    """Or a reason, which names cells of other rows or says why none can show it."""
    rows = {cell.row for cell in all_cells()}
    assert rows <= set(ROWS)
    assert set(ROWS) - rows == set(WITHOUT_CELL)
    assert {str(number) for number in range(1, 12)} <= {row.partition(".")[0] for row in rows}
    for row, reason in WITHOUT_CELL.items():
        patterns = [word for word in reason.split() if "/" in word]
        assert patterns or len(reason) > 20, row
        for pattern in patterns:
            assert any(matches(name, [pattern]) for name in _NAMES), pattern


def test_the_page_of_the_contract_is_up_to_date() -> None:
    """`python -m dist_testing.conformance --contract > docs/evidence/conformance_contract.md` writes it anew."""
    page = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "conformance_contract.md"
    assert page.read_text(encoding="utf-8") == CONTRACT


def test_the_table_has_every_world_layout_and_group() -> None:
    """The axes that public suites leave out."""
    cells = table_cells()
    assert {cell.world_size for cell in cells} == set(WORLD_SIZES)
    assert {cell.layout for cell in cells} == {"contiguous", "offset", "strided", "transposed"}
    assert {cell.group for cell in cells} == set(GROUPS)
    for cell in cells:
        assert cell.world_size >= GROUPS[cell.group]
        ranks = members(cell.group, cell.world_size)
        assert ranks
        assert not cell.root or root_of(cell.root, ranks) in ranks


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.integers(0, 3))
def test_pairwise_covers_every_possible_pair(lengths: list[int], forbidden: int) -> None:
    """Property: each pair that an allowed combination has is in a chosen one, and nothing forbidden is chosen."""
    axes = {f"axis{number}": list(range(length)) for number, length in enumerate(lengths)}

    def allowed(values: Any) -> bool:
        return not (values.get("axis0") == forbidden and values.get("axis1") == forbidden)

    chosen = pairwise(axes, allowed)
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def pairs(combinations: list[dict[str, int]]) -> set[Any]:
        return {pair for one in combinations for pair in itertools.combinations(one.items(), 2)}

    assert all(allowed(one) for one in chosen)
    assert pairs(chosen) == pairs([one for one in every if allowed(one)])
    assert len(chosen) <= len(every)
