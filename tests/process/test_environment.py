"""The surroundings of a rank: environment, folders, threads, temporary files, store."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dist_testing import World
from dist_testing.core.engine.engine import Engine
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Status
from tests.support.worlds import engine_for, run


def _record(world: World, body: dict[str, Any]) -> None:
    """Write down what the rank sees."""
    mask = os.umask(0)
    os.umask(mask)
    seen = {
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": mask,
        "threads": torch.get_num_threads(),
        "temp": tempfile.gettempdir(),
    }
    Path(body["answers"], f"{world.rank}.json").write_text(json.dumps(seen))


def _init(world: World, body: dict[str, Any]) -> None:
    """Create a group as programs under torchrun and suites of other projects do."""
    limit = timedelta(seconds=20)
    match body["method"]:
        case "variables":
            dist.init_process_group("gloo")
        case "port of the store":
            method = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
            dist.init_process_group("gloo", method, limit, world.size, world.rank)
        case own_port:
            if world.rank == 0:
                with socket.create_server(("127.0.0.1", 0)) as chosen:
                    world.store.set("port", str(chosen.getsockname()[1]))
            port = world.store.get("port").decode()
            if own_port == "own port, tcp":
                dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", limit, world.size, world.rank)
            else:
                os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port)
                dist.init_process_group("gloo", timeout=limit)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert (world.size, world.rank) == (ones.item(), dist.get_rank())


def _listen_on_a_unix_socket(world: World, _: dict[str, Any]) -> None:
    path = os.path.join(tempfile.mkdtemp(), f"some-service-{world.rank}.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


def _use_folders(world: World, _: dict[str, Any]) -> None:
    assert not list(world.rank_tmp_path.iterdir())
    (world.rank_tmp_path / "mine").touch()
    (world.tmp_path / str(world.rank)).touch()
    world.barrier()
    assert {str(rank) for rank in range(world.size)} == {path.name for path in world.tmp_path.iterdir()}


def _leave_files(world: World, body: dict[str, Any]) -> None:
    _, path = tempfile.mkstemp()
    Path(body["answers"], f"{world.rank}.txt").write_text(path)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for all cases."""
    functions = {
        "record": _record,
        "init": _init,
        "listen": _listen_on_a_unix_socket,
        "use folders": _use_folders,
        "leave files": _leave_files,
    }
    with engine_for(functions) as engine:
        yield engine


def _seen(engine: Engine, answers: Path, **more: Any) -> list[dict[str, Any]]:
    result = run(engine, "record", arguments={"answers": str(answers)}, **more)
    assert result.verdict.status is Status.PASSED, result
    return [json.loads((answers / f"{rank}.json").read_text()) for rank in range(result.case.world_size)]


def _assert_passed(result: CaseResult) -> None:
    assert result.verdict.status is Status.PASSED, result


def test_environment_is_the_runners_current_one(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, ranks miss what a test set after the older fork server was started.

    tests/unit/test_rank_env.py has what the library adds and takes away.
    """
    # Starts the fork server, if no earlier case has.
    engine.prepare()
    monkeypatch.setenv("SET_AFTER_THE_FORK_SERVER", "1")
    monkeypatch.setenv("XML_OUTPUT_FILE", str(tmp_path / "xml"))
    monkeypatch.delenv("PATH")
    monkeypatch.chdir(tmp_path)
    mask = os.umask(0o27)
    try:
        seen = _seen(engine, tmp_path, world_size=3)
    finally:
        os.umask(mask)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    for rank, found in enumerate(seen):
        env = found["env"]
        assert env["SET_AFTER_THE_FORK_SERVER"] == "1"
        assert not {"PATH", "XML_OUTPUT_FILE"} & env.keys()
        assert (found["cwd"], found["umask"]) == (str(tmp_path), 0o27)
        assert [env[name] for name in names] == [str(rank), "3", str(rank), "3", "0", "127.0.0.1"]
        assert env["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert len({found["env"]["MASTER_PORT"] for found in seen}) == 1


@pytest.mark.parametrize("isolation", ["fork", "pool"])
@pytest.mark.parametrize("method", ["variables", "port of the store", "own port, tcp", "own port, env"])
def test_group_can_be_made_by_the_test(engine: Engine, method: str, isolation: str) -> None:
    """If this fails, rank 0 binds a port that is taken, or torch is told that another process serves every store."""
    _assert_passed(run(engine, "init", init=False, isolation=isolation, arguments={"method": method}))


def test_threads_are_a_share_unless_the_user_decides(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, four ranks use all CPUs each and slow each other down."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    share = max(1, len(os.sched_getaffinity(0)) // 4)
    for rank in _seen(engine, tmp_path):
        assert (share, str(share)) == (rank["threads"], rank["env"]["OMP_NUM_THREADS"])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for rank in _seen(engine, tmp_path):
        assert rank["env"]["OMP_NUM_THREADS"] == "3"
        assert rank["threads"] == 3


def test_folders_are_empty_and_shared_or_not(engine: Engine) -> None:
    """If this fails, a case sees the files of the case before it; so the same case runs twice."""
    _assert_passed(run(engine, "use folders"))
    _assert_passed(run(engine, "use folders"))


def test_unix_sockets_fit_however_deep_the_scratch_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, tests under Bazel cannot bind a socket, because TEST_TMPDIR alone is often too long."""
    deep = tmp_path.joinpath(*["a-folder-with-quite-a-long-name"] * 5)
    deep.mkdir(parents=True)
    monkeypatch.setenv("TEST_TMPDIR", str(deep))
    before = set(os.listdir("/tmp"))
    with engine_for({"listen": _listen_on_a_unix_socket}) as engine:
        _assert_passed(run(engine, "listen"))
        assert list(deep.iterdir()), "the files are in the scratch folder"
    assert not list(deep.iterdir())
    assert not [
        name
        for name in set(os.listdir("/tmp")) - before
        if name.startswith("dist-") and not os.path.exists(f"/tmp/{name}/t")
    ]


def test_temporary_files_of_ranks_are_removed_with_the_case(engine: Engine, tmp_path: Path) -> None:
    """If this fails, tests that forget files fill the machine."""
    _assert_passed(run(engine, "leave files", arguments={"answers": str(tmp_path)}))
    for rank in range(4):
        assert not Path((tmp_path / f"{rank}.txt").read_text()).exists()


def _record_sockets(world: World, body: dict[str, Any]) -> None:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    Path(body["answers"], str(world.rank)).write_text("\n".join(link for link in links if link.startswith("socket:")))


def test_channel_of_a_rank_is_not_shared(tmp_path: Path) -> None:
    """If this fails, other processes keep a rank's channel open and write to it in the rank's name."""
    with engine_for({"record sockets": _record_sockets}) as engine:
        _assert_passed(run(engine, "record sockets", init=False, arguments={"answers": str(tmp_path)}))
    held = [set((tmp_path / str(rank)).read_text().split("\n")) for rank in range(4)]
    for rank, sockets in enumerate(held):
        assert sockets.difference(*held[:rank], *held[rank + 1 :]), held
