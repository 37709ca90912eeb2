"""Services as a user starts them: what works, each way to fail, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import select
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from dist_testing.core.ground.errors import UsageError
from dist_testing.gpus.devices import gpus_present
from dist_testing.gpus.gpu import NODES_VARIABLE
from dist_testing.gpus.lease import find_holders
from dist_testing.services import Running, Service, ServiceError
from tests.support.children import assert_no_folder_left, run_cases, run_pytest, start_pytest, write_file
from tests.support.gpu_nodes import make_nodes
from tests.support.starter import Starter, is_alive, living_below, wait_ended

_HTTP = ["{python}", "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
_READY = re.compile("ready")
_LIMIT_S = 60.0
_STAYS = "import time; print('ready', flush=True); time.sleep(999)"
_IGNORES = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_STAYS}"
# Leaves a child in a session of its own.
_LEAVES = f"import subprocess; subprocess.Popen(['sleep', '998'], start_new_session=True); {_STAYS}"


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer with the number of the process."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.getpid()} {os.environ.get('GREETING', '')}".encode())


def serve_socket(fd: int) -> None:
    """Serve HTTP on a socket that the runner has opened."""
    server = HTTPServer(("127.0.0.1", 0), _Hello, bind_and_activate=False)
    server.socket = socket.socket(fileno=fd)
    server.serve_forever()


def serve_port(port: int, greeting: str = "hello") -> None:
    """Serve HTTP at a port."""
    os.environ["GREETING"] = greeting
    HTTPServer(("127.0.0.1", port), _Hello).serve_forever()


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check after each test that no process and no folder of a service is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = {process.pid for process in living_below(os.getpid())}
    yield
    assert [process for process in living_below(os.getpid()) if process.pid not in before] == []
    assert list(tmp_path.glob("dist-service-*")) == []


def _script(code: str, **arguments: Any) -> Service:
    """Return a service that runs a program, which says when it is ready."""
    return Service(["{python}", "-c", code], name="script", **{"healthy": _READY, "grace": 0.3, **arguments})


def _read(url: str) -> str:
    return str(urllib.request.urlopen(url).read().decode())


def test_server_of_a_command() -> None:
    """The first service of most projects."""
    service = Service(_HTTP, healthy="/")
    with service as http:
        assert "Directory listing" in _read(http.url)
        assert service.url == http.url
        assert '"GET / HTTP/1.1" 200' in http.output()
    with pytest.raises(urllib.error.URLError):
        _read(http.url)
    with pytest.raises(UsageError, match="does not run here"):
        _ = service.url


def test_server_of_a_function() -> None:
    """A server of a few lines needs no file of its own, and no port can be taken before it listens."""
    with Service(serve_socket, healthy="/") as http:
        assert _read(http.url) == f"{http.pid} "
    with Service(serve_port, env={"GREETING": "unused"}) as http:
        assert _read(http.url) == f"{http.pid} hello"


@pytest.mark.parametrize("name", ["no_package.elsewhere", "json.tool"])
def test_function_of_a_file_that_no_path_leads_to(tmp_path: Path, name: str) -> None:
    """pytest imports test files so with `--import-mode=importlib`, and several conftest.py by one name."""
    source = """
            import functools
            import signal

            @functools.cache
            def serve():
                print(__name__, "is ready", flush=True)
                signal.pause()
    """
    write_file(tmp_path, "elsewhere.py", source)
    spec = importlib.util.spec_from_file_location(name, tmp_path / "elsewhere.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with Service(module.serve, healthy=re.compile(f"{name} is ready")) as running:
        assert "Traceback" not in running.output()


def test_announced_port_and_a_function_as_health() -> None:
    """Many servers choose their port, and only they know what healthy means."""
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print('ready at port', s.getsockname()[1], "
        "flush=True); s.accept()[0].recv(1)"
    )
    looks: list[int] = []

    def third(running: Running) -> bool:
        looks.append(running.port)
        return len(looks) == 3

    with _script(code, announces=r"at port (\d+)", healthy=third) as server:
        assert looks == [server.port] * 3
        socket.create_connection((server.host, server.port)).close()
        # It ends when its client has gone.
        assert server.wait(_LIMIT_S) == 0


def test_torchrun_as_the_command(tmp_path: Path) -> None:
    """If this fails, the workers that torchrun starts outlive the service."""
    source = """
            import os, time
            import torch, torch.distributed as dist

            dist.init_process_group("gloo")
            total = torch.ones(1)
            dist.all_reduce(total)
            print(f"rank {dist.get_rank()} of {int(total)} has pid {os.getpid()}", flush=True)
            time.sleep(1000)
    """
    script = write_file(tmp_path, "train.py", source)
    command = ["{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    both = re.compile(r"rank \d of 2(.|\n)*rank \d of 2")
    with Service(command, name="torchrun", healthy=both, timeout=_LIMIT_S, grace=_LIMIT_S) as running:
        workers = [int(pid) for pid in re.findall(r"has pid (\d+)", running.output())]
        assert len(workers) == 2
        assert all(map(psutil.pid_exists, workers))
    assert not any(map(psutil.pid_exists, workers))


def test_process_that_ignores_sigterm_is_killed_and_told() -> None:
    """If this fails, a stubborn server hangs the run, or is killed without a word."""
    service = _script(_IGNORES)
    with service as running:
        pass
    assert "dist_testing: killed after SIGTERM and 0.3 s: " in running.tail()
    assert f"(pid {running.pid})" in running.tail()


def test_ctrl_c_while_a_service_ends() -> None:
    """If this fails, Ctrl-C at the end of a slow service leaves its folder, for ever."""
    handler = f"import os, signal; signal.signal(signal.SIGTERM, lambda *_: os.kill({os.getpid()}, signal.SIGINT))"
    service = _script(f"{handler}; print('ready', flush=True)\nwhile 1: signal.pause()")
    with pytest.raises(KeyboardInterrupt), service as running:
        pass
    running._keeper.wait(_LIMIT_S)


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (Service(["no-such-program", "{port}"]), "'no-such-program' cannot be started: No such file or directory."),
        (Service(["/etc/passwd"]), "'/etc/passwd' cannot be started: Permission denied."),
        (Service(["true"], cwd="/no/such/folder"), "its keeper cannot be started: [Errno 2]"),
        (_script("raise SystemExit('no model')"), "it ended with exit code 1 before it was healthy."),
        (_script("import os; os.kill(os.getpid(), 11)"), "it ended with SIGSEGV (11) before it was healthy."),
        (
            _script("import time; print('port x', flush=True); time.sleep(999)", announces="port (.+)", timeout=0.5),
            "it was not healthy within 0.5 s: its output does not announce a port by 'port (.+)'.",
        ),
        (
            _script("import time; print('port 65536', flush=True); time.sleep(99)", announces="port (.+)", timeout=0.5),
            "it was not healthy within 0.5 s: its output does not announce a port by 'port (.+)'.",
        ),
        (
            _script("import time; print('slow', flush=True); time.sleep(999)", timeout=0.5),
            "it was not healthy within 0.5 s: its output does not contain 'ready'.",
        ),
        (
            Service(_HTTP, healthy="/missing", timeout=1.0),
            "it was not healthy within 1 s: GET /missing: 404 File not found.",
        ),
        (
            _script(_STAYS, healthy=lambda running: json.loads("")),
            "its health check raised JSONDecodeError: Expecting value: line 1 column 1 (char 0).",
        ),
    ],
    ids=["program", "permission", "folder", "exit", "crash", "no port", "high port", "slow", "404", "health"],
)
def test_service_that_does_not_get_healthy(service: Service, said: str) -> None:
    """If this fails, a server that cannot start is a timeout of the test, without a reason."""
    with pytest.raises(ServiceError) as raised, service:
        raise AssertionError("it is not healthy")
    first, cause, way_out, *log = str(raised.value).splitlines()
    assert first.startswith(f"Service {service.name}: {said}")
    assert cause.endswith(".")
    assert way_out.endswith((".", "tests."))
    if "no model" in str(service.command):
        assert log == ["The end of the output of the service script:", "no model"]


def test_port_in_use() -> None:
    """If this fails, the user looks for who has the port, or the test talks to another server."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError) as raised, Service(_HTTP, fixed_port=port):
            raise AssertionError("the port is taken")
    first, cause, way_out = str(raised.value).splitlines()
    assert first.endswith(f"port {port} is in use.")
    assert cause.startswith(f"Process {os.getpid()} listens there: ")
    assert way_out.startswith("End it, ")
    with Service(_HTTP, fixed_port=port) as http:
        assert http.port == port


def test_port_is_kept_for_the_service() -> None:
    """If this fails, another process gets the port while the service loads, and the service cannot open it."""
    waiting = Running(Service(["{python}", "-c", "import time; time.sleep(999)", "{port}"]), lambda line: None)
    with contextlib.closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", waiting.port))
    assert waiting.stop() == []


def test_child_in_its_own_session_is_left_behind() -> None:
    """If this fails, a helper of the server lives for days, and holds its port or its GPU."""
    with pytest.raises(ServiceError) as raised, _script(_LEAVES):
        pass
    assert re.match(
        r"the service script has left processes behind, now killed: sleep 998 \(pid \d+\)\.\n.*\.\n.*\.\nThe end of",
        str(raised.value),
    )


def test_port_still_in_use_after_the_end() -> None:
    """If this fails, the next service at this port fails, and nothing says which one has kept it."""
    code = (
        "import socket, time; s = socket.create_server(('127.0.0.1', {port}), reuse_port=True); "
        "print('ready', flush=True); time.sleep(999)"
    )
    with contextlib.ExitStack() as stack, pytest.raises(ServiceError) as raised, _script(code) as running:
        # Another process could have got it from the service, and keep it.
        stack.enter_context(socket.create_server((running.host, running.port), reuse_port=True))
    assert str(raised.value).startswith(f"port {running.port} of the service script is still in use after its end.\n")


def test_exception_in_the_block_has_the_log_as_a_note() -> None:
    """If this fails, a user sees that a request failed, and not what the server said about it."""
    with pytest.raises(ZeroDivisionError) as raised, _script(_STAYS):
        _ = 1 / 0
    assert raised.value.__notes__ == ["The end of the output of the service script:\nready"]


def test_service_that_ends_in_its_block() -> None:
    """If this fails, what the block did not ask the server is a silent pass."""
    with (
        pytest.raises(ServiceError, match=r"^the service script has ended with SIGKILL \(9\)\."),
        _script(_STAYS) as one,
    ):
        _kill(one, one.pid)


def test_end_that_the_keeper_is_late_to_tell() -> None:
    """If this fails, a rank whose service was killed is to blame on a busy machine."""
    said = "the service script has ended with SIGKILL (9)"
    with pytest.raises(ServiceError, match="^" + re.escape(said)), _script(_STAYS) as one:
        assert _killed_with_a_slow_keeper(one) == said


def _killed_with_a_slow_keeper(service: Running) -> str:
    """Kill a service while its keeper is stopped; return what the runner knows when it has heard the keeper out."""
    keeper = psutil.Process(service.pid).ppid()
    ended = os.pidfd_open(service.pid)
    os.kill(keeper, signal.SIGSTOP)
    try:
        os.kill(service.pid, signal.SIGKILL)
        select.select([ended], [], [])
        assert service.poll() is None
    finally:
        os.close(ended)
        threading.Thread(target=os.kill, args=(keeper, signal.SIGCONT)).start()
    service.settle()
    return service.headline()


def test_killed_keeper_takes_all_with_it() -> None:
    """If this fails, the out-of-memory killer leaves a server without an owner."""
    with pytest.raises(ServiceError, match="now killed: sleep 998"), _script(_LEAVES) as running:
        _kill(running, psutil.Process(running.pid).ppid())


def _kill(running: Running, pid: int) -> None:
    """Kill a process, and wait until the runner knows that the service has ended."""
    os.kill(pid, signal.SIGKILL)
    assert running.poll(_LIMIT_S) is not None


def test_gpus_are_leased_for_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a server and a test use one GPU, and one of them lacks memory."""
    monkeypatch.setenv(NODES_VARIABLE, str(make_nodes(tmp_path / "nodes", range(3))))
    code = "import os, time; print('ready', os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(999)"
    with _script(code, gpus=2) as running:
        assert running.output() == "ready GPU-simulated-0,GPU-simulated-1\n"
        assert {gpu.index for gpu in find_holders(gpus_present())} == {0, 1}
        with (
            pytest.raises(ServiceError, match=r"2 GPU\(s\) could not be had within 1 s"),
            _script(code, gpus=2, timeout=0.2),
        ):
            raise AssertionError("only one is free")
    assert not find_holders(gpus_present())
    with (
        pytest.raises(ServiceError, match=r"4 GPU\(s\) were asked for, and this process may use 3"),
        _script(code, gpus=4),
    ):
        raise AssertionError("there are three")


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
