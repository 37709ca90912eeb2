"""The errors that only report what a peer did."""

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
    """An error whose text cannot be formatted."""

    def __str__(self) -> str:
        """Raise an error."""
        raise ValueError("no text")


@pytest.mark.parametrize("text", LOST, ids=lambda text: text[-24:])
def test_an_error_about_a_lost_peer_is_lost(text: str) -> None:
    """If this fails, a rank that survives a crash is blamed for it."""
    assert collateral(RuntimeError(text)) == "lost"


@pytest.mark.parametrize("text", LATE, ids=lambda text: text[-24:])
def test_an_error_about_a_missing_peer_is_late(text: str) -> None:
    """If this fails, the rank that waited is blamed, and not the rank that hangs."""
    assert collateral(RuntimeError(text)) == "late"


@pytest.mark.parametrize("error", [ConnectionResetError, BrokenPipeError, ConnectionRefusedError])
def test_connection_errors_are_judged_by_their_text(error: type[OSError]) -> None:
    """If this fails, Python's own connection errors, which have other classes, blame the victim."""
    assert collateral(error(32, "Broken pipe")) == "lost"
    assert collateral(error(1, "something else")) == ""


def test_subclasses_count() -> None:
    """If this fails, torch's errors, which are subclasses of RuntimeError, blame the victim."""

    class DistBackendError(RuntimeError):
        pass

    assert collateral(DistBackendError(LOST[0])) == "lost"


@pytest.mark.parametrize("error", [AssertionError, ValueError, KeyboardInterrupt, SystemExit, OSError, Exception])
@pytest.mark.parametrize("text", [LOST[0], LATE[0]], ids=["lost", "late"])
def test_an_assertion_that_quotes_such_a_text_is_the_tests_own_failure(error: type[BaseException], text: str) -> None:
    """If this fails, a test that compares such texts is called a victim when it fails."""
    assert collateral(error(text)) == ""


@pytest.mark.parametrize("text", ["", "boom", "Detected mismatch between collectives on ranks", "CUDA out of memory"])
def test_any_other_error_is_the_ranks_own_failure(text: str) -> None:
    """If this fails, a culprit is reported as a victim, which is the worst error of this function."""
    assert collateral(RuntimeError(text)) == ""


def test_an_error_without_a_text_is_the_ranks_own_failure() -> None:
    """If this fails, an error that cannot be printed breaks the report: printing runs test code."""
    assert collateral(Broken()) == ""
