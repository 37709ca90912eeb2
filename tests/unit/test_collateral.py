"""The errors that only report what a peer did."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable

import pytest

from dist_testing.core.ground.errors import CollectiveTimeoutError, PeerFailedError
from dist_testing.core.rank.collateral import collateral

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
    "Wait timeout",
    "Timed out after 3 seconds waiting for clients. 1/2 clients joined.",
    "Application timeout caused pair closure",
    "Operation timed out!",
    "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 3000 ms",
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE)",
    "NCCL operation timed out",
]


class Broken(RuntimeError):
    """An error whose text cannot be formatted."""

    def __str__(self) -> str:
        """Raise an error."""
        raise ValueError("no text")


class DistBackendError(RuntimeError):
    """An error of torch, which is a subclass."""


# A culprit that is reported as a victim is the worst error of this function.
OWN: list[BaseException] = [
    *map(RuntimeError, ["", "boom", "Detected mismatch between collectives on ranks", "CUDA out of memory"]),
    # Printing runs test code.
    Broken(),
    ConnectionResetError(1, "something else"),
    # A test that compares such texts.
    *(
        error(text)
        for error in (AssertionError, ValueError, KeyboardInterrupt, SystemExit, OSError, Exception)
        for text in (LOST[0], LATE[0])
    ),
]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *((RuntimeError(text), "lost") for text in LOST),
        *((RuntimeError(text), "late") for text in LATE),
        (DistBackendError(LOST[0]), "lost"),
        *((error(32, "Broken pipe"), "lost") for error in (ConnectionResetError, BrokenPipeError)),
        (ConnectionRefusedError(32, "Broken pipe"), "lost"),
        *((error, "") for error in OWN),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_errors_are_judged_by_their_class_and_text(error: BaseException, expected: str) -> None:
    """If this fails, a rank that survives a crash or waits for a hung one is blamed, or a culprit is not."""
    assert collateral(error) == expected


def _raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        if cause is not None:
            raise error from cause
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("text", [LOST[0], LATE[0], "Timed out waiting for the HTTP server"])
def test_an_error_that_the_test_raises_is_its_own(text: str) -> None:
    """If this fails, the error vanishes from the report, and an innocent rank is blamed."""
    assert collateral(_raised(RuntimeError(text))) == ""
    # These are raised by the library, for a world of threads.
    assert collateral(_raised(PeerFailedError("rank 1 has ended"))) == "lost"
    assert collateral(_raised(CollectiveTimeoutError("rank 1 did not come"))) == "late"


@pytest.mark.parametrize("wrapper", [RuntimeError, ValueError, AssertionError])
def test_an_error_that_was_raised_from_a_peers_is_the_peers(wrapper: type[Exception]) -> None:
    """If this fails, a test that explains a lost peer is blamed for it."""
    assert collateral(_raised(wrapper("training failed"), RuntimeError(LOST[0]))) == "lost"
    assert collateral(_raised(wrapper("training failed"), RuntimeError("boom"))) == ""


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Timed out waiting 3000ms for recv"], "late"),
        (["Connection closed by peer"], "lost"),
        (["Connection closed by peer", "Timed out waiting 3000ms for recv"], "late"),
        (["Timed out waiting 3000ms for recv", "Connection closed by peer"], "late"),
        (["Broken pipe", "Connection closed by peer"], "lost"),
        (["Timed out waiting 3000ms for recv", "the test's own"], ""),
    ],
)
def test_a_group_of_exceptions_is_what_its_members_are(texts: list[str], expected: str) -> None:
    """If this fails, the rank that waited is blamed where the test runs tasks in a group."""
    inner = ExceptionGroup("inner", [RuntimeError(text) for text in texts])
    group = ExceptionGroup("tasks", [inner])
    assert collateral(group) == collateral(inner) == expected
    with pytest.raises(type(group)) as raised:
        raise group
    assert collateral(raised.value) == expected
    with pytest.raises(ValueError, match="a task failed") as outer:
        raise ValueError("a task failed") from group
    assert collateral(outer.value) == expected


def _group(*members: BaseException) -> BaseException:
    return BaseExceptionGroup("tasks", members)


def test_groups_in_groups_are_followed_to_a_limit() -> None:
    """If this fails, groups in each other are a RecursionError in the report, or a victim of two tasks is blamed."""
    nested: list[BaseException] = [RuntimeError(LOST[0])]
    for _ in range(1000):
        nested.append(_group(nested[-1]))
    assert [collateral(error) for error in nested[:7]] == ["lost"] * 6 + [""]
    assert collateral(nested[-1]) == ""
    in_turn: BaseException = RuntimeError(LOST[0])
    for _ in range(1000):
        in_turn = _raised(ValueError("a task failed"), _group(in_turn))
    assert collateral(in_turn) == ""


def test_causes_are_followed_to_a_limit() -> None:
    """If this fails, errors that are each other's causes hang the rank's report."""
    chain: list[BaseException] = [RuntimeError(LOST[0])]
    for _ in range(10):
        chain.append(_raised(ValueError("wrapped"), chain[-1]))
    assert [collateral(error) for error in (chain[1], chain[9], chain[10])] == ["lost", "lost", ""]
    first, second = _raised(ValueError("one")), _raised(ValueError("two"))
    first.__cause__, second.__cause__ = second, first
    assert collateral(first) == ""


@pytest.mark.parametrize(("folder", "expected"), [("/lib/torch/distributed/", "lost"), ("/my/torch_distributed/", "")])
def test_torchs_own_code_raises_errors_about_peers(folder: str, expected: str) -> None:
    """If this fails, a survivor of a crash is blamed if torch's Python code noticed the crash."""
    for error in ("RuntimeError", "ConnectionResetError"):
        code = compile(f"def call(): raise {error}('Connection reset by peer')", f"{folder}c10d.py", "exec")
        names: dict[str, Callable[[], None]] = {}
        exec(code, names)
        with pytest.raises(vars(builtins)[error]) as caught:
            names["call"]()
        assert collateral(caught.value) == expected


@pytest.mark.parametrize(("folder", "expected"), [("/lib/torch/distributed/", "lost"), ("/my/tests/", "")])
def test_only_a_connection_of_torch_is_one_to_a_peer(folder: str, expected: str) -> None:
    """A survivor whose connection torch's code reads is a victim; a test whose own pipe breaks is not."""
    code = compile("def call(function, *args): function(*args)", f"{folder}c10d.py", "exec")
    names: dict[str, Callable[..., None]] = {}
    exec(code, names)
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError, match="Broken pipe") as caught:
        names["call"](os.write, write, b"x")
    os.close(write)
    assert collateral(caught.value) == expected
