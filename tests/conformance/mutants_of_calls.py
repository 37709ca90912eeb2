"""Bugs of groups, messages, handles and limits, numbers 32 to 51."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from tests.conformance.mutant_tools import (
    after,
    change,
    copied_options,
    die,
    global_root,
    plant,
    spoil,
    with_global_root,
    wrap,
)


@change(32, "broadcast")
def _object_root_is_global(group: Any, tensors: Any, opts: Any = None, *rest: Any, **_: Any) -> Any:
    # Objects travel as their sizes and their bytes.
    is_object = tensors[0].dtype in (torch.uint8, torch.int64)
    return (tensors, with_global_root(group, opts), *rest) if is_object else None


@change(33, "send", "recv")
def _peer_is_global(group: Any, tensors: Any, peer: int, tag: int) -> Any:
    return tensors, global_root(group, peer), tag


@change(34, "reduce")
def _root_is_global(group: Any, tensors: Any, opts: Any = None, *rest: Any, **_: Any) -> Any:
    return (tensors, with_global_root(group, opts), *rest)


@plant(35)
def _subgroups_are_mixed_up() -> None:
    original: Any = c10d.new_subgroups

    def mutant(*given: Any, **more: Any) -> Any:
        _, every = original(*given, **more)
        return every[0], every

    modules: tuple[Any, ...] = (dist, c10d)
    for module in modules:
        module.new_subgroups = mutant


@plant(36)
def _call_of_non_member_is_silent() -> None:
    c10d._warn_not_in_group = lambda op_name: None


@change(37, "send", "recv")
def _tags_are_ignored(group: Any, tensors: Any, peer: int, tag: int) -> Any:
    return tensors, peer, 0


@plant(38, "send")
def _tag_is_taken_for_async(group: Any, call: Any, tensors: Any, peer: int, tag: int) -> Any:
    work = call(tensors, peer, tag)
    if tag == 0:
        work.wait()
    return work


@plant(39, "recv")
def _receive_blocks(group: Any, call: Any, *given: Any) -> Any:
    work = call(*given)
    work.wait()
    return work


@plant(40)
def _messages_count_as_collectives() -> None:
    def count(group: Any, call: Any, *given: Any) -> Any:
        group.kit_messages = getattr(group, "kit_messages", 0) + 1
        return call(*given)

    def meet(group: Any, call: Any, name: str, signature: Any, *given: Any, **more: Any) -> Any:
        return call(name, (*signature, getattr(group, "kit_messages", 0)), *given, **more)

    wrap("send", count)
    wrap("recv", count)
    wrap("_meet", meet)


@plant(41, "allreduce")
def _wait_returns_too_early(group: Any, call: Any, tensors: Any, *given: Any, **more: Any) -> Any:
    copies = [tensor.clone() for tensor in tensors]

    def copy() -> None:
        for tensor, value in zip(tensors, copies, strict=True):
            tensor.copy_(value)

    return after(call(copies, *given, **more), lambda: threading.Timer(0.2, copy).start())


@change(42, "send")
def _input_is_not_kept(group: Any, tensors: Any, peer: int, tag: int) -> Any:
    copy = tensors[0].clone()
    # As if the memory were used again after the last reference is gone.
    weakref.finalize(tensors[0], copy.fill_, -1)
    return [copy], peer, tag


@plant(43, "allreduce")
def _handle_never_completes(group: Any, call: Any, *given: Any, **more: Any) -> Any:
    work = after(call(*given, **more), lambda: None)
    work.is_completed = lambda: False
    return work


@plant(44, "recv")
def _batch_outlives_its_group(group: Any, call: Any, *given: Any) -> Any:
    work = call(*given)
    wait = work.wait

    def after_the_end(*limit: Any) -> Any:
        if group._has_left:
            die("SIGSEGV")
        return wait(*limit)

    work.wait = after_the_end
    return work


@change(45, "gather", "scatter")
def _limit_of_the_call_is_dropped(group: Any, outputs: Any, inputs: Any, opts: Any = None, *rest: Any, **_: Any) -> Any:
    if not hasattr(opts, "timeout"):
        return None
    return (outputs, inputs, copied_options(opts, timeout=type(opts)().timeout), *rest)


@plant(46, "set_timeout")
@plant(51, "set_timeout")
def _new_limit_has_no_effect(group: Any, call: Any, timeout: Any) -> None:
    """Change nothing."""


@plant(47, "recv")
def _first_message_ignores_the_limit(group: Any, call: Any, *given: Any) -> Any:
    work = call(*given)
    wait = work.wait

    def patient(*limit: Any) -> Any:
        try:
            return wait(*limit)
        except Exception:
            # The rest of a connection attempt whose own limit is far longer.
            time.sleep(4)
            raise

    work.wait = patient
    return work


@change(48, "alltoall_base", "all_to_all_single")
def _lengths_are_not_checked(
    group: Any, output: Any, source: Any, gets: Any = None, sends: Any = None, *rest: Any
) -> Any:
    if gets or sends or not output.dim() or not len(output) % group.size():
        return None
    rows = len(output) // group.size() * group.size()
    return (output[:rows], source[:rows], gets, sends, *rest)


@change(49, "gather_single")
def _root_of_one_tensor_is_global(group: Any, output: Any, tensor: Any, opts: Any) -> Any:
    return output, tensor, with_global_root(group, opts)


@spoil(50, "gather_single")
def _parts_of_one_tensor_are_in_another_order(group: Any, output: Any, *_: Any) -> None:
    output.copy_(output.flip(0))
