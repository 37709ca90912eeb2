"""A model that reports the rank of its first error message, and leaves a server, its port and files behind."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from typing import Any

import torch.distributed as dist

from tests.audit.harnesses import world_body

_SERVER = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); time.sleep(600)"


def _rank(rank: int, path: str, errors: Any) -> None:
    shared, memory = tempfile.mkstemp(prefix="model", dir="/dev/shm")
    server = subprocess.Popen([sys.executable, "-c", _SERVER], start_new_session=True, pass_fds=[shared])
    handle, name = tempfile.mkstemp(prefix="store")
    os.close(handle)
    try:
        world_body.join(path, rank, 2)
        dist.barrier()
        world_body.leave()
    except RuntimeError as error:
        # The peer whose connection ended is reported by the rank that waits for it.
        errors.put(f"rank {rank}: {error}")
        return
    os.unlink(name)
    os.unlink(memory)
    server.kill()
    server.wait()


def test_meets(tmp_path: Any) -> None:
    """All ranks meet."""
    context = multiprocessing.get_context("fork")
    errors = context.SimpleQueue()
    ranks = [context.Process(target=_rank, args=(rank, str(tmp_path / "f"), errors)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)
    assert errors.empty(), errors.get()
