"""The part of add-ons that takes place on the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dist_testing.core.ground.add_ons import add_on_named, blaming
from dist_testing.core.ground.case import CaseBody
from dist_testing.core.process.launcher_messages import RankStart
from dist_testing.core.rank.reporter import Reporter


@dataclass(frozen=True, slots=True)
class ServedRank:
    """A rank and what it tells the runner.

    Attributes:
        start: What it was started with. If its ranks are threads, that of rank 0: they have a service together.
        reporter: Sends its outcomes; `reporter.runner.ask` asks the watcher of an add-on.
    """

    start: RankStart
    reporter: Reporter


class RankService:
    """Work on each rank of a world: the part `rank_service` of an add-on, with defaults that do nothing.

    Every rank of a world whose first case the add-on is wanted for makes one, in its own process. Ranks that are
    threads share one. Those of ranks that torchrun, srun or mpirun started get no `start` and no `close`.

        class OneThread(RankService):
            def __init__(self, rank: ServedRank) -> None:
                self._before = torch.get_num_threads()

            def case_end(self, body: CaseBody) -> None:
                if torch.get_num_threads() != self._before:
                    raise StateLeakError("The test has changed torch's number of threads. ...")
    """

    def __init__(self, rank: ServedRank) -> None:
        """Every rank makes its own."""

    def start(self) -> None:
        """The process is the rank: it has its place, its output and its signal handlers. No test has run in it."""

    def case_begin(self, body: CaseBody) -> None:
        """A case begins. The world and its group exist."""

    def case_end(self, body: CaseBody) -> None:
        """The test has passed on this rank. An exception fails it here, as if the test had raised it."""

    def close(self) -> None:
        """The rank's last case is over; it has reported."""


class RankServices:
    """The services of a rank, in the order of the add-ons. They end in the opposite one."""

    def __init__(self, rank: ServedRank) -> None:
        self._made: list[tuple[str, RankService]] = []
        for name in rank.start.request.services:
            with blaming(name, "its rank service"):
                self._made.append((name, add_on_named(name, f"rank {rank.start.rank}").load("rank_service")(rank)))

    def tell(self, event: Literal["start", "case_begin", "case_end", "close"], *facts: CaseBody) -> None:
        """Call this method of each."""
        for name, service in self._made[::-1] if event in ("case_end", "close") else self._made:
            with blaming(name, "its rank service"):
                getattr(service, event)(*facts)
