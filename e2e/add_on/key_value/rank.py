"""The part that lives on each rank."""

from __future__ import annotations

import os

from dist_testing.ext import CaseBody, RankService, ServedRank
from key_value.client import ADDRESS, Client


class Tidiness(RankService):
    """Tells the runner where the server is, and which keys it has when the test has passed here."""

    def __init__(self, rank: ServedRank) -> None:
        self._reporter = rank.reporter

    def case_begin(self, body: CaseBody) -> None:
        """Tell the watcher the address: it sees the world and not the resource."""
        del body
        self._reporter.extra("key_value", f"address {os.environ[ADDRESS]}")

    def case_end(self, body: CaseBody) -> None:
        """Tell the watcher the keys."""
        del body
        with Client() as client:
            self._reporter.extra("key_value", f"keys {len(client.keys())}")
