"""`dist_testing.run`: a function on every rank of a world, from scripts, interactive sessions, threads and tests."""

from __future__ import annotations

from pathlib import Path

from tests.support.children import assert_no_folder_left, run_cases, write_file
from tests.support.starter import Starter

_SCRIPT = """
    import os
    import signal
    import sys
    import threading
    import unittest
    import torch
    import torch.distributed as dist
    import dist_testing
    from dist_testing import RunFailedError
    from dist_testing.core.ground.errors import UsageError

    BIG = 1 << 21

    class Own:
        pass

    def total(factor, *, add=0):
        print("on", dist.get_rank())
        value = torch.full((2,), float(factor * (dist.get_rank() + 1) + add))
        dist.all_reduce(value)
        return {"rank": dist.get_rank(), "value": value, "env": os.environ["LOCAL_WORLD_SIZE"]}

    def fails():
        if dist.get_rank() == 1:
            raise ValueError("planted")
        dist.barrier()

    def dies():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    def waits():
        if dist.get_rank() == 1:
            dist.barrier()

    def skips():
        sys.exit(dist_testing.TEST_SKIPS["small_worldsize"].exit_code)

    def error_of(kind, *args, **kwargs):
        try:
            dist_testing.run(*args, **kwargs)
        except kind as error:
            return error
        raise AssertionError(f"{args} has passed")

    def check_values(**kwargs):
        found = dist_testing.run(total, 2, (10,), {"add": 1}, **kwargs)
        assert [one["rank"] for one in found] == [0, 1], found
        assert all(one["value"].tolist() == [32.0, 32.0] and one["env"] == "2" for one in found), found

    def check_two_callers():
        # The second call begins while the first one reads a value, and holds a lock for that, as an import does.
        module = sys.modules["dist_testing.functions.run"]
        one_call, load, found, runner = module.one_call, torch.load, [], os.getpid()
        held, has_begun = threading.Lock(), threading.Event()
        second = threading.Thread(target=lambda: found.append(dist_testing.run(held.acquire, 2, timeout=20)))

        class Noting:
            def __enter__(self):
                if not one_call.acquire(blocking=False):
                    has_begun.set()
                    one_call.acquire()

            def __exit__(self, *_):
                one_call.release()

        def slow_load(*args, **kwargs):
            if os.getpid() != runner:
                return load(*args, **kwargs)
            torch.load = load
            with held:
                second.start()
                has_begun.wait()
                return load(*args, **kwargs)

        module.one_call, torch.load = Noting(), slow_load
        os.register_at_fork(after_in_parent=lambda: second.ident and has_begun.set())
        found.append(dist_testing.run(dist.get_rank, 2))
        second.join()
        assert found == [[0, 1], [True, True]], found

    def main():
        check_two_callers()
        # OpenMP's threads: in a careless child of this thread, the same computation would never end.
        torch.set_num_threads(2)
        torch.ones(BIG).sum()
        stop = threading.Event()
        other = threading.Thread(target=stop.wait)
        other.start()
        check_values()
        check_values(backend="threaded")
        os.environ["OMP_NUM_THREADS"] = "2"
        kept = [5]
        assert dist_testing.run(lambda: kept[0] + dist.get_rank() + int(torch.ones(BIG).sum()), 2) == [BIG + 5, BIG + 6]
        kept[0] = 7
        assert dist_testing.run(lambda: kept[0], 1) == [7], "the ranks have old values"

        error = error_of(RunFailedError, fails, 3)
        assert (error.rank, error.phase, error.victims) == (1, "call", (0, 2)), error
        assert 'raise ValueError("planted")' in error.traceback and "bootstrap" not in error.traceback
        assert "rank 1 raised ValueError: planted in call" in str(error)
        error = error_of(RunFailedError, dies, 2)
        assert error.rank == 1 and "SIGKILL" in str(error), error
        error = error_of(RunFailedError, waits, 2)
        assert error.result.verdict.is_proven, error
        error = error_of(RunFailedError, lambda: {"model": Own()} if dist.get_rank() == 1 else None, 2)
        assert error.rank == 1 and "a value with ['model'] of type __main__.Own" in str(error), error
        error = error_of(RunFailedError, lambda: dist_testing.run(total, 2), 1)
        assert "was called on rank 0 of a world" in str(error)
        error = error_of(RunFailedError, lambda: dist_testing.run(total, 2), 1, backend="threaded")
        assert "was called on rank 0 of a world" in str(error)
        error = error_of(UsageError, lambda rank: rank, 2)
        assert "the call does not fit the parameters (rank): missing a required argument: 'rank'." in str(error), error
        assert str(error_of(UsageError, "total", 2)).startswith("run('total') with fn = 'total'"), "no module is shown"
        assert "small world size" in str(error_of(unittest.SkipTest, skips, 2))

        group = dist.HashStore()
        dist.init_process_group("gloo", store=group, rank=0, world_size=1)
        assert "a process group is initialised" in str(error_of(UsageError, total, 2, (1,)))
        check_values(isolation="spawn")
        dist.destroy_process_group()
        stop.set()
        print("all is well")

    if __name__ == "__main__":
        main()
"""


def test_a_script_calls_a_function_on_every_rank(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a script cannot have the values of its ranks, or the one error that names the culprit."""
    write_file(tmp_path, "script.py", _SCRIPT)
    child = starter.start(["script.py"], tmp_path)
    assert child.wait() == 0, child.log
    assert "all is well" in child.log
    # Each world prints its output with the rank.
    assert child.log.count("[rank 1] on 1") == 3
    assert_no_folder_left(tmp_path)
    starter.wait_nothing_left(10.0)


_DAEMON = """
    import os
    import sys
    import dist_testing

    sys.stdout = open("shown", "w", encoding="ascii")
    os.closerange(0, 3)
    dist_testing.run(lambda: print("caf\\xe9"), 2)
"""


def test_a_daemon_needs_no_standard_streams(starter: Starter, tmp_path: Path) -> None:
    """If this fails, ranks take a socket for their output, or one character hides all that they print."""
    write_file(tmp_path, "daemon.py", _DAEMON)
    child = starter.start(["daemon.py"], tmp_path)
    assert child.wait() == 0, child.log
    assert sorted((tmp_path / "shown").read_text().splitlines()) == [f"[rank {rank}] caf\\xe9" for rank in (0, 1)]


# As a notebook's kernel: other threads, a stream of its own as standard output, a main module without a file.
_NOTEBOOK = """
    import code
    import io
    import sys
    import threading
    import types

    CELLS = [
        "import dist_testing, torch.distributed as dist",
        '''
    def cell(scale):
        print("from a cell")
        return scale * dist.get_rank()
    ''',
        "first = dist_testing.run(cell, world_size=3, args=(2,))",
        '''
    def cell(scale):
        return scale + dist.get_rank()
    ''',
        "second = dist_testing.run(cell, world_size=2, args=(2,))",
        "third = dist_testing.run(cell, world_size=2, args=(2,), isolation='spawn')",
    ]

    class Stream(io.StringIO):
        pass

    stop = threading.Event()
    for _ in range(3):
        threading.Thread(target=stop.wait, daemon=True).start()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    session = code.InteractiveInterpreter(vars(main))
    real, sys.stdout = sys.stdout, Stream()
    for cell in CELLS:
        session.runsource(cell.strip() + "\\n", "<cell>", "exec")
    shown, sys.stdout = sys.stdout.getvalue(), real
    print(vars(main).get("first"), vars(main).get("second"), "third" in vars(main))
    print(shown)
    stop.set()
"""


def test_a_function_of_a_notebooks_cell_runs(starter: Starter, tmp_path: Path) -> None:
    """If this fails, `run` needs a function of a file, or a process without other threads."""
    write_file(tmp_path, "kernel.py", _NOTEBOOK)
    child = starter.start(["kernel.py"], tmp_path)
    assert child.wait() == 0, child.log
    assert "[0, 2, 4] [2, 3] False" in child.log, child.log
    assert "[rank 2] from a cell" in child.log
    assert "its module is this interactive session, which has no file" in child.log


_CASES = """
    import pytest
    import torch
    import torch.distributed as dist
    import dist_testing
    from dist_testing.core.ground.errors import UsageError

    class Own: ...

    def test_values(tmp_path, monkeypatch):
        monkeypatch.setenv("SET_BY_TEST", "here")

        def on_rank():
            import os

            (tmp_path / str(dist.get_rank())).write_text(os.environ["SET_BY_TEST"])
            return dist.get_world_size()

        assert dist_testing.run(on_rank, world_size=2) == [2, 2]
        assert [(tmp_path / name).read_text() for name in "01"] == ["here", "here"]

    def test_fails():
        def on_rank():
            assert dist.get_rank() == 0

        dist_testing.run(on_rank, world_size=2)

    def test_unreadable():
        def on_rank():
            torch.serialization.add_safe_globals([Own])
            return Own()

        dist_testing.run(on_rank, world_size=2)

    def test_skips():
        dist_testing.run(lambda: pytest.skip("of pytest"), world_size=2)

    def test_lacks():
        dist_testing.run(print, world_size=8, backend="nccl")

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"fn": 3}, "fn = 3; expected a function"),
            ({"world_size": 0}, "world_size = 0; expected a number of ranks"),
            ({"args": [1]}, "args = [1]; expected a tuple"),
            ({"kwargs": {1: 2}}, "kwargs = {1: 2}; expected a dict"),
            ({"timeout": -1}, "timeout = -1; expected a number of seconds"),
            ({"nodes": 0}, "nodes = 0; expected a number from 1"),
            ({"nodes": 3}, "nodes = 3 with world_size = 2"),
            ({"backend": 3}, "backend = 3; expected a name"),
            ({"backend": "glo"}, "glo"),
            ({"isolation": "pool"}, "A worker pool keeps its ranks"),
            ({"isolation": "thread"}, "with backend"),
            ({"isolation": "spawn", "fn": lambda: None}, "the call cannot be sent to the ranks"),
        ],
    )
    def test_refuses(change, said):
        with pytest.raises(UsageError) as caught:
            dist_testing.run(**{"fn": print, "world_size": 2, **change})
        assert said in str(caught.value)
        assert len(str(caught.value).splitlines()) == 3
"""


def test_tests_can_call_it(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test that calls `run` gets another verdict than its ranks, or a traceback for wrong input."""
    ended = run_cases(starter, tmp_path, _CASES)
    outcomes = {name: outcome for name, outcome in ended.outcomes().items() if not name.startswith("test_refuses")}
    assert outcomes == {"test_values": "PASSED", "test_fails": "FAILED", "test_unreadable": "FAILED"}, ended.log
    assert "2 failed, 13 passed, 2 skipped" in ended.log, ended.log
    assert "rank 1 raised AssertionError" in ended.log
    unreadable = ended.failures()["test_unreadable"]
    assert "the value of rank 0 cannot be read: UnpicklingError: " in unreadable
    assert "Return tensors, numbers, strings and containers of them." in unreadable
    for reason in ("of pytest", "Need at least 8"):
        assert reason in ended.log, reason
