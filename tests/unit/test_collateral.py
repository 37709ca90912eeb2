"""Which errors only say what a peer did."""

from __future__ import annotations

import pytest

from dist_testing.rank.collateral import collateral

LOST = [
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:41823",
    "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:458] Read error: Connection reset by peer",
    "writev [127.0.0.1]:38551: Broken pipe",
    "Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
    "connect [127.0.0.1]:37283: SO_ERROR: Connection refused, remote=[127.0.0.1]:37283",
    "failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
    "Failed to recv, got 0 bytes.",
    "The client socket has failed to connect to any network address of (127.0.0.1, 29500).",
    "NCCL error: remote process exited or there was a network error, NCCL version 2.27",
    "NCCL communicator was aborted on rank 1.",
    "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
    "Please check rank 0 logs for faulty rank.",
]
LATE = [
    "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
    "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/3",
    "Timeout waiting for key: default_pg/0 after 3000 ms",
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE)",
]


class Broken(RuntimeError):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        """Fails."""
        raise ValueError("no text")


@pytest.mark.parametrize("text", LOST, ids=lambda text: text[-24:])
def test_an_error_about_a_lost_peer_is_lost(text: str) -> None:
    """Otherwise a survivor of a crash is taken for the culprit."""
    assert collateral(RuntimeError(text)) == "lost"


@pytest.mark.parametrize("text", LATE, ids=lambda text: text[-24:])
def test_an_error_about_a_peer_that_did_not_come_is_late(text: str) -> None:
    """Otherwise the rank that waited is taken for the culprit, and not the one that hangs."""
    assert collateral(RuntimeError(text)) == "late"


@pytest.mark.parametrize("error", [ConnectionResetError, BrokenPipeError, ConnectionRefusedError])
def test_errors_of_connections_count_by_their_text(error: type[OSError]) -> None:
    """Python's own classes for the same thing."""
    assert collateral(error(32, "Broken pipe")) == "lost"
    assert collateral(error(1, "something else")) == ""


def test_subclasses_count() -> None:
    """What torch raises are subclasses of RuntimeError."""

    class DistBackendError(RuntimeError):
        pass

    assert collateral(DistBackendError(LOST[0])) == "lost"


@pytest.mark.parametrize("error", [AssertionError, ValueError, KeyboardInterrupt, SystemExit, OSError, Exception])
@pytest.mark.parametrize("text", [LOST[0], LATE[0]], ids=["lost", "late"])
def test_an_assertion_that_quotes_such_a_text_is_the_tests_own(error: type[BaseException], text: str) -> None:
    """A test about lost peers may well compare such texts; its failure is a finding and no echo."""
    assert collateral(error(text)) == ""


@pytest.mark.parametrize("text", ["", "boom", "Detected mismatch between collectives on ranks", "CUDA out of memory"])
def test_any_other_error_is_the_ranks_own(text: str) -> None:
    """Calling a culprit a victim is the worst that this function could do."""
    assert collateral(RuntimeError(text)) == ""


def test_an_error_without_a_text_is_nobodys_echo() -> None:
    """Printing runs test code, which must not break the report."""
    assert collateral(Broken()) == ""
