"""Checks before NCCL fails, and the records of its flight recorder."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dist_testing.core.engine.running_world import group_limit_s
from dist_testing.core.ground.errors import UsageError
from dist_testing.gpus import nccl
from dist_testing.gpus.nccl import check_devices, lack_of_memory, nccl_version, recorder_env, recordings

_MIB = 1 << 20
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=_PLAIN, protocol=st.integers(min_value=2, max_value=5))
def test_plain_data_is_read_as_pickle_would(value: object, protocol: int) -> None:
    """A wrong reading would blame the wrong rank."""
    # torch writes no frames and uses few opcodes; Python's own pickler uses all of them.
    assert nccl._read_plain_pickle(pickle.dumps(value, protocol)) == value


@given(content=st.binary(max_size=200))
def test_random_bytes_are_refused_with_a_value_error(content: bytes) -> None:
    """The file comes from a rank that has just failed."""
    with contextlib.suppress(ValueError):
        nccl._read_plain_pickle(content)


@given(value=_PLAIN, cut=st.integers(min_value=0, max_value=200))
def test_a_pickle_that_is_cut_off_is_refused(value: object, cut: int) -> None:
    """The rank was killed while it wrote."""
    content = pickle.dumps(value, 2)
    if cut < len(content) - 1:
        with pytest.raises(ValueError, match=r"\w"):
            nccl._read_plain_pickle(content[:cut])


@pytest.mark.parametrize("content", [b"\x80\x02K\x01\x86.", b"\x80\x02K\x01K\x01(\x86t."], ids=repr)
def test_a_pickle_that_pops_an_empty_stack_is_refused(content: bytes) -> None:
    """The report would show a pair of one number as a record."""
    with pytest.raises(ValueError, match=r"\w"):
        nccl._read_plain_pickle(content)


@pytest.mark.parametrize("value", [os.system, SimpleNamespace(a=1), complex(1, 2), Path("x")])
def test_a_pickle_that_would_call_something_is_refused(value: object) -> None:
    """Unpickling the file of a rank would run code of that rank in the runner."""
    for protocol in range(2, 6):
        with pytest.raises(ValueError, match="is not plain data"):
            nccl._read_plain_pickle(pickle.dumps(value, protocol))


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # LONG_BINPUT: room for two billion remembered values
        b"Np2147483647\n.",  # PUT: the same in the oldest protocol
        b"\x80\x05\x96\xff\xff\xff\xff\x0f\x00\x00\x00N.",  # BYTEARRAY8 of 64 GiB
        b"\x80\x04\x8d\xff\xff\xff\xff\x0f\x00\x00\x00N.",  # BINUNICODE8 of 64 GiB
        b"\x80\x04\x95\xff\xff\xff\xff\x0f\x00\x00\x00N.",  # FRAME of 64 GiB
        b"N" * ((16 << 20) + 1),
    ],
    ids=["memo", "old_memo", "bytes", "text", "frame", "size"],
)
def test_a_small_pickle_that_asks_for_much_memory_is_refused(content: bytes) -> None:
    """Thirteen bytes that were damaged would take 32 GiB, and the kernel would kill the runner."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"\w"):
        nccl._read_plain_pickle(content)
    # In KiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


def test_a_pickle_that_nests_deeply_is_read() -> None:
    """The reader must not exhaust the stack of the runner."""
    value = nccl._read_plain_pickle(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    assert len(value) == 1


def _entry(**changes: object) -> dict[str, object]:
    entry = {"collective_seq_id": 7, "profiling_name": "nccl:all_gather", "state": "started", "input_sizes": [[2, 3]]}
    return {**entry, **changes}


def _write(folder: Path, rank: int, value: object) -> None:
    (folder / f"flight-record-{rank}").write_bytes(pickle.dumps(value, 2))


def test_the_last_collectives_of_each_rank_are_summarised(tmp_path: Path) -> None:
    """The lines show that rank 1 is one collective behind."""
    _write(tmp_path, 0, {"entries": [_entry(collective_seq_id=n) for n in range(9)]})
    _write(tmp_path, 1, {"entries": [_entry(profiling_name="nccl:\\x1b[31mred", input_sizes=[])]})
    _write(tmp_path, 2, {"entries": []})
    found = recordings(tmp_path, 4)
    assert found == {
        0: "#6 all_gather [[2, 3]] started; #7 all_gather [[2, 3]] started; #8 all_gather [[2, 3]] started",
        1: "#7 x1b31mred [] started",
        2: "no collective",
    }


def test_a_record_of_another_shape_is_reported_as_such(tmp_path: Path) -> None:
    """A record of a newer torch, or a damaged one, must not end the report."""
    cycle: list[object] = []
    cycle.append(cycle)
    values = [{}, [], {"entries": 1}, {"entries": [1]}, {"entries": [_entry(state=1)]}, {"entries": [{}]}]
    values += [{"entries": [_entry(collective_seq_id="x")]}, {"entries": [_entry(input_sizes="x")]}]
    for rank, value in enumerate(values):
        _write(tmp_path, rank, value)
    found = recordings(tmp_path, len(values))
    assert len(found) == len(values)
    assert all(text.startswith("its flight record is not one") for text in found.values()), found
    _write(tmp_path, 0, {"entries": [_entry(input_sizes=[cycle])]})
    assert recordings(tmp_path, 1) == {0: "#7 all_gather [[]] started"}


def test_a_link_in_place_of_a_record_is_not_followed(tmp_path: Path) -> None:
    """A rank could have the report quote any file."""
    (tmp_path / "flight-record-0").symlink_to("/etc/passwd")
    assert recordings(tmp_path, 1) == {}


@pytest.mark.parametrize("limit_s", [1.0, 10.0, 300.0, 7 * 24 * 3600.0])
def test_records_are_written_before_the_case_is_over(tmp_path: Path, limit_s: float) -> None:
    """torch's default is to wait a minute after its own timeout; the runner would have killed the rank by then."""
    env = recorder_env(tmp_path, limit_s)
    # torch waits so long after its timeout, which is the group's.
    wait_s = 4 * int(env["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"]) / 1000
    if limit_s > 10:
        assert group_limit_s(limit_s) + wait_s < limit_s
    assert Path(f"{env['TORCH_FR_DUMP_TEMP_FILE']}3") == tmp_path / "flight-record-3"


def test_too_little_shared_memory_is_reported_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL itself reports only "unhandled system error"."""
    space = SimpleNamespace(f_bavail=64 * _MIB // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: space)
    assert lack_of_memory(1, {}) == ""
    observed, why, way_out = lack_of_memory(2, {}).splitlines()
    assert observed == "NCCL, 2 ranks: /dev/shm has 64 MiB free."
    assert "unhandled system error" in why
    assert "--shm-size" in way_out
    assert "NCCL_SHM_DISABLE=1" in way_out
    assert lack_of_memory(2, {"NCCL_SHM_DISABLE": "0"}) != ""
    # The way out was taken, so the warning ends.
    assert lack_of_memory(2, {"NCCL_SHM_DISABLE": "1"}) == ""
    space.f_bavail *= 100
    assert lack_of_memory(2, {}) == ""


def test_a_machine_without_shared_memory_is_reported(tmp_path: Path) -> None:
    """Some containers have none."""
    assert "No such file" in lack_of_memory(2, {}, tmp_path / "missing")


def test_two_ranks_on_a_gpu_are_refused_before_nccl_does() -> None:
    """NCCL itself reports "Duplicate GPU detected" at the first collective, on one of the ranks."""
    check_devices("case", 4, 1)
    check_devices("case", 1, 4)
    with pytest.raises(UsageError, match="case: 4 ranks of NCCL, 2 to a GPU"):
        check_devices("case", 4, 2)


def test_the_version_of_nccl_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of a hang needs it; a torch without NCCL has none."""
    # Private functions, which only a torch with NCCL has; 2.27.5 as NCCL packs it for torch.
    monkeypatch.setattr(torch._C, "_nccl_version", lambda: 2 << 32 | 27 << 16 | 5, raising=False)
    monkeypatch.setattr(torch._C, "_nccl_version_suffix", lambda: b"", raising=False)
    assert nccl_version() == "2.27.5"
    monkeypatch.delattr(torch._C, "_nccl_version")
    assert nccl_version() == ""
