"""What a cell gets on its rank: the world, torch, groups by name, and checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any

from dist_testing.conformance.axes import members
from dist_testing.conformance.cell import WHOLE, Cell
from dist_testing.core.rank.rank_world import RankWorld


class WrongError(AssertionError):
    """The backend returned something that it must not return."""


class AbsentError(Exception):
    """This torch has no such function."""


class Groups:
    """The sub-groups of a world, each made once. All ranks ask for the same groups in the same order."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def get(self, dist: ModuleType, name: str, size: int) -> Any:
        """Return the handle of a group; None for the default group by None."""
        if name == WHOLE:
            return None
        if name == "world":
            return dist.group.WORLD
        if name not in self._made:
            self._made[name] = dist.new_group(list(members(name, size)))
        return self._made[name]


class Kit:
    """One cell on one rank.

    Attributes:
        cell: The cell.
        world: The rank's world.
        rank: This rank, from 0.
        size: Number of ranks.
        torch: The module `torch`.
        dist: The module `torch.distributed`.
        c10d: The module `torch.distributed.distributed_c10d`.
        device: Where tensors lie.
        backend: torch's name of the backend.
    """

    def __init__(self, cell: Cell, world: RankWorld, groups: Groups, number: int) -> None:
        """Make the kit of one cell.

        Args:
            cell: The cell.
            world: The rank's world.
            groups: The sub-groups of the world.
            number: Number of the cell in its world, for keys of the store.
        """
        # Only ranks import it.
        import torch
        import torch.distributed as dist

        self.cell = cell
        self.world = world
        self.rank = world.rank
        self.size = world.size
        # As modules of any content: torch's stubs have neither all names nor all forms of calls.
        self.torch: Any = torch
        self.dist: Any = dist
        self.c10d: Any = dist.distributed_c10d
        self.device = world.device
        self.backend = world.backend
        self._groups = groups
        self._number = number
        self._meetings = 0
        self.mine: list[Any] = []

    def group(self, name: str) -> Any:
        """Return the handle of a group by its name (`groups.GROUPS`)."""
        return self._groups.get(self.dist, name, self.size)

    def init(self, seconds: float | None = None, **more: Any) -> None:
        """Make the default group of all ranks.

        Args:
            seconds: Its limit; None for torch's.
            **more: More arguments of `torch.distributed.init_process_group`, or others in place of the world's own. By
                default the group uses the world's store.
        """
        if seconds is not None:
            more["timeout"] = timedelta(seconds=seconds)
        own = {"store": self.world.store, "rank": self.rank, "world_size": self.size}
        self.dist.init_process_group(self.backend, **{**own, **more})

    def new_group(self, ranks: Sequence[int] | None = None, seconds: float | None = None, **more: Any) -> Any:
        """Make a group of this cell's own. The cell destroys it at its end.

        Args:
            ranks: Its global ranks; None for all.
            seconds: Its limit; None for torch's.
            **more: More arguments of `torch.distributed.new_group`.
        """
        limit = None if seconds is None else timedelta(seconds=seconds)
        made = self.dist.new_group(None if ranks is None else list(ranks), timeout=limit, **more)
        self.mine.append(made)
        return made

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

    def key(self, name: str) -> str:
        """Return a key of the world's store that no other cell uses."""
        return f"cell/{self._number}/{name}"

    def meet(self) -> None:
        """Wait until all ranks of the world have come here, by the store and not by the backend.

        Raises:
            torch.distributed.DistStoreError: If a rank does not come.
        """
        self._meetings += 1
        key = self.key(f"meet/{self._meetings}")
        store = self.world.store
        if store.add(f"{key}/arrived", 1) == self.size:
            store.set(f"{key}/open", "1")
        store.wait([f"{key}/open"])

    def need(self, name: str) -> Any:
        """Return a function of `torch.distributed` that not every version of torch has.

        Raises:
            AbsentError: If this one does not have it.
        """
        for module in (self.dist, self.c10d):
            if (found := getattr(module, name, None)) is not None:
                return found
        raise AbsentError(f"torch {self.torch.__version__} has no {name}")

    def check(self, holds: Any, text: str) -> None:
        """Check a fact.

        Args:
            holds: Whether it holds.
            text: What was observed if it does not.

        Raises:
            WrongError: If it does not hold.
        """
        if not holds:
            raise WrongError(text)

    def equal(self, actual: Any, expected: Any, what: str) -> None:
        """Check that two values are equal; tensors by their values and dtype.

        Raises:
            WrongError: If they are not.
        """
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

    @contextmanager
    def raises(self, kinds: type[BaseException] | tuple[type[BaseException], ...], pattern: str = "") -> Iterator[None]:
        """Check that the block raises an exception of a kind whose text contains a pattern.

        Raises:
            WrongError: If it raises none, another kind, or another text.
        """
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
        """Call something that must fail with any clean error, and return the error's first line.

        Raises:
            WrongError: If it returns.
        """
        try:
            found = call()
            if found is not None and hasattr(found, "wait"):
                found.wait()
        except Exception as error:
            return first_line(error)
        raise WrongError("no error; expected one")

    def end(self) -> None:
        """Destroy the groups that the cell has made."""
        for group in reversed(self.mine):
            if group is not None and group != self.dist.GroupMember.NON_GROUP_MEMBER:
                try:
                    self.dist.destroy_process_group(group)
                except (ValueError, AssertionError):
                    # The cell has destroyed it.
                    continue


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text that is not empty, without what differs from run to run."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    # Marks of the logging of C++: rank, time, file and line.
    line = re.sub(r"\[rank\d+\]:|\[[A-Z]\d{4} [\d:.]+ [^\]]*\]|\[[^\]\s]*\.(cpp|cc|h|hpp):\d+\]", "", line)
    line = re.sub(r"\[enforce fail at [^\]]*\]", "", line)
    line = re.sub(r"\[?127\.0\.0\.1\]?:\d+(\$\d+)?", "a peer", line)
    line = re.sub(r"0x[0-9a-f]+", "0x...", line)
    return line.strip()[:200]
