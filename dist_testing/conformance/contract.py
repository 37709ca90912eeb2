"""The rows of the contract: what torch.distributed promises, whatever the backend. Each cell names its row.

`python -m dist_testing.conformance --contract` prints them; docs/conformance_contract.md is that text.
"""

from __future__ import annotations

SECTIONS: dict[str, str] = {
    "0": "Handles of asynchronous calls",
    "1": "Rules that many functions share",
    "2": "Names, backends, configuration",
    "3": "init_process_group, destroy, abort",
    "4": "Sub-groups",
    "5": "Point to point",
    "6": "Reductions",
    "7": "Moves",
    "8": "Coalescing manager",
    "9": "Objects",
    "10": "Barriers",
    "11": "Methods of groups, the debug wrapper, functional collectives",
}

# Number of a row to its text.
ROWS: dict[str, str] = {
    "0": (
        "With `async_op=True` a call returns a handle and does not wait for peers. `wait()` makes the result visible, "
        "twice is harmless, and handles may be waited for in any order. A handle keeps its tensors alive."
    ),
    "1.1": (
        "With the handle of a group of which the rank is no member, a call warns, sends nothing, changes no output, and"
        " returns None (`recv`: -1). `send`, `send_object_list` and `recv_object_list` refuse such a handle."
    ),
    "1.2": (
        "`new_group(use_local_synchronization=True)` gives None to a rank that is no member, and None is the default "
        "group."
    ),
    "1.3": (
        "`isend`, `send`, `broadcast`, `reduce`, `scatter` and the functions for objects with a root check the rank "
        "argument before the membership; all other functions check the membership first."
    ),
    "1.4": "A rank that is no member gets an error, and no warning, if its `src` is in no group that it has made last.",
    "1.5": (
        "A global rank and a rank in the group exclude each other; one is needed where there is no default; a global "
        "rank outside of the group is an error; a rank in the group that the group does not have is the backend's to "
        "refuse."
    ),
    "1.6": "Anything but a tensor in the place of a tensor is a TypeError.",
    "1.7": "Anything but a list of tensors in the place of a list is a TypeError.",
    "1.8": "Tensors of different dtypes in one call are a ValueError; a complex dtype and its own float are one dtype.",
    "1.9": "Complex tensors arrive unchanged, or the backend refuses them.",
    "1.10": "`supports_complex` is true for SUM, AVG and PREMUL_SUM only, and `all_reduce` refuses by it.",
    "1.11": "A tensor subclass sees a call as `__torch_function__`, before any check.",
    "1.12": "Without a default group every function with `group=None` is a ValueError that says so.",
    "1.13": "The decorators that log exceptions change neither their type nor their text.",
    "1.14": "`None`, `group.WORLD` and `GroupMember.WORLD` are one group.",
    "1.15": "If a rank stays away, the limit of the group ends the call of the others, neither earlier nor much later.",
    "1.16": "If a rank ends, the calls of the others end by their limit at the latest.",
    "2.1": (
        "`Backend` makes any name lower-case, refuses anything but a text, and has an attribute for each of torch's "
        "names."
    ),
    "2.2": (
        "`register_backend` enters a name and exactly the given devices in every table; the newer function of a name "
        "wins; a plain creator gets store, rank, size and limit, an extended one an options object."
    ),
    "2.3": (
        "`BackendConfig` reads one name, or pairs of device and name, and refuses other texts and devices that occur "
        "twice."
    ),
    "2.4": "`get_default_backend_for_device` takes a text or a device, and refuses a device without a backend.",
    "2.5": (
        "`is_backend_available` agrees with the functions of single backends, in any case, for pairs, for unknown "
        "names."
    ),
    "2.6": "`is_initialized`, `is_torchelastic_launched` and `get_node_local_rank` tell the state of the process.",
    "2.7": (
        "`get_backend` and `get_backend_config` work for the default group and a part, and refuse ranks that are no "
        "member."
    ),
    "2.8": "`get_rank` and `get_world_size` are those of the group, and -1 for a rank that is no member.",
    "2.9": "`get_group_rank` and `get_global_rank` are inverse to each other, and refuse ranks outside of the group.",
    "2.10": "`get_process_group_ranks` gives global ranks in the order of the group.",
    "2.11": "`get_pg_count` counts each group that was made, on members and others alike, and is 0 after the end.",
    "2.12": "`reduce_op` warns, and has the values of `ReduceOp`.",
    "2.13": (
        "The option classes and C++ classes come from distributed_c10d, have the fields that the functions set, and a "
        "method of a group obeys them."
    ),
    "2.14": "The default limit is 30 minutes, and 10 minutes for nccl.",
    "2.15": "Private functions that suites of tests use exist and tell the truth.",
    "2.16": "`_set_pg_timeout` holds for the next call, and refuses other objects.",
    "3.1": (
        "`init_process_group` refuses a second default group, contradicting arguments and a limit that is no timedelta."
    ),
    "3.2": "Groups are made by any store and by `env://`, `tcp://` and `file://`; a missing variable is named.",
    "3.3": "`device_id` must be an accelerator with an index.",
    "3.4": "An unknown backend, and one that torch was built without, is an error that says so.",
    "3.5": "nccl takes only options of its own class.",
    "3.6": "The exception hook calls the former hook, and prefixes each line that this one writes with the rank.",
    "3.7": "With `TORCH_DIST_INIT_BARRIER`, init returns on no rank before all have called it.",
    "3.8": (
        "Under `TORCH_DISTRIBUTED_DEBUG=DETAIL` groups are wrapped, and calls that differ are an error on every rank."
    ),
    "3.9": "The name of a group that exists is refused.",
    "3.10": (
        "`destroy_process_group` ends one group or all; init works again afterwards; a kept handle is an error, no "
        "crash."
    ),
    "3.11": "`_abort_process_group` does the same bookkeeping, and the second time is an error.",
    "4.1": (
        "`new_group` sorts ranks, gives each group a limit, a backend and a description of its own, and refuses wrong "
        "ranks; overlapping groups work side by side."
    ),
    "4.2": "`new_subgroups` cuts the world into parts of one size, and refuses a size that does not divide it.",
    "4.3": "`new_subgroups_by_enumeration` takes lists of ranks, and refuses a rank that occurs twice.",
    "4.4": "`split_group` refuses bad lists, and groups that cannot split.",
    "4.5": "`shrink_group` refuses bad lists, and groups that cannot shrink.",
    "4.6": "A group is found again by its tag and its ranks.",
    "4.7": "A group is found by its name until it is destroyed.",
    "4.8": "`_time_estimator` is for nccl only.",
    "5.1": (
        "A message arrives unchanged; `recv` gives the sender's global rank; `send` to the own rank is a ValueError."
    ),
    "5.2": "`recv` without a source takes a message of any rank, each once.",
    "5.3": "Tags keep messages apart, and keep their order within a tag.",
    "5.4": "`isend` and `irecv` return at once, in any order and in both directions.",
    "5.5": "A message of another size than the tensor is an error or is cut; nothing behind the tensor is written.",
    "5.6": "`P2POp` checks operation, tensor and peer, and its repr names them.",
    "5.7": (
        "`batch_isend_irecv` takes several messages per peer, and refuses other lists, several groups, and none at all."
    ),
    "6": (
        "Each reduce operation of each dtype is right, or refused on every rank. NaN and infinity pass through; "
        "integers wrap."
    ),
    "6.1": "`all_reduce` works in place, and gives the same bits to all ranks.",
    "6.2": "`all_reduce_coalesced` does the same for a list, and warns that it is deprecated.",
    "6.3": "`reduce` gives the result to its root.",
    "6.4": "`reduce_scatter` takes one tensor per rank.",
    "6.5": "`reduce_scatter_tensor` takes its input as a concatenation or as a stack, and refuses another size.",
    "6.6": "`_reduce_scatter_base` warns that it is deprecated, and gives the same result.",
    "6.7": "Sparse tensors are summed, or refused.",
    "7.1": "`broadcast` gives the root's tensor to all, and leaves the root's tensor unchanged.",
    "7.2": (
        "`all_gather` gives the tensors in the order of ranks, also into views of one tensor, and takes sizes that "
        "differ by rank."
    ),
    "7.3": "`all_gather_into_tensor` takes its output as a concatenation or as a stack, and works in place.",
    "7.4": "`all_gather_coalesced` does the same for lists, and warns that it is deprecated.",
    "7.5": "`gather` needs its list on the root and refuses it elsewhere; the default root is the global rank 0.",
    "7.6": "`scatter` is the mirror of it.",
    "7.7": "`all_to_all_single` takes sizes on both sides, on one or on none, and refuses sizes that do not fit.",
    "7.8": "`all_to_all` takes one tensor per rank, of any size.",
    "7.9": "The tables in torch's documentation are right.",
    "8.1": "Calls of one kind in one block are sent together, sync and async, on a part, and by a device.",
    "8.2": "The handle of a call inside of a block may not be used.",
    "8.3": "After a block whose body raised, the next call works.",
    "8.4": "Calls of several kinds, or with several reduce operations, are right or refused.",
    "9.1": "`all_gather_object` gives any objects in the order of ranks; one that cannot be pickled is an error.",
    "9.2": "`gather_object` does so at the root.",
    "9.3": "`broadcast_object_list` replaces the entries of all but the root.",
    "9.4": "`scatter_object_list` writes the first entry only, and refuses an empty output.",
    "9.5": "`send_object_list` and `recv_object_list` send several objects, and give the sender's rank.",
    "10.1": "No rank leaves `barrier` before all members have come.",
    "10.2": "`monitored_barrier` names the ranks that did not come, within its limit.",
    "11.1": "`current_process_group` is the group of the innermost block, and the former one after it.",
    "11.2": "The methods of a group take plain tensors, roots, operations and limits, and the limit of a call holds.",
    "11.3": "`split_group` of a group gives members a group with its own limit and name, and None to others.",
    "11.4": "`merge_remote_group` makes one group of several.",
    "11.5": "`shutdown` may be called twice.",
    "11.6": (
        "Under the debug wrapper another operation, shape or dtype is an error on every rank at the call, a rank that "
        "does not come is named, and right programs stay right."
    ),
    "11.7": "Functional collectives give the values of c10d's functions, and gradients.",
}

# Rows without a cell of their own: cells of other rows that show them, or why none can.
WITHOUT_CELL: dict[str, str] = {
    "1.9": "cells of other rows: all_reduce/sum/complex64/* broadcast/complex64/* all_to_all/*/complex64/*",
    "3.5": "of nccl alone, whose groups need GPUs that the project's own runs do not have",
}


def contract_page() -> str:
    """Return the rows as a page of Markdown."""
    lines = [
        "# What does torch.distributed promise?",
        "",
        "These are the rows of the conformance kit ([conformance](conformance.md)). Each cell of a matrix names its",
        "row. `python -m dist_testing.conformance --contract` prints this page.",
    ]
    for section, title in SECTIONS.items():
        lines += ["", f"## {section}. {title}", "", "| row | promise |", "|---|---|"]
        for row, text in ROWS.items():
            if row.partition(".")[0] == section:
                remark = f" (No cell of its own: {WITHOUT_CELL[row]}.)" if row in WITHOUT_CELL else ""
                lines.append(f"| {row} | {text}{remark} |")
    return "\n".join(lines) + "\n"
