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

# Every public name of `distributed_c10d`, over all builds of torch.
NAMES = (
    "AllToAllOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "Backend",
    "BackendConfig",
    "BarrierOptions",
    "BroadcastOptions",
    "DebugLevel",
    "GatherOptions",
    "GroupMember",
    "GroupName",
    "P2POp",
    "PrefixStore",
    "ProcessGroup",
    "ProcessGroupGloo",
    "ProcessGroupMPI",
    "ProcessGroupNCCL",
    "ProcessGroupNCCL2",
    "ProcessGroupNCCLLazy",
    "ProcessGroupUCC",
    "ProcessGroupXCCL",
    "ReduceOp",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
    "Store",
    "Work",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "default_pg_timeout",
    "destroy_process_group",
    "gather",
    "gather_into_tensor",
    "gather_object",
    "gather_single",
    "get_backend",
    "get_backend_config",
    "get_backend_impl",
    "get_debug_level",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "record_comm",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_op",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_timeout",
    "shrink_group",
    "split_group",
    "supports_complex",
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


def test_names_are_unique() -> None:
    """Two cells of one name would be one row of the matrix."""
    names = [cell.name for cell in all_cells()]
    assert len(names) == len(set(names))
    assert len(names) >= 600


def test_the_list_is_the_same_in_every_process() -> None:
    """A name in an expectation file must mean the same cell on every machine; the runner needs no torch to list it."""
    code = (
        "import sys; from dist_testing.conformance.catalogue import all_cells; "
        "print(hash(tuple(c.name for c in all_cells())), file=sys.stderr); "
        "print('\\n'.join(c.name for c in all_cells()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == [cell.name for cell in all_cells()]


def test_every_public_name_of_c10d_has_a_cell() -> None:
    """Of all builds and versions; a name that the installed torch adds must get a cell, or a reason why it has none."""
    import torch.distributed.distributed_c10d as c10d

    operations = {cell.operation for cell in all_cells()} | {cell.variant for cell in all_cells()}
    missing = [name for name in {*NAMES, *c10d.__all__} if name not in operations and name not in _ELSEWHERE]
    assert missing == []
    assert set(c10d.__all__) <= set(NAMES)
    assert len(NAMES) == len(set(NAMES)) >= 81


def test_reasons_name_cells_that_exist() -> None:
    """A reason that names a cell must name one."""
    names = [cell.name for cell in all_cells()]
    for reason in _ELSEWHERE.values():
        for word in reason.split():
            if "/" in word:
                assert any(name.startswith(word) for name in names), word


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
            assert any(matches(cell.name, [pattern]) for cell in all_cells()), pattern


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
        if cell.root:
            assert root_of(cell.root, ranks) in ranks


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
