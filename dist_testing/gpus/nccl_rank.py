"""Lets ranks of NCCL share a GPU."""

from __future__ import annotations

import os
import socket

from dist_testing.core.rank.hooks import RankService, ServedRank

# $NCCL_HOSTID, $NCCL_NET (library): with ranks that share a GPU: a host name for each rank, and the transport of NCCL
# (default: HOST-rank-RANK, Socket).
_HOST_VARIABLE = "NCCL_HOSTID"
_NETWORK_VARIABLE = "NCCL_NET"


class OwnHost(RankService):
    """Has NCCL believe that each rank which shares its GPU runs on a host of its own.

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
