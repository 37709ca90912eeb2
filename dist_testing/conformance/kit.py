"""What a cell gets on its rank: the world, torch, groups by name, and checks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from dist_testing.conformance.axes import members
from dist_testing.conformance.cell import WHOLE, Cell
from dist_testing.core.rank.rank_world import RankWorld


class WrongError(AssertionError):
    """The backend returned something that it must not return."""


class AbsentError(Exception):
    """This torch has no such function."""


class Kit:
    """One cell on one rank."""

    def __init__(self, cell: Cell, world: RankWorld, groups: dict[str, Any], number: int) -> None:
        """Make the kit of the cell of this number in its world; `groups` are those that the world has made."""
        # Only ranks import it.
        import torch
        import torch.distributed as dist

        self.cell = cell
        self.world = world
        self.rank = world.rank
        self.size = world.size
        self.ranks = members(cell.group, world.size)  # global ranks of the cell's group
        # As modules of any content: torch's stubs have neither all names nor all forms of calls.
        self.torch: Any = torch
        self.dist: Any = dist
        self.c10d: Any = dist.distributed_c10d
        self.device = world.device
        self.backend = world.backend  # torch's name of it
        self.mine: list[Any] = []  # groups that the cell has made
        # `on_rank.table.Site` with this kit: a module of scripts cannot import it, as it imports torch.
        self.site: Callable[..., Any] | None = None
        self._groups = groups
        self._number = number
        self._meetings = 0

    def group(self, name: str) -> Any:
        """Return the handle of a group by its name (`axes.GROUPS`); None for the default group by None or by "".

        Each group of a world is made once. All ranks ask for the same groups in the same order.
        """
        if name in ("", WHOLE):
            return None
        if name == "world":
            return self.dist.group.WORLD
        if name not in self._groups:
            self._groups[name] = self.dist.new_group(list(members(name, self.size)))
        return self._groups[name]

    def init(self, seconds: float | None = None, **more: Any) -> None:
        """Make the default group of all ranks, with the world's store, or with other arguments in `more`.

        `seconds` is its limit; None for torch's.
        """
        limit = None if seconds is None else timedelta(seconds=seconds)
        own = {"store": self.world.store, "rank": self.rank, "world_size": self.size, "timeout": limit}
        self.dist.init_process_group(self.backend, **{**own, **more})

    def new_group(self, ranks: list[int] | None = None, **more: Any) -> Any:
        """Make a group of these global ranks, by default of all. The cell destroys it at its end."""
        self.mine.append(self.dist.new_group(ranks, **more))
        return self.mine[-1]

    def call(self, operation: str, number: int = 0, op: str = "sum", root: str = "first") -> Any:
        """Return a call of the table (`on_rank.table.Site`) on small tensors, by all ranks."""
        assert self.site is not None
        axes: dict[str, Any] = {"op": op, "dtype": "float32", "layout": "contiguous", "root": root, "group": WHOLE}
        return self.site(replace(self.cell, operation=operation, variant="", **axes), number, (513,))

    def tensor(self, *values: Any, dtype: str = "float32") -> Any:
        """Return a tensor of these values, one-dimensional."""
        return self.torch.tensor(list(values), dtype=getattr(self.torch, dtype), device=self.device)

    def full(self, value: float, count: int = 1) -> Any:
        """Return a one-dimensional tensor of `count` elements that have this value."""
        return self.torch.full((count,), float(value), device=self.device)

    def arange(self, count: int) -> Any:
        """Return a tensor of the numbers from 0."""
        return self.torch.arange(float(count), device=self.device)

    def check_sum(self, group: Any = None, ranks: Sequence[int] | None = None) -> None:
        """Check a sum over a group: `ranks` are the global ranks of its members, all by default."""
        ranks = range(self.size) if ranks is None else ranks
        tensor = self.tensor(self.rank + 1)
        self.dist.all_reduce(tensor, group=group)
        self.equal(tensor, [float(sum(rank + 1 for rank in ranks))], f"the sum over {list(ranks)}")

    def check_gather(self, group: Any = None, ranks: Sequence[int] | None = None) -> None:
        """Check a gathering in a group, whose output differs from the input also in a group of one rank."""
        ranks = range(self.size) if ranks is None else ranks
        output = self.full(-1, len(ranks))
        try:
            # A block that is still open collects it.
            self.dist.all_gather_into_tensor(output, self.tensor(self.rank + 1), group=group)
        except (NotImplementedError, RuntimeError):
            self.dist.all_gather(list(output.split(1)), self.tensor(self.rank + 1), group=group)
        self.equal(output, [float(rank + 1) for rank in ranks], f"what {list(ranks)} gather")

    def key(self, name: str) -> str:
        """Return a key of the world's store that no other cell uses."""
        return f"cell/{self._number}/{name}"

    def meet(self) -> None:
        """Wait until all ranks of the world have come here, by the store and not by the backend."""
        self._meetings += 1
        key = self.key(f"meet/{self._meetings}")
        store = self.world.store
        if store.add(f"{key}/arrived", 1) == self.size:
            store.set(f"{key}/open", "1")
        store.wait([f"{key}/open"])

    def synchronize(self) -> None:
        """Wait until the device has done all that it was told."""
        if self.device.type != "cpu":
            self.torch.get_device_module(self.device.type).synchronize(self.device)

    def need(self, name: str, *places: Any) -> Any:
        """Return an attribute, by default a function of `torch.distributed`, of the first place that has it.

        Raises:
            AbsentError: If this version of torch does not have it.
        """
        for place in places or (self.dist, self.c10d):
            if (found := getattr(place, name, None)) is not None:
                return found
        raise AbsentError(f"torch {self.torch.__version__} has no {name}")

    def check(self, holds: Any, text: str) -> None:
        """Raise `WrongError` with a text about what was observed if something does not hold."""
        if not holds:
            raise WrongError(text)

    def equal(self, actual: Any, expected: Any, what: str) -> None:
        """Raise `WrongError` if two values differ; tensors are compared by their values and dtype."""
        if isinstance(actual, self.torch.Tensor):
            actual = actual.detach().cpu()
            if not isinstance(expected, self.torch.Tensor):
                expected = self.torch.tensor(expected, dtype=actual.dtype)
            same = actual.dtype == expected.dtype and self.torch.equal(actual, expected)
            actual, expected = actual.tolist(), expected.tolist()
        else:
            same = actual == expected
        if not same:
            raise WrongError(f"{what} is {actual!r}; expected {expected!r}")

    @contextlib.contextmanager
    def raises(self, kinds: type[BaseException] | tuple[type[BaseException], ...], pattern: str = "") -> Iterator[None]:
        """Raise `WrongError` if the block raises none of these exceptions with a text that contains the pattern."""
        wanted = kinds.__name__ if isinstance(kinds, type) else " or ".join(kind.__name__ for kind in kinds)
        try:
            yield
        except WrongError:
            raise
        except Exception as error:
            if not isinstance(error, kinds):
                raise WrongError(f"{type(error).__name__} instead of {wanted}: {first_line(error)}") from error
            if pattern and not re.search(pattern, str(error)):
                raise WrongError(f"{type(error).__name__} without {pattern!r}: {first_line(error)}") from error
            return
        raise WrongError(f"no error; expected {wanted}{f' with {pattern!r}' if pattern else ''}")

    def refused(self, call: Callable[[], Any]) -> str:
        """Return the first line of the error that a call fails with; raise `WrongError` if it returns."""
        try:
            found = call()
            if hasattr(found, "wait"):
                found.wait()
        except Exception as error:
            return first_line(error)
        raise WrongError("no error; expected one")

    def end(self) -> None:
        """Destroy the groups that the cell has made."""
        for group in reversed(self.mine):
            # None would be the default group. An error: the cell has destroyed it.
            if group is not None:
                with contextlib.suppress(ValueError, AssertionError):
                    self.dist.destroy_process_group(group)


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text that is not empty, without what differs from run to run."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    # Marks of the logging of C++: rank, time, file and line.
    line = re.sub(r"\[rank\d+\]:|\[[A-Z]\d{4} [\d:.]+ [^\]]*\]|\[[^\]\s]*\.(cpp|cc|h|hpp):\d+\]", "", line)
    line = re.sub(r"\[enforce fail at [^\]]*\]", "", line)
    line = re.sub(r"\[?127\.0\.0\.1\]?:\d+(\$\d+)?", "a peer", line)
    line = re.sub(r"0x[0-9a-f]+", "0x...", line)
    # Bytes that are no UTF-8, as in a name of a file, would keep the whole matrix from being written.
    return line.strip()[:200].encode(errors="backslashreplace").decode()
