"""Plays torchrun's agent: starts the ranks of an attached world."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.children import Ended, assert_no_folder_left, start_pytest, write_file
from tests.support.starter import Child, Starter


class Agent:
    """Plays torchrun's agent for its ranks: a store, and variables with its address."""

    def __init__(self, starter: Starter, folder: Path) -> None:
        # Here, because every test of the folder of this fixture would load torch.
        from torch._C._distributed_c10d import TCPStore

        self._starter = starter
        self._folder = folder
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(
        self, size: int, *options: str, sources: dict[int, str] | None = None, env: Mapping[str, str] | None = None
    ) -> list[Child]:
        """Start the ranks; each of `sources` replaces test_cases.py for its rank."""
        children = []
        for rank in range(size):
            file = "test_cases.py"
            if sources and rank in sources:
                write_file(self._folder / f"of-{rank}", file, sources[rank])
                file = f"of-{rank}/{file}"
            rank_env = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RUN_ID": "run",
                "TORCHELASTIC_RESTART_COUNT": "0",
                # The agent's address, on machines whose name has none.
                "GLOO_SOCKET_IFNAME": "lo",
            }
            children.append(
                start_pytest(self._starter, self._folder, "-rA", *options, file, env={**rank_env, **(env or {})})
            )
        return children

    def run(self, source: str, *options: str, size: int = 2) -> list[Ended]:
        """Run a file on every rank to its end, and check that nothing is left."""
        write_file(self._folder, "test_cases.py", source)
        ended = [Ended(child.wait(), child.log) for child in self.start(size, *options)]
        assert_no_folder_left(self._folder)
        return ended
