"""Bugs of groups, messages, handles and limits, numbers 32 to 51."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from tests.conformance.mutant_tools import (
    after,
    copied_options,
    die,
    global_root,
    plant,
    wrap,
    wrap_all_to_all,
)


@plant(32)
def _object_root_is_global() -> None:
    def mutant(call: Any, group: Any, tensors: Any, opts: Any = None, *given: Any, **more: Any) -> Any:
        # Objects travel as their sizes and their bytes.
        if opts is not None and tensors[0].dtype in (torch.uint8, torch.int64):
            opts = copied_options(opts, rootRank=global_root(group, opts.rootRank))
        return call(group, tensors, opts, *given, **more)

    wrap("broadcast", mutant)


@plant(33)
def _peer_is_global() -> None:
    def mutant(call: Any, group: Any, tensors: Any, peer: int, tag: int) -> Any:
        return call(group, tensors, global_root(group, peer), tag)

    wrap("send", mutant)
    wrap("recv", mutant)


@plant(34)
def _root_is_global() -> None:
    def mutant(call: Any, group: Any, tensors: Any, opts: Any = None, *given: Any, **more: Any) -> Any:
        if opts is not None:
            opts = copied_options(opts, rootRank=global_root(group, opts.rootRank))
        return call(group, tensors, opts, *given, **more)

    wrap("reduce", mutant)


@plant(35)
def _subgroups_are_mixed_up() -> None:
    original: Any = c10d.new_subgroups

    def mutant(*given: Any, **more: Any) -> Any:
        _, every = original(*given, **more)
        return every[0], every

    _replace("new_subgroups", mutant)


@plant(36)
def _call_of_non_member_is_silent() -> None:
    c10d._warn_not_in_group = lambda op_name: None


def _replace(name: str, function: Any) -> None:
    for module in (dist, c10d):
        setattr(module, name, function)


@plant(37)
def _tags_are_ignored() -> None:
    def mutant(call: Any, group: Any, tensors: Any, peer: int, tag: int) -> Any:
        return call(group, tensors, peer, 0)

    wrap("send", mutant)
    wrap("recv", mutant)


@plant(38)
def _tag_is_taken_for_async() -> None:
    def mutant(call: Any, group: Any, tensors: Any, peer: int, tag: int) -> Any:
        work = call(group, tensors, peer, tag)
        if tag == 0:
            work.wait()
        return work

    wrap("send", mutant)


@plant(39)
def _receive_blocks() -> None:
    def mutant(call: Any, group: Any, tensors: Any, peer: int, tag: int) -> Any:
        work = call(group, tensors, peer, tag)
        work.wait()
        return work

    wrap("recv", mutant)


@plant(40)
def _messages_count_as_collectives() -> None:
    def count(call: Any, group: Any, *given: Any) -> Any:
        group.kit_messages = getattr(group, "kit_messages", 0) + 1
        return call(group, *given)

    def meet(call: Any, group: Any, name: str, signature: Any, *given: Any, **more: Any) -> Any:
        return call(group, name, (*signature, getattr(group, "kit_messages", 0)), *given, **more)

    wrap("send", count)
    wrap("recv", count)
    wrap("_meet", meet)


@plant(41)
def _wait_returns_too_early() -> None:
    def mutant(call: Any, group: Any, tensors: Any, *given: Any, **more: Any) -> Any:
        copies = [tensor.clone() for tensor in tensors]

        def later() -> None:
            def copy() -> None:
                for tensor, value in zip(tensors, copies, strict=True):
                    tensor.copy_(value)

            threading.Timer(0.2, copy).start()

        return after(call(group, copies, *given, **more), later)

    wrap("allreduce", mutant)


@plant(42)
def _input_is_not_kept() -> None:
    def mutant(call: Any, group: Any, tensors: Any, peer: int, tag: int) -> Any:
        import weakref

        copy = tensors[0].clone()
        # As if the memory were used again after the last reference is gone.
        weakref.finalize(tensors[0], copy.fill_, -1)
        return call(group, [copy], peer, tag)

    wrap("send", mutant)


@plant(43)
def _handle_never_completes() -> None:
    def mutant(call: Any, group: Any, *given: Any, **more: Any) -> Any:
        work = after(call(group, *given, **more), lambda: None)
        work.is_completed = lambda: False
        return work

    wrap("allreduce", mutant)


@plant(44)
def _batch_outlives_its_group() -> None:
    def mutant(call: Any, group: Any, *given: Any) -> Any:
        work = call(group, *given)
        wait = work.wait

        def after_the_end(*limit: Any) -> Any:
            if group._has_left:
                die("SIGSEGV")
            return wait(*limit)

        work.wait = after_the_end
        return work

    wrap("recv", mutant)


@plant(45)
def _limit_of_the_call_is_dropped() -> None:
    def mutant(call: Any, group: Any, outputs: Any, inputs: Any, opts: Any = None, *given: Any, **more: Any) -> Any:
        if opts is not None and hasattr(opts, "timeout"):
            opts = copied_options(opts, timeout=type(opts)().timeout)
        return call(group, outputs, inputs, opts, *given, **more)

    wrap("gather", mutant)
    wrap("scatter", mutant)


@plant(46)
@plant(51)
def _new_limit_has_no_effect() -> None:
    wrap("set_timeout", lambda call, group, timeout: None)


@plant(47)
def _first_message_ignores_the_limit() -> None:
    def mutant(call: Any, group: Any, tensors: Any, peer: int, tag: int) -> Any:
        work = call(group, tensors, peer, tag)
        wait = work.wait

        def patient(*given: Any) -> Any:
            try:
                return wait(*given)
            except Exception:
                # The rest of a connection attempt whose own limit is far longer.
                time.sleep(4)
                raise

        work.wait = patient
        return work

    wrap("recv", mutant)


@plant(48)
def _lengths_are_not_checked() -> None:
    def mutant(
        call: Any, group: Any, output: Any, source: Any, gets: Any = None, sends: Any = None, *given: Any
    ) -> Any:
        if not gets and not sends and output.dim() and len(output) % group.size():
            rows = len(output) // group.size() * group.size()
            output, source = output[:rows], source[:rows]
        return call(group, output, source, gets, sends, *given)

    wrap_all_to_all(mutant)


@plant(49)
def _root_of_one_tensor_is_global() -> None:
    def mutant(call: Any, group: Any, output: Any, tensor: Any, opts: Any) -> Any:
        return call(group, output, tensor, copied_options(opts, rootRank=global_root(group, opts.rootRank)))

    wrap("gather_single", mutant)


@plant(50)
def _parts_of_one_tensor_are_in_another_order() -> None:
    def mutant(call: Any, group: Any, output: Any, tensor: Any, opts: Any) -> Any:
        return after(call(group, output, tensor, opts), lambda: output.copy_(output.flip(0)))

    wrap("gather_single", mutant)
