"""Services of tests, in whole sessions: who finds which server, who learns of its end, and that nothing is left."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.children import assert_no_folder_left, run_cases, run_pytest, start_pytest, write_file
from tests.support.starter import Starter, is_alive, living_below, wait_ended

_LIMIT_S = 60.0

_SESSION = """
    import os
    import select
    import signal
    import unittest
    import urllib.request
    import pytest
    import torch.distributed as dist
    import dist_testing
    from dist_testing.services import Service

    _HTTP = ["{python}", "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
    server = Service(_HTTP, "shared", healthy="/", scope="module")
    own = Service(_HTTP, "own", healthy="/")
    broken = Service(
        ["{python}", "-c", "print('no weights'); raise SystemExit(3)"], "broken", healthy=lambda running: False
    )
    leaky = Service(
        ["{python}", "-c", "import subprocess as s; s.Popen(['sleep', '996'], start_new_session=True).wait()"], "leaky"
    )
    http = server.fixture()
    own_http = own.fixture()
    broken_http = broken.fixture()
    pids = set()

    def read(address, path="/"):
        return urllib.request.urlopen(address.url + path).read()

    def end(address):
        # Its end is certain when this returns.
        ended = os.pidfd_open(address.pid)
        os.kill(address.pid, signal.SIGKILL)
        select.select([ended], [], [])
        os.close(ended)

    @pytest.mark.distributed(world_size=2, services=[server, own])
    @pytest.mark.parametrize("isolation", ["fork", "spawn"])
    def test_on_ranks(world, isolation, http):
        assert read(server) == read(own)
        assert server.port != own.port
        assert http.url == server.url
        print("pid", server.address().pid, flush=True)

    def test_in_the_runner(http, own_http):
        assert read(server) == read(http) == read(own_http)
        pids.add(http.pid)

    def test_one_server_for_the_module(http):
        pids.add(http.pid)
        assert len(pids) == 1

    class TestPool:
        @pytest.mark.distributed(world_size=2, isolation="pool", services=own)
        @pytest.mark.parametrize("number", range(2))
        def test_pool(self, world, number):
            assert read(own)

    class TestOfUnittest(dist_testing.MultiProcessTestCase):
        world_size = 2
        services = [own]

        def test_method(self):
            assert read(own)

    @pytest.mark.distributed(world_size=2, services=[server, own])
    def test_rank_fails(world):
        read(own, "/?asked")
        dist.barrier()
        assert world.rank == 0

    @pytest.mark.distributed(world_size=2, services=[own])
    def test_service_dies(world):
        if world.rank == 0:
            end(own.address())
        dist.barrier()
        signal.pause()

    @pytest.mark.xfail(reason="a rank may raise")
    @pytest.mark.distributed(world_size=2, services=[own])
    def test_service_dies_where_a_failure_is_expected(world):
        if world.rank == 0:
            end(own.address())
        signal.pause()

    @pytest.mark.distributed(world_size=2, services=[own])
    def test_service_dies_and_a_rank_says_so(world):
        dist.barrier()
        if world.rank == 0:
            end(own.address())
        dist.barrier()
        read(own)

    @pytest.mark.distributed(world_size=2, services=[broken])
    def test_never_starts(world): ...

    def test_never_starts_in_the_runner(broken_http): ...

    @pytest.mark.distributed(world_size=2, services=[leaky])
    def test_leak(world): ...

    @pytest.mark.distributed(world_size=2)
    def test_not_named(world, http): ...

    def test_fails_in_the_runner(http):
        read(http, "/?asked")
        assert False

    def test_dies_in_the_runner(http):
        end(http)
        read(http)

    def test_after_it(http): ...

    @pytest.mark.distributed(world_size=2, services=[server])
    def test_after_it_on_ranks(world): ...

    def test_own_one_is_new(own_http):
        assert read(own_http)
"""


@pytest.mark.parametrize("options", [(), ("--dist-jobs=2",)], ids=["one by one", "side by side"])
def test_session(starter: Starter, tmp_path: Path, options: tuple[str, ...]) -> None:
    """If this fails, a test finds no server, finds that of another test, or does not learn that its own has ended."""
    ended = run_cases(starter, tmp_path, _SESSION, *options)
    ended.check(
        passed="test_on_ranks[fork] test_on_ranks[spawn] test_in_the_runner test_one_server_for_the_module test_pool[0]"
        " test_pool[1] test_method test_own_one_is_new",
        # The teardown of test_dies_in_the_runner fails, too.
        failed="test_rank_fails test_service_dies test_service_dies_where_a_failure_is_expected"
        " test_service_dies_and_a_rank_says_so test_never_starts test_leak test_not_named test_fails_in_the_runner"
        " test_dies_in_the_runner test_after_it_on_ranks",
        error="test_never_starts_in_the_runner test_after_it",
    )
    failures = ended.failures()
    # Of the service of the module, too.
    assert '"GET /?asked HTTP/1.1" 200' in failures["test_rank_fails"]
    assert "The end of the output of the service shared:" in failures["test_rank_fails"]
    for name in ("test_service_dies", "test_service_dies_and_a_rank_says_so"):
        # A rank may report the lost connection before the runner ends the case: then its time follows.
        assert re.search(rf"{name} \(world of 2\): the service own has ended with SIGKILL \(9\)[.;]", failures[name])
        assert "The end of the output of the service own:" in failures[name]
    assert "Service broken: it ended with exit code 3 before it was healthy." in failures["test_never_starts"]
    assert "no weights" in failures["test_never_starts"]
    assert "the service leaky has left processes behind, now killed: sleep 996 (pid " in failures["test_leak"]
    assert "Service shared does not run here." in failures["test_not_named"]
    assert "- service shared -" in failures["test_fails_in_the_runner"]
    assert '"GET /?asked HTTP/1.1" 200' in failures["test_fails_in_the_runner"]
    assert "The service shared has ended with SIGKILL (9)." in failures["test_dies_in_the_runner"]
    assert "the service shared has ended with SIGKILL (9) before this test." in failures["test_after_it_on_ranks"]
    assert "test_after_it: the service shared has ended with SIGKILL (9) before this test." in ended.log
    assert "Service broken: it ended with exit code 3 before it was healthy." in ended.log


_CLASSES = """
    import functools
    import re
    import dist_testing
    from dist_testing.services import Service

    code = "import subprocess as s; p = s.Popen(['sleep', '994'], start_new_session=True); print('ready'); p.wait()"
    leaky = functools.partial(Service, ["{python}", "-c", code], healthy=re.compile("ready"))
    of_class = leaky("of_class", scope="class")
    of_module = leaky("of_module", scope="module")
    fixture = of_module.fixture()

    class TestA(dist_testing.MultiProcessTestCase):
        world_size = 2
        services = [of_class, of_module]

        def test_a(self): ...

    class TestB(TestA):
        services = [of_class]

    def test_last(fixture): ...
"""


def test_scopes_of_unittest_classes(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a class meets the server of the class before it, and a run that must fail passes."""
    ended = run_cases(starter, tmp_path, _CLASSES)
    told = re.findall(r"^test_cases.py::(\S+): the service (\w+) has left processes behind", ended.log, re.MULTILINE)
    assert told == [("TestA::test_a", "of_class"), ("TestB::test_a", "of_class"), ("test_last", "of_module")], ended.log
    plain = starter.start(["-m", "unittest", "test_cases"], tmp_path)
    assert plain.wait() == 1, plain.log
    told = re.findall(r"the service (\w+) has left", plain.log.partition("ERROR: tearDownModule (test_cases)")[2])
    assert told == ["of_class", "of_module", "of_class"], plain.log


_WRONG = {
    "services='server'": "services = 'server'; expected a Service, or a list of them.",
    "services=[]": "services = []; expected a Service, or a list of them.",
    "services=[server, Service(['true'])]": "two of them have the same name.",
    "services=server, nodes=2": "services with nodes = 2.",
}


def test_wrong_settings(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a mistake is a traceback, or a test without its server."""
    head = "import pytest\nfrom dist_testing.services import Service\nserver = Service(['true'])\n"
    for number, arguments in enumerate(_WRONG):
        test = f"@pytest.mark.distributed(world_size=2, {arguments})\ndef test_it(world): ...\n"
        write_file(tmp_path, f"test_{number}.py", head + test)
    ended = run_pytest(starter, tmp_path, "--continue-on-collection-errors")
    assert ended.code != 0
    for said in _WRONG.values():
        assert said in ended.log, ended.log


_ENDLESS = """
    import os
    import signal
    import pytest
    from dist_testing.services import Service

    code = "import subprocess as s; p = s.Popen(['sleep', '995'], start_new_session=True); print(1); p.wait()"
    server = Service(["{python}", "-c", code], "server", healthy=lambda running: running.output())

    @pytest.mark.distributed(world_size=2, services=server)
    def test_it(world):
        print("it runs", flush=True)
        signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_runner_is_stopped(starter: Starter, tmp_path: Path, number: int) -> None:
    """If this fails, a cancelled job leaves a server and its children on the machine."""
    write_file(tmp_path, "test_cases.py", _ENDLESS)
    child = start_pytest(starter, tmp_path, "-s", "test_cases.py")
    running = psutil.Process(child.pid)
    with contextlib.suppress(psutil.NoSuchProcess):
        while "it runs" not in child.log and running.is_running() and running.status() != psutil.STATUS_ZOMBIE:
            wait_ended([child.pid], 0.05)
    assert "it runs" in child.log
    below = living_below(child.pid)
    assert any("995" in process.cmdline() for process in below)
    child.send_signal(number)
    child.wait()
    starter.wait_nothing_left(_LIMIT_S)
    assert not any(map(is_alive, below))
    assert_no_folder_left(tmp_path)


_KILLED_EARLY = """
    import os
    import signal
    import subprocess
    from dist_testing.services import Service

    class Keeper(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

    subprocess.Popen = Keeper
    Service(["true"]).__enter__()
"""


def test_runner_is_killed_before_its_keeper_runs(starter: Starter, tmp_path: Path) -> None:
    """If this fails, each job that is cancelled at this moment leaves a folder, for ever."""
    write_file(tmp_path, "runner.py", _KILLED_EARLY)
    assert starter.start(["runner.py"], tmp_path).wait() == -signal.SIGKILL
    starter.wait_nothing_left(_LIMIT_S)
    assert_no_folder_left(tmp_path)
