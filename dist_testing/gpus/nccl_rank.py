"""What a rank of NCCL needs beside its GPU: a host of its own if it shares one, and a watchdog that imports nothing."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from dist_testing.core.ground.case import CaseBody
from dist_testing.core.rank.hooks import RankService, ServedRank

# $NCCL_HOSTID, $NCCL_NET (library): with ranks that share a GPU: a host name for each rank, and the transport of NCCL
# (default: HOST-rank-RANK, Socket).
_HOST_VARIABLE = "NCCL_HOSTID"
_NETWORK_VARIABLE = "NCCL_NET"


# torch imports it when an attribute of this name is asked for, which takes seconds.
_COMPILER = "_inductor"


class NcclRank(RankService):
    """Has NCCL believe that each rank which shares its GPU runs on a host of its own, and keeps its watchdog short.

    NCCL refuses two ranks of one host with the same GPU ("Duplicate GPU detected"), because it would connect them by
    memory that both reach. It tells hosts apart by `NCCL_HOSTID` (NCCL's user guide, environment variables). Ranks of
    different hosts talk through sockets, here those of the loopback interface, which needs no second GPU.
    """

    def __init__(self, rank: ServedRank) -> None:
        devices = rank.start.request.settings.devices
        self._rank = rank.start.rank
        self._shares = len(set(devices)) < len(devices)

    def start(self) -> None:
        """Set the variables before NCCL reads them, which it does once."""
        if self._shares:
            os.environ.setdefault(_HOST_VARIABLE, f"{socket.gethostname()}-rank-{self._rank}")
            # A card for InfiniBand cannot connect a machine with itself everywhere.
            os.environ.setdefault(_NETWORK_VARIABLE, "Socket")

    def case_begin(self, body: CaseBody) -> None:
        """Do it once the test code has imported torch."""
        import_no_compiler(sys.modules["torch"])


def import_no_compiler(torch: Any) -> None:
    """Stop torch's own threads from importing its compiler.

    When a collective has failed, the watchdog of NCCL makes a thread that turns the recorded stack into text. It asks
    for `torch._inductor`, whose frames it would add (torch/csrc/profiler/python/combined_traceback.cpp), and so imports
    it: seconds of work on ranks that are about to end, in the middle of their stacks. Python code still gets it.
    """
    lazy = torch.__getattr__
    if lazy.__module__ == __name__:
        return

    def attribute(name: str) -> Any:
        if name == _COMPILER and sys._getframe().f_back is None:
            raise AttributeError(f"torch.{name}: not imported for a thread without Python code")
        return lazy(name)

    torch.__getattr__ = attribute
