"""Runs a cell of the table: prepares guarded tensors, calls the operation twice, and compares with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dist_testing.conformance.axes import SHAPES, is_defined, members, part_length, root_of
from dist_testing.conformance.cell import Cell, Status
from dist_testing.conformance.kit import Kit, WrongError
from dist_testing.conformance.on_rank.oracle import FACTOR, contribution, moved, reduced
from dist_testing.conformance.on_rank.tensors import Guarded, check_same, guarded


class Site:
    """One call: the group with its ranks, and the tensors to compare when it is over."""

    arguments: tuple[Any, ...] = ()  # those of the call that have no name; for scripts that make it in another way

    def __init__(self, kit: Kit, cell: Cell, call: int, shape: tuple[int, ...] | None = None) -> None:
        """Prepare the call of this number; by default with tensors of the cell's size."""
        self.kit = kit
        self.cell = cell
        self.call = call
        self.ranks = members(cell.group, kit.size)
        self.group = kit.group(cell.group)
        self.me = kit.rank
        self.place = self.ranks.index(self.me) if self.me in self.ranks else -1
        self.root = root_of(cell.root, self.ranks) if cell.root else -1  # the global rank
        self.is_root = self.me == self.root
        self.shape = SHAPES[cell.size] if shape is None else shape
        self.inputs: dict[str, Guarded] = {}
        self.outputs: dict[str, tuple[Guarded, Tensor | None]] = {}
        # Makes the call; takes `async_op`. None on a rank that is no member.
        self.run = _OPERATIONS[cell.operation](self) if self.place >= 0 else None

    def by_name(self, argument: str, rank: int) -> dict[str, int]:
        """Return a global rank as an argument: {"src": global rank} or {"group_src": rank in the group}."""
        by_place = self.cell.root.endswith("_in_group")
        return {f"group_{argument}": self.ranks.index(rank)} if by_place else {argument: rank}

    def _new(self, value: Tensor) -> Guarded:
        return guarded(value.shape, self.cell.dtype, self.cell.layout, self.kit.device)

    def input(self, value: Any, name: str = "input") -> Any:
        """Return a tensor that the backend may only read, or a list of such tensors for a list of values."""
        if isinstance(value, list):
            return [self.input(one, f"{name}[{index}]") for index, one in enumerate(value)]
        self.inputs[name] = self._new(value).fill(value)
        return self.inputs[name].view

    def output(self, expected: Any, name: str = "output") -> Any:
        """Return a tensor that the backend has to write, or a list of such tensors for a list of values."""
        if isinstance(expected, list):
            return [self.output(one, f"{name}[{index}]") for index, one in enumerate(expected)]
        made = self._new(expected).unlike(expected)
        self.outputs[name] = (made, expected)
        return made.view

    def in_place(self, part: int = 0, name: str = "tensor", *, has_result: bool = True) -> Tensor:
        """Return a tensor that the backend reads, and reduces in place unless the result is undefined on this rank."""
        value = self.given(part)
        made = self._new(value).fill(value)
        self.outputs[name] = (made, self.reduced(part) if has_result else None)
        return made.view

    def moved(self, source: int, part: int, shape: Sequence[int] | None = None) -> Tensor:
        """Return what one rank sends in one part."""
        return moved(self.cell.dtype, source, part, self.shape if shape is None else shape, self.call)

    def every(self) -> list[Tensor]:
        """Return what the ranks of the group send, each one part."""
        return [self.moved(rank, 0) for rank in self.ranks]

    def given(self, part: int) -> Tensor:
        """Return what this rank gives to a reduction."""
        return contribution(self.cell.op, self.cell.dtype, self.ranks, self.me, part, self.shape, self.call)

    def parts(self) -> list[Tensor]:
        """Return what this rank gives to the reduction of each part."""
        return [self.given(part) for part in range(len(self.ranks))]

    def reduced(self, part: int) -> Tensor:
        """Return the reduction."""
        if not is_defined(self.cell.op, self.cell.dtype):
            # Nothing is right, so nothing is compared: a call that returns is wrong.
            return self.given(part)
        return reduced(self.cell.op, self.cell.dtype, self.ranks, part, self.shape, self.call)

    def joined(self, parts: list[Tensor]) -> Tensor:
        """Return one tensor of these: a stack where the cell asks for it, or where there is nothing to concatenate."""
        return torch.stack(parts) if self.cell.variant == "stack" or not self.shape else torch.cat(parts)

    def bound(self, *given: Any, **more: Any) -> Callable[[bool], Any]:
        """Return the call of the cell's operation with these arguments; it takes `async_op`."""
        function = self.kit.need(self.cell.operation)
        self.arguments = given
        return lambda is_async: function(*given, **more, group=self.group, async_op=is_async)

    def compare(self) -> None:
        """Raise `WrongError` if a tensor differs from the oracle's, after the end of the call."""
        self.kit.synchronize()
        for name, (made, expected) in self.outputs.items():
            if expected is not None:
                check_same(f"call {self.call}: {name}", made.view, expected)
            made.check_guards(f"call {self.call}: {name}")
        for name, made in self.inputs.items():
            made.check_unchanged(f"call {self.call}: {name}")

    @property
    def op(self) -> Any:
        """The reduce operation, for torch."""
        if self.cell.op == "premul_sum":
            return self.kit.dist._make_nccl_premul_sum(float(FACTOR))
        return getattr(self.kit.dist.ReduceOp, self.cell.op.upper())


def _exchanged(site: Site) -> tuple[list[Tensor], list[Tensor]]:
    """Return what this rank sends to each rank of the group, and what it gets from each."""

    def part(source: int, target: int) -> Tensor:
        length = part_length(source, target, site.call)
        return site.moved(source, target, (length, *site.shape[1:]) if site.cell.variant == "uneven" else None)

    return [part(site.me, to) for to in site.ranks], [part(by, site.me) for by in site.ranks]


def _all_to_all(site: Site) -> Callable[[bool], Any]:
    sent, got = _exchanged(site)
    return site.bound(site.output(got), site.input(sent))


def _all_to_all_single(site: Site) -> Callable[[bool], Any]:
    sent, got = _exchanged(site)
    uneven = site.cell.variant == "uneven"
    sizes = ([len(part) for part in got], [len(part) for part in sent]) if uneven else (None, None)
    return site.bound(site.output(torch.cat(got)), site.input(torch.cat(sent)), *sizes)


def _ring(site: Site) -> Callable[[bool], Any]:
    """Send to the next rank of the group and receive from the one before it."""
    count = len(site.ranks)
    after, before = site.ranks[(site.place + 1) % count], site.ranks[(site.place - 1) % count]
    source, output = site.input(site.moved(site.me, after)), site.output(site.moved(before, site.me))
    dist, group = site.kit.dist, site.group
    to, by = site.by_name("dst", after), site.by_name("src", before)

    def run(is_async: bool) -> Any:
        if is_async:
            # Messages of one pair of ranks arrive in their order, so the handles need no tags.
            return [dist.isend(source, **to, group=group), dist.irecv(output, **by, group=group)]
        if site.place % 2 == 0 and not (site.place == count - 1 and count > 1):
            dist.send(source, **to, group=group)
            sender = dist.recv(output, **by, group=group)
        else:
            sender = dist.recv(output, **by, group=group)
            dist.send(source, **to, group=group)
        site.kit.equal(sender, before, "the sender that recv() returns")
        return None

    return run


def _batch(site: Site) -> Callable[[bool], Any]:
    count = len(site.ranks)
    dist = site.kit.dist
    receives, sends = [], []
    for step in range(1, count) if count > 1 else range(1):
        to, by = site.ranks[(site.place + step) % count], site.ranks[(site.place - step) % count]
        output = site.output(site.moved(by, site.me), f"output from {by}")
        source = site.input(site.moved(site.me, to), f"input to {to}")
        receives.append(dist.P2POp(dist.irecv, output, group=site.group, **site.by_name("peer", by)))
        sends.append(dist.P2POp(dist.isend, source, group=site.group, **site.by_name("peer", to)))
    # Receives first: a backend that starts one after the other would wait forever.
    return lambda _: dist.batch_isend_irecv([*receives, *sends])


def _all_gather_into_tensor(site: Site) -> Callable[[bool], Any]:
    return site.bound(site.output(site.joined(site.every())), site.input(site.moved(site.me, 0)))


def _reduce_scatter_tensor(site: Site) -> Callable[[bool], Any]:
    return site.bound(site.output(site.reduced(site.place)), site.input(site.joined(site.parts())), op=site.op)


_OPERATIONS: dict[str, Callable[[Site], Callable[[bool], Any]]] = {
    "all_gather": lambda site: site.bound(site.output(site.every()), site.input(site.moved(site.me, 0))),
    "all_gather_coalesced": lambda site: site.bound(
        site.output([[site.moved(rank, part) for part in range(2)] for rank in site.ranks]),
        site.input([site.moved(site.me, part) for part in range(2)]),
    ),
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_single": _all_gather_into_tensor,
    "all_reduce": lambda site: site.bound(site.in_place(), op=site.op),
    "all_reduce_coalesced": lambda site: site.bound(
        [site.in_place(part, f"tensor[{part}]") for part in range(2)], op=site.op
    ),
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "barrier": Site.bound,
    "batch_isend_irecv": _batch,
    "broadcast": lambda site: site.bound(
        (site.input if site.is_root else site.output)(site.moved(site.root, 0), "tensor"),
        **site.by_name("src", site.root),
    ),
    "gather": lambda site: site.bound(
        site.input(site.moved(site.me, 0)),
        site.output(site.every()) if site.is_root else None,
        **site.by_name("dst", site.root),
    ),
    # The tensors of other ranks are undefined; a script looks at what becomes of them.
    "reduce": lambda site: site.bound(
        site.in_place(has_result=site.is_root), **site.by_name("dst", site.root), op=site.op
    ),
    "reduce_scatter": lambda site: site.bound(
        site.output(site.reduced(site.place)), site.input(site.parts()), op=site.op
    ),
    "reduce_scatter_single": _reduce_scatter_tensor,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "scatter": lambda site: site.bound(
        site.output(site.moved(site.root, site.me)),
        site.input([site.moved(site.me, rank) for rank in site.ranks]) if site.is_root else None,
        **site.by_name("src", site.root),
    ),
    "send_recv": _ring,
}


def run_table_cell(kit: Kit) -> None:
    """Run one cell of the table on this rank. It ends as a script does: see `rows.script`."""
    cell = kit.cell
    sites = [Site(kit, cell, number) for number in range(2)]
    runs = [site.run for site in sites if site.run is not None]
    if cell.mode == "async":
        started = [_handles(run(True)) for run in runs]
        for handles in reversed(started):
            for handle in reversed(handles):
                handle.wait()
    else:
        for run in runs:
            found = run(False)
            kit.check(found is None, f"the call without async_op returned {type(found).__name__}; expected None")
    if runs and cell.contract is Status.REFUSES and not is_defined(cell.op, cell.dtype):
        raise WrongError(f"returned a result, but {cell.op} of {cell.dtype} has no value")
    for site in sites:
        site.compare()


def _handles(found: Any) -> list[Any]:
    handles = found if isinstance(found, list) else [found]
    if not handles or any(handle is None for handle in handles):
        raise WrongError(f"the asynchronous call returned {found!r}; expected a handle")
    return handles
