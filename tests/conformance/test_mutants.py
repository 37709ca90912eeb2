"""The kit finds public bugs, each in a group that is right otherwise, and raises no alarm on the group itself.

The numbers and reports are those of public threads. `DIST_TESTING_STRESS_CASES` (`--config=stress`) runs all of them;
otherwise every run plants a part of them.
"""

from __future__ import annotations

import os

import pytest
import torch.distributed as dist

from dist_testing.conformance.catalogue import all_cells, cells_by_name
from dist_testing.conformance.cell import Result, Status, matches
from dist_testing.conformance.kit_session import CellSession
from dist_testing.core.ground.backends import Backend
from tests.conformance.mutant_tools import PLANTS
from tests.conformance.mutants import PLANTS as PLANTED

# Number -> the reports, and the cell that finds it.
MUTANTS = {
    1: ("pytorch#192920", "broadcast/*/strided/odd/*"),
    2: ("pytorch#24836", "scatter/*/strided/odd/*"),
    3: ("pytorch#74809, #158902", "gather/*/strided/odd/*"),
    4: ("pytorch#159548", "gather/*/strided/odd/*"),
    5: ("pytorch#128066", "reduce_scatter_tensor/*/strided/odd/*"),
    6: ("pytorch#20421", "scatter/inputs_are_views_of_one_tensor/w2"),
    7: ("pytorch#120582", "all_gather_into_tensor/*/strided/odd/*"),
    8: ("pytorch#21480, #76527", "reduce/keeps_tensors_of_others/w2"),
    9: ("pytorch#162338", "all_reduce/average_is_divided_by_ranks/w3"),
    10: ("torchcomms#287", "all_reduce/average_is_divided_by_ranks/w1"),
    11: ("torchcomms#287", "all_reduce/average_of_integers_is_truncated/w2"),
    12: ("torchcomms#2082", "all_reduce/bxor/int32/contiguous/odd/*"),
    13: ("ROCm/rocm-systems#10322", "all_reduce/average_of_many/w2"),
    14: ("pytorch#168092", "all_reduce/group_of_one_keeps_values/w1"),
    15: ("intel/torch-xpu-ops#2903, #3173", "reduce/premul_sum_factor/w2"),
    16: ("pytorch#41318, #41959", "all_reduce/sum/bool/contiguous/odd/*"),
    17: ("torchcomms#2974, pytorch#24137, #89197", "all_gather/bool/*"),
    18: ("torchcomms#2632", "all_gather/bfloat16/contiguous/0d/part/sync/w4"),
    19: ("torchcomms#477", "reduce_scatter/sum/float32/contiguous/*"),
    20: ("torchcomms#2468, pytorch#178533", "method/gather/w2"),
    21: ("torchcomms#1358", "all_to_all_single/sizes_of_many_kinds/w2"),
    22: ("tenstorrent/tt-metal#21964", "all_reduce/sum/int32/contiguous/odd/*"),
    23: ("torchcomms#2133, nccl#2161, tensorflow#58625", "all_gather_into_tensor/concat/*/large/*"),
    24: ("pytorch#85234, gloo#356", "all_reduce/sum/*/empty/*"),
    25: ("pytorch#146468", "all_to_all_single/sizes_of_many_kinds/w2"),
    26: ("horovod#2259", "all_to_all_single/sizes_of_many_kinds/w2"),
    27: ("torchcomms#2104", "scatter/inputs_are_views_of_one_tensor/w2"),
    28: ("candle-org/MindAct#2498", "all_to_all/even/*/w3"),
    29: ("openucx/xccl#56, Xilinx/ACCL#58", "reduce/handle_completes/w1"),
    30: ("torchcomms#3213, #3214", "all_gather/handle_completes/w3"),
    31: ("pytorch#125874", "all_gather/outputs_are_views_of_one_tensor/w5"),
    32: ("pytorch#149200", "broadcast_object_list/root_in_the_group/part/w4"),
    33: ("pytorch#187924, Paddle#44276", "recv/global_rank_of_sender/part/w4"),
    34: ("pytorch#130515, #190583", "reduce/*/part/*"),
    35: ("pytorch#153798", "new_subgroups/cuts_the_world/w4"),
    36: ("pytorch#67600", "all_reduce/warns_non_member/w1"),
    37: ("pytorch#94819, #125079", "recv/tags_kept_apart/w2"),
    38: ("torchcomms#2275", "isend/tag_is_no_async_flag/w2"),
    39: ("torchcomms#2885, nccl#2130, pytorch#174288", "batch_isend_irecv/*/none/async/w2"),
    40: ("torchcomms#2964", "isend/then_barrier/w3"),
    41: ("torchcomms#2993", "all_reduce/wait_is_the_end/w2"),
    42: ("pytorch#188655, #18465, karpathy/nanochat#843", "send_recv/input_released_in_flight/w2"),
    43: ("torchcomms#2294", "all_reduce/handle_completes/w1"),
    44: ("torchcomms#388", "batch_isend_irecv/after_the_group_is_gone/w2"),
    45: ("pytorch#158128, torchcomms#2316", "gather/limit_of_the_call/w2"),
    46: ("pytorch#165422, #167052", "_set_pg_timeout/holds_for_the_next_call/w2"),
    47: ("gloo#520", "send/peer_never_connects/w2"),
    48: ("pytorch#101380, nccl#1394, #117486", "all_to_all_single/indivisible_length_is_refused/w2"),
    # No public ones yet: these functions are new in torch 2.14.
    49: ("as 34", "gather_single/in_a_part/part/w4"),
    50: ("as 28", "gather_single/concatenation_and_stack/w3"),
    51: ("as 46", "set_timeout/holds_for_the_next_call/w2"),
}
# Those whose cell ends at once; a hang costs its limit.
_QUICK = (1, 6, 9, 11, 16, 17, 24, 30, 34, 36, 40, 48, 50)
_HERE = [number for number in MUTANTS if number < 49 or hasattr(dist, "gather_single")]
_CHOSEN = [number for number in _HERE if number in _QUICK or "DIST_TESTING_STRESS_CASES" in os.environ]


def run(number: int, names: list[str]) -> list[Result]:
    """Run cells on the group with one bug; 0 for none."""
    backend = Backend(
        "threaded",
        "threaded",
        "cpu",
        in_process=True,
        register_module="tests.conformance.mutants",
        env={"KIT_MUTANT": str(number)},
    )
    with CellSession(backend, preloads=False) as session:
        return [session.run(cells_by_name()[name]) for name in names]


def cells_for(pattern: str) -> list[str]:
    """Return the first cells of a pattern that more than one rank runs, or the first ones."""
    found = [cell for cell in all_cells() if matches(cell.name, [pattern])]
    several = [cell for cell in found if cell.world_size > 1]
    return [cell.name for cell in (several or found)][:3]


def test_every_bug_can_be_planted() -> None:
    """A bug that is listed and not planted would count as found by nothing."""
    assert PLANTED is PLANTS
    assert sorted(PLANTS) == sorted(MUTANTS) == list(range(1, 52))


@pytest.mark.parametrize("number", _CHOSEN)
def test_the_bug_is_found(number: int) -> None:
    """A named cell ends otherwise than the contract asks for."""
    results = run(number, cells_for(MUTANTS[number][1]))
    found = [result for result in results if result.status not in (result.cell.contract, Status.NOT_RUN)]
    assert found, f"bug {number} lives: {[result.cell.name for result in results]}"


def test_no_alarm_without_a_bug() -> None:
    """The same cells on the plain wrapper. Otherwise the cells, and not the bugs, would be found."""
    names = dict.fromkeys(name for number in _CHOSEN for name in cells_for(MUTANTS[number][1]))
    order = sorted(names, key=lambda name: (cells_by_name()[name].fresh, cells_by_name()[name].world_size))
    alarms = {
        result.cell.name: (result.status.value, result.detail)
        for result in run(0, order)
        if result.status is not result.cell.contract
    }
    assert alarms == {}
