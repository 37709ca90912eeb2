"""What a service is: the arguments of `Service`, checked."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from dist_testing.core.ground.budget import MAX_TIMEOUT_S, is_timeout
from dist_testing.core.ground.error_text import name_of
from dist_testing.core.ground.errors import LaunchError, UsageError
from dist_testing.core.launch.fresh import interpreter
from dist_testing.services.function_host import ARGUMENTS
from dist_testing.services.keeper import Opens

SCOPES = ("function", "class", "module", "session")
Scope: TypeAlias = Literal["function", "class", "module", "session"]
# An HTTP path; "tcp"; an expression that a line of its output matches; a function of the running service.
Health: TypeAlias = str | re.Pattern[str] | Callable[[Any], object]
TCP = "tcp"
_NAME_CHARS = 60
_SECONDS = f"a number of seconds above 0, up to {MAX_TIMEOUT_S}"
_EXAMPLE = 'Write Service(["{python}", "-m", "http.server", "{port}"], healthy="/"), for example.'


class ServiceError(LaunchError):
    """A service could not be started, has ended too early, or has left something behind."""


@dataclass(eq=False)
class Address:
    """Where a service is.

    Attributes:
        port: Its port; 0 for none.
        pid: Its main process, which is also the number of its process group.
        host: The loopback interface.
    """

    port: int = 0
    pid: int = 0
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        """Its address for HTTP, such as "http://127.0.0.1:4711"."""
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True, eq=False)
class Definition:
    r"""What a service is, and how it is started. Nothing of it runs yet.

    Attributes:
        command: A program and its arguments, or a function of a module, which is called in a fresh interpreter. Parts
            of the command can be, or contain: `{port}`, the number of a free port of 127.0.0.1; `{fd}`, a descriptor
            that listens there; `{python}`, the interpreter of the tests. A function gets what its parameters, `port` or
            `fd`, name.
        name: What reports call it; by default the command or the function.
        healthy: How the runner learns that the service can be used: a path such as "/health", which HTTP must answer
            with a status from 200 to 399; "tcp", for a connection; a compiled expression that its output contains; a
            function of the `Running` service that returns something true, where an OSError means "not yet". By default
            "tcp" for a service with `{port}` or `announces`, and nothing for one without a port.
        announces: An expression, with one group, for the port in the output of a service that opens a port by itself,
            such as r"listening on .*:(\d+)".
        fixed_port: A fixed number for `{port}` or `{fd}`; 0 for a free one.
        timeout: Limit in seconds from the start until the service is healthy.
        grace: Seconds from SIGTERM to SIGKILL at the end.
        gpus: Number of GPUs that are leased for the service, which alone it sees.
        env: Variables that are added to those of the runner.
        cwd: Folder in which the service runs; by default that of the runner.
        scope: How long tests share it: "function", "class", "module" or "session", as a fixture of pytest.
    """

    command: Sequence[str] | Callable[..., object]
    name: str = ""
    healthy: Health | None = field(default=None, kw_only=True)
    announces: str = field(default="", kw_only=True)
    fixed_port: int = field(default=0, kw_only=True)
    timeout: float = field(default=60.0, kw_only=True)
    grace: float = field(default=10.0, kw_only=True)
    gpus: int = field(default=0, kw_only=True)
    env: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    cwd: str | Path | None = field(default=None, kw_only=True)
    scope: Scope = field(default="function", kw_only=True)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.command))
        self._check_command()
        is_group = isinstance(self.announces, str) and _groups_of(self.announces) == 1
        is_env = (
            isinstance(self.env, Mapping)
            and _are_texts([*self.env, *self.env.values()])
            and "=" not in "".join(self.env)
        )
        for argument, is_right, expected in (
            ("name", isinstance(self.name, str), "a text"),
            (
                "healthy",
                self.healthy is None or _is_health(self.healthy),
                'a path in ASCII without spaces, "tcp", re.compile(...) of a text, or a function',
            ),
            ("announces", not self.announces or is_group, "a regular expression with one group, for the port"),
            ("fixed_port", type(self.fixed_port) is int and 0 <= self.fixed_port < 1 << 16, "a number from 0 to 65535"),
            ("timeout", is_timeout(self.timeout), _SECONDS),
            ("grace", is_timeout(self.grace), _SECONDS),
            ("gpus", type(self.gpus) is int and self.gpus >= 0, "a number from 0"),
            ("env", is_env, "a dict of texts, without = in a name"),
            ("cwd", isinstance(self.cwd, str | os.PathLike | None), "a path"),
            ("scope", self.scope in SCOPES, f"one of {', '.join(SCOPES)}"),
        ):
            if not is_right:
                raise self.wrong(f"{argument} = {getattr(self, argument)!r:.200}; expected {expected}")
        if self.announces and self.opens:
            raise self.wrong(
                f"announces = {self.announces!r}, and the command takes {{{self.opens}}}",
                "Either the service announces its port, or it is told one.",
                "Leave one of the two out.",
            )
        if self.fixed_port and not self.opens:
            raise self.wrong(
                f"fixed_port = {self.fixed_port}, which the command does not take",
                "The number is for {port} or {fd} in the command.",
                "Write {port} there, or leave fixed_port out.",
            )
        if self.opens == "fd" and self.healthy in (None, TCP):
            raise self.wrong(
                f"{{fd}} with healthy = {self.healthy!r}",
                "The runner's socket accepts connections before the service does, so a connection shows nothing.",
                'Give an HTTP path, an expression or a function, as in healthy="/health".',
            )
        if isinstance(self.healthy, str) and not (self.opens or self.announces):
            raise self.wrong(
                f"healthy = {self.healthy!r} without a port",
                "A request needs one.",
                "Write {port} in the command, or give announces, the expression for the port in the output.",
            )

    def __repr__(self) -> str:
        return f"<Service {self.name}>"

    @property
    def opens(self) -> Opens:
        """Who opens the port."""
        return next(iter(self._opened_by()), "")

    def prepared(self) -> tuple[list[str], list[int]]:
        """Return the command with placeholders of the port only, and descriptors that it inherits, for the caller."""
        if not callable(self.command):
            return [part.replace("{python}", sys.executable) for part in self.command], []
        function: Any = self.command
        module = function.__module__
        order = {
            # The main module of a program must not run as such in the interpreter of the service.
            "module": "__mp_main__" if module == "__main__" else module,
            "file": inspect.getsourcefile(inspect.unwrap(function)),
            "name": function.__qualname__,
            "takes": _parameters(function),
        }
        arguments, descriptor = interpreter("dist_testing.services.function_host", json.dumps(order))
        return [*arguments, *ARGUMENTS], [descriptor]

    def wrong(self, what: str, cause: str = "", way_out: str = _EXAMPLE) -> UsageError:
        """Return the error of a wrong argument."""
        cause = cause or "An argument of a service has a value that cannot be used."
        return UsageError(f"Service {self.name}: {what}.\n{cause}\n{way_out}")

    def _opened_by(self) -> list[Opens]:
        """Return the placeholders of the command, or the parameters of the function."""
        if callable(command := self.command):
            return [kind for kind in ("port", "fd") if kind in _parameters(command)]
        return [kind for kind in ("port", "fd") if any(f"{{{kind}}}" in part for part in command)]

    def _check_command(self) -> None:
        command: Any = self.command
        if callable(command):
            is_of_instance = inspect.ismethod(command) and not isinstance(command.__self__, type)
            if is_of_instance or "<" in getattr(command, "__qualname__", "<") or not hasattr(command, "__module__"):
                raise self.wrong(
                    f"command = {command!r:.200}, which is no function of a module",
                    "A fresh interpreter finds it by its name; a lambda, an inner function or a method has none.",
                    "Define it at the top level of a module.",
                )
            if unknown := [name for name in _parameters(command) if name not in ("port", "fd")]:
                raise self.wrong(
                    f"the function takes {', '.join(unknown)}",
                    "It gets port, the number of a free port, or fd, a descriptor that listens there.",
                    "Give other parameters default values, and set env to tell the service more.",
                )
        elif not isinstance(command, Sequence) or isinstance(command, str) or not command or not _are_texts(command):
            raise self.wrong(
                f"command = {command!r:.200}; expected a list of texts, or a function",
                "No shell reads the command, so each argument is a text of its own.",
            )
        if len(self._opened_by()) > 1:
            raise self.wrong(
                "the command takes {port} and {fd}", "The service, or the runner, opens the port.", "Leave one out."
            )


def _parameters(function: Callable[..., object]) -> list[str]:
    """Return the names of the parameters that a call must give."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in kinds]


def _are_texts(values: Sequence[object]) -> bool:
    # No program can be given a null character.
    return all(isinstance(value, str) and "\0" not in value for value in values)


def _name_of(command: Sequence[str] | Callable[..., object]) -> str:
    if callable(command):
        return name_of(command)
    text = " ".join(" ".join(map(str, command)).split()) if isinstance(command, Sequence) else str(command)
    return text if len(text) <= _NAME_CHARS else f"{text[:_NAME_CHARS]}..."


def _is_health(value: object) -> bool:
    if isinstance(value, re.Pattern):
        return isinstance(value.pattern, str)
    return callable(value) or value == TCP or (isinstance(value, str) and re.fullmatch("/[!-~]*", value) is not None)


def _groups_of(expression: str) -> int:
    try:
        return re.compile(expression).groups
    except re.error:
        return -1
