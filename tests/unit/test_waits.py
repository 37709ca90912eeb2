"""What a blocked thread waits for, read from its frames; and what is not read from them."""

from __future__ import annotations

import ast
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore
from torch.utils._pytree import tree_map

from dist_testing.hang import native_waits
from dist_testing.hang.call_sites import call_in
from dist_testing.hang.ledger import Ledger, Wait, WaitKind
from dist_testing.hang.ledger_thread import read_ledger
from dist_testing.hang.native_waits import native_wait
from dist_testing.hang.waits import C10D, wait_of

# Ends every wait of this file, should a test fail to end it. Seconds.
_LIMIT = timedelta(seconds=30)
_LIMIT_MS = 30_000


def _observed(waits: Callable[[], object], release: Callable[[], object]) -> tuple[Wait | None, ast.Call | None]:
    """What is read from a thread that is in a call of native code."""
    thread = threading.Thread(target=waits)
    thread.start()
    frame: FrameType | None = None
    last = -1
    try:
        # Until it is in the function, and has gone as far as it goes.
        while frame is None or frame.f_code is not waits.__code__ or frame.f_lasti != last:
            last = frame.f_lasti if frame is not None else -1
            time.sleep(0.05)
            frame = sys._current_frames().get(thread.ident or 0)
        return wait_of(frame), call_in(frame)
    finally:
        release()
        thread.join()


def _store() -> HashStore:
    store = HashStore()
    store.set_timeout(_LIMIT)
    return store


def test_store_in_a_variable() -> None:
    """The plain case."""
    store = _store()

    def waits() -> None:
        store.wait(["never", "set"])

    found, call = _observed(waits, lambda: store.multi_set(["never", "set"], ["1", "1"]))  # type: ignore[attr-defined]
    assert found == Wait(WaitKind.STORE, "wait", keys="'never', 'set'", limit_ms=_LIMIT_MS)
    assert call is not None
    assert ast.unparse(call) == "store.wait(['never', 'set'])"


def test_store_behind_attributes_and_prefixes() -> None:
    """Tests keep their store in an object, in a list, and behind a prefix."""
    holder = SimpleNamespace(stores=[PrefixStore("p", PrefixStore("q", _store()))])
    holder.stores[0].set_timeout(_LIMIT)

    def waits() -> None:
        holder.stores[0].get(
            "key",
        )

    found, _ = _observed(waits, lambda: holder.stores[0].set("key", "1"))
    assert found == Wait(WaitKind.STORE, "get", keys="'key'", limit_ms=_LIMIT_MS)


def test_limit_of_the_call_counts() -> None:
    """A wait with a limit that the test has chosen ends by itself."""
    store = _store()
    limit = timedelta(seconds=20)

    def waits() -> None:
        store.wait(["key"], limit)

    found, _ = _observed(waits, lambda: store.set("key", "1"))
    assert found is not None
    assert found.limit_ms == 20_000


def test_limit_that_is_computed_is_none_that_is_known() -> None:
    """No code of the test is run to find it out."""
    store = _store()

    def waits() -> None:
        store.wait(["key"], timedelta(seconds=20))

    found, _ = _observed(waits, lambda: store.set("key", "1"))
    assert found is not None
    assert found.limit_ms == 0


class _Holder:
    """A class whose property must not be called."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls = 0

    @property
    def store(self) -> Store:
        self.calls += 1
        return self._store


def test_code_of_the_test_is_not_run() -> None:
    """A property may take a lock that the blocked thread holds."""
    store = _store()
    holder = _Holder(store)

    def waits() -> None:
        holder.store.wait(["key"])

    found, call = _observed(waits, lambda: store.set("key", "1"))
    assert call is not None
    assert found is None
    assert holder.calls == 1


def test_store_of_another_world_is_not_waited_for(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may set the key."""
    file_store = FileStore(f"{tmp_path}/store", 1)
    file_store.set_timeout(_LIMIT)

    def waits() -> None:
        file_store.wait(["key"])

    found, _ = _observed(waits, lambda: file_store.set("key", "1"))
    assert found is None

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_LIMIT)
    client = TCPStore("127.0.0.1", server.port, is_master=False, timeout=_LIMIT)

    def waits_on_tcp() -> None:
        client.wait(["key"])

    found, _ = _observed(waits_on_tcp, lambda: server.set("key", "1"))
    assert found is None
    monkeypatch.setenv("MASTER_PORT", str(server.port))

    def waits_on_ours() -> None:
        client.wait(["other"])

    found, _ = _observed(waits_on_ours, lambda: server.set("other", "1"))
    assert found == Wait(WaitKind.STORE, "wait", keys="'other'", limit_ms=_LIMIT_MS)


def test_lock_is_no_wait_for_a_rank() -> None:
    """A lock, a queue, a sleep: another thread or time itself ends them."""
    lock = threading.Lock()
    lock.acquire()

    def waits() -> None:
        lock.acquire()

    found, call = _observed(waits, lock.release)
    assert call is not None
    assert found is None


class _Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, given: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return given.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient."""
        return grad


def _in_backward(**variables: object) -> FrameType:
    """A frame of torch's function that runs the backward pass, with these variables."""
    namespace: dict[str, object] = {"__name__": "torch.autograd.graph", "sys": sys}
    exec("def run(t_outputs):\n    return sys._getframe()", namespace)
    run: Callable[..., FrameType] = namespace["run"]  # type: ignore[assignment]
    return run(**variables)


def test_backward_of_torchs_operators_waits_for_collectives() -> None:
    """A model in a wrapper that reduces gradients waits there, and for nothing else."""
    weights = torch.ones(3, 3, requires_grad=True)
    loss = _Custom.apply((weights @ torch.ones(3)).relu()).sum()  # type: ignore[no-untyped-call]
    found = native_wait(_in_backward(t_outputs=(loss,)), "run_backward")
    assert found == Wait(WaitKind.SOME_COLLECTIVE, "backward")


@pytest.mark.parametrize("outputs", [None, (torch.ones(1, device="meta"),), (object(),)])
def test_backward_that_is_not_understood(outputs: object) -> None:
    """Another device, or code of an extension, can wait for anything."""
    assert native_wait(_in_backward(t_outputs=outputs), "run_backward") is None


def test_backward_of_an_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node has no Python frame, and its code may wait for anything."""
    cpp_node = type("CppFunction", (), {"next_functions": ()})
    output = torch.ones(1)
    monkeypatch.setattr(native_waits, "_roots", lambda _: [cpp_node()])
    assert native_wait(_in_backward(t_outputs=(output,)), "run_backward") is None


_IN_THE_HELPER = """
def _new_process_group_helper(group_size, global_ranks_in_group, group_name, timeout, store):
    return ProcessGroupGloo(store, timeout)
"""
_IN_A_FUNCTION_OF_ITS_OWN = """
def _create(store, timeout):
    return ProcessGroupGloo(store, timeout)


def _new_process_group_helper(group_size, global_ranks_in_group, group_name, timeout, store):
    return _create(store, timeout)
"""
_WITHOUT_THE_HELPER = """
def _new_process_group_helper(group_size, global_ranks_in_group, group_name, timeout, store):
    return ProcessGroupGloo(store, timeout)


_new_process_group_helper.__code__ = _new_process_group_helper.__code__.replace(co_name="_another")
"""


def _wait_in_new_group(source: str, module: str, file: Path, ranks: list[int]) -> Wait | None:
    """What is read from a frame that makes a backend's object, in functions with the names that torch gives them."""

    def read(*_: object) -> Wait | None:
        return wait_of(sys._getframe(1))

    file.write_text(source, encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": module, "ProcessGroupGloo": read}
    exec(compile(source, str(file), "exec"), namespace)
    found: Wait | None = namespace["_new_process_group_helper"](3, ranks, "1", _LIMIT, _store())
    return found


@pytest.mark.parametrize("source", [_IN_THE_HELPER, _IN_A_FUNCTION_OF_ITS_OWN], ids=["torch 2.13", "torch 2.15"])
def test_group_that_is_made(tmp_path: Path, source: str) -> None:
    """Another rank has left `new_group` or `init_process_group` out; torch's releases wait in different functions."""
    some = _wait_in_new_group(source, C10D, tmp_path / "some.py", [0, 2])
    assert some == Wait(WaitKind.MEETING, "new_group", "1", limit_ms=_LIMIT_MS, ranks=(0, 2))
    every = _wait_in_new_group(source, C10D, tmp_path / "all.py", [])
    assert every == Wait(WaitKind.MEETING, "init_process_group", "1", limit_ms=_LIMIT_MS, ranks=(0, 1, 2))


def test_group_that_is_made_elsewhere(tmp_path: Path) -> None:
    """A user's own function of that name, and a torch whose function has another name, tell nothing about a group."""
    assert _wait_in_new_group(_IN_A_FUNCTION_OF_ITS_OWN, "users_module", tmp_path / "user.py", [0]) is None
    assert _wait_in_new_group(_WITHOUT_THE_HELPER, C10D, tmp_path / "other.py", [0]) is None


def test_a_users_folder_with_the_name_of_a_library_is_none() -> None:
    """If this fails, a report of a hang has no line of a test that is stored below a folder called torch."""
    source = "def f():\n    return tree_map(lambda _: read_ledger(get_ident(), set()), 0)\n"
    names: dict[str, Any] = {"tree_map": tree_map, "read_ledger": read_ledger, "get_ident": threading.get_ident}
    exec(compile(source, "/home/torch/dist_testing/test_f.py", "exec"), names)
    ledger = names["f"]()
    assert isinstance(ledger, Ledger)
    found = {(Path(place.file).name, place.is_library) for place in ledger.places}
    assert {("ledger_thread.py", True), ("_pytree.py", True), ("test_f.py", False)} <= found
