"""What a service may be, the scopes of tests, and who is to blame: without a process."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.ground.outcomes import Cause, Kind, RankOutcome, Status, Verdict
from dist_testing.services import Service
from dist_testing.services.definition import Scope
from dist_testing.services.keeper import Ended
from dist_testing.services.of_world import blamed
from dist_testing.services.running import Running
from dist_testing.services.scopes import Shared, key_of
from tests.support.results import refusal, result_of


def _serve(port: int, *, model: str) -> None:
    raise AssertionError("no service starts here")


def _with_default(fd: int, model: str = "tiny") -> None:
    raise AssertionError("no service starts here")


def _with_both(port: int, fd: int) -> None:
    raise AssertionError("no service starts here")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": "python -m http.server"}, "command = 'python -m http.server'; expected a list of texts"),
        ({"command": []}, "command = []; expected a list of texts"),
        ({"command": ["sleep", 3]}, "command = ['sleep', 3]; expected a list of texts"),
        ({"command": ["a", "\0"]}, "expected a list of texts"),
        ({"command": ["a"], "env": {"A": "\0"}}, "expected a dict of texts"),
        ({"command": ["a"], "env": {"A=B": ""}}, "env = {'A=B': ''}; expected a dict of texts, without = in a name"),
        ({"command": Path("serve")}, "command = PosixPath('serve'); expected a list of texts"),
        ({"command": lambda: None}, "which is no function of a module"),
        ({"command": Service(["a"]).wrong}, "which is no function of a module"),
        ({"command": _serve}, "the function takes model"),
        ({"command": ["a", "{port}", "{fd}"]}, "the command takes {port} and {fd}"),
        ({"command": _with_both}, "the command takes {port} and {fd}"),
        ({"command": ["a", "{fd}"]}, "{fd} with healthy = None"),
        ({"command": _with_default, "healthy": "tcp"}, "{fd} with healthy = 'tcp'"),
        ({"command": ["a"], "healthy": "/"}, "healthy = '/' without a port"),
        ({"command": ["a", "port", "fd"], "healthy": "/"}, "healthy = '/' without a port"),
        ({"command": ["a", "{port}"], "healthy": "health"}, "healthy = 'health'; expected a path"),
        ({"command": ["a", "{port}"], "healthy": 3}, "healthy = 3; expected a path"),
        ({"command": ["a", "{port}"], "healthy": "/gesünd"}, "healthy = '/gesünd'; expected a path in ASCII"),
        ({"command": ["a"], "healthy": re.compile(b"up")}, "expected a path"),
        ({"command": ["a", "{port}"], "healthy": Path("/")}, "healthy = PosixPath('/'); expected a path"),
        ({"command": ["a", "{port}"], "announces": "port (.*)"}, "and the command takes {port}"),
        ({"command": ["a"], "announces": "port"}, "announces = 'port'; expected a regular expression with one group"),
        ({"command": ["a"], "announces": b"(.)"}, "announces = b'(.)'; expected a regular expression with one group"),
        ({"command": ["a"], "announces": "("}, "announces = '('; expected a regular expression with one group"),
        ({"command": ["a"], "fixed_port": 80}, "fixed_port = 80, which the command does not take"),
        ({"command": ["a", "{port}"], "fixed_port": 65536}, "fixed_port = 65536; expected a number from 0 to 65535"),
        ({"command": ["a"], "timeout": 0}, "timeout = 0; expected a number of seconds above 0"),
        ({"command": ["a"], "grace": True}, "grace = True; expected a number of seconds above 0"),
        ({"command": ["a"], "gpus": -1}, "gpus = -1; expected a number from 0"),
        ({"command": ["a"], "env": {"A": 5}}, "env = {'A': 5}; expected a dict of texts"),
        ({"command": ["a"], "env": "A=5"}, "env = 'A=5'; expected a dict of texts"),
        ({"command": ["a"], "cwd": 5}, "cwd = 5; expected a path"),
        ({"command": ["a"], "scope": "package"}, "scope = 'package'; expected one of function, class, module, session"),
    ],
)
def test_impossible_services(arguments: dict[str, Any], said: str) -> None:
    """If this fails, a mistake is a traceback, or a service that never gets healthy."""
    first, cause, way_out = refusal(lambda: Service(**arguments)).splitlines()
    assert first.startswith("Service ")
    assert said in first
    assert cause.endswith(".")
    assert way_out.endswith(".")


@pytest.mark.parametrize(
    ("test", "scope", "key"),
    [
        ("a/test_b.py::test_c", "session", ""),
        ("a/test_b.py::test_c", "module", "a/test_b.py"),
        ("a/test_b.py::TestC::test_d[x::y]", "module", "a/test_b.py"),
        ("a/test_b.py::TestC::test_d[x::y]", "class", "a/test_b.py::TestC"),
        ("a/test_b.py::TestC::TestD::test_e", "class", "a/test_b.py::TestC::TestD"),
        ("a/test_b.py::test_c[x::y]", "class", "a/test_b.py::test_c[x::y]"),
        ("a/test_b.py::test_c[1]", "function", "a/test_b.py::test_c[1]"),
        ("a.test_b.TestC.test_d", "class", "a.test_b.TestC"),
        ("a.test_b.TestC.test_d", "module", "a.test_b"),
    ],
)
def test_scope_of_a_test(test: str, scope: Scope, key: str) -> None:
    """If this fails, a service ends while tests of its scope need it, or is never ended."""
    assert key_of(test, scope) == key


_RAISED = RankOutcome(0, Kind.RAISED, at_s=10.0, summary="ConnectionRefusedError")
_STOPPED = RankOutcome(1, Kind.STOPPED, at_s=12.0)


def _ended(at_s: float) -> Shared:
    running = object.__new__(Running)
    running.definition = Service(["serve"])
    running.ended = Ended(-9, at_s)
    running._is_awaited = False
    return Shared(running, "")


@pytest.mark.parametrize(
    ("outcomes", "at_s", "is_to_blame"),
    [
        ([_RAISED, _STOPPED], 9.9, True),
        # The rank has noticed the end before the keeper told it.
        ([_RAISED, _STOPPED], 11.9, True),
        ([_RAISED, _STOPPED], 12.1, False),
        ([dataclasses.replace(_RAISED, kind=Kind.STOPPED), _STOPPED], 11.0, True),
        ([RankOutcome(0, Kind.PASSED), RankOutcome(1, Kind.PASSED)], 11.0, True),
    ],
)
def test_who_is_to_blame(outcomes: list[RankOutcome], at_s: float, is_to_blame: bool) -> None:
    """If this fails, a server's crash is told as a rank's bug, or a rank's bug as the server's crash."""
    result = result_of(outcomes)
    expected = Verdict(Status.FAILED, Cause.FAILURE, "the service serve has ended with SIGKILL (9)")
    assert blamed(result, _ended(at_s)) == (expected if is_to_blame else result.verdict)
