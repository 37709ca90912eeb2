"""Services as a `with` block starts them: what works, each way to fail, and that nothing of them is left."""

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
from dist_testing.services.scopes import end_all, share
from tests.support.children import write_file
from tests.support.gpu_nodes import make_nodes
from tests.support.starter import living_below

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


def test_service_that_did_not_start_is_not_started_again_in_its_scope(tmp_path: Path) -> None:
    """If this fails, each test of a module waits a minute for a broken server; or a later run has the error of this."""
    starts = tmp_path / "starts"
    service = _script(f"open({str(starts)!r}, 'a').write('x')", scope="module")
    for key, told, count in (("a.py", False, 1), ("a.py", True, 1), ("b.py", False, 2)):
        with pytest.raises(ServiceError, match="ended with exit code 0 before it was healthy") as caught:
            share(service, key, print)
        assert (
            str(caught.value).endswith('The tests of its scope, "module", share it, so it is not started again.')
            == told
        )
        assert len(starts.read_text()) == count
    end_all()
    with pytest.raises(ServiceError):
        share(service, "a.py", print)
    assert len(starts.read_text()) == 3


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
