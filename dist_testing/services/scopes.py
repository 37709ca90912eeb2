"""The running services of this process that tests share, by their scope.

A fixture and the marked tests of one module share a service of scope "module". The scope is a text: that part of the
name of a test which all tests of the scope have.
"""

from __future__ import annotations

import atexit
import sys
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dist_testing.services.definition import Definition, Scope, ServiceError
from dist_testing.services.running import Running, started


@dataclass(eq=False)
class Shared:
    """A running service, and who uses it."""

    running: Running
    key: str  # its scope
    users: int = 0  # number of worlds and fixtures that use it now
    fixtures: set[str] = field(default_factory=set)  # names of the fixtures that have it
    is_told: bool = False  # whether a test has failed because it has ended

    def ended(self) -> str:
        """Return one sentence on how it has ended by itself, without a full stop; "" if it has not."""
        self.running.poll()
        return self.running.headline()

    def is_for(self, test: str) -> bool:
        """Return whether it is in the scope of a test."""
        return key_of(test, self.running.definition.scope) == self.key


_shared: list[Shared] = []
# Services that could not be started for a scope, with the error: each further test would wait as long for the same.
_failed: dict[tuple[Definition, str], str] = {}
# Node id of the test that pytest runs in this process; "" without pytest. A case of a unittest class has another name.
running_item = ""
# What was wrong with services before the module of plain unittest has ended.
_wrong: list[str] = []


def key_of(test: str, scope: Scope) -> str:
    """Return the scope of a test, by its name: a node id of pytest, or `module.Class.method` of unittest."""
    if scope == "session":
        return ""
    if scope == "function":
        return test
    path, colons, rest = test.partition("::")
    if not colons:
        cls = test.rpartition(".")[0]
        return cls if scope == "class" else cls.rpartition(".")[0]
    if scope == "module":
        return path
    # Parameters can contain colons. Outside a class, pytest's scope of a class is the test.
    owner = rest.partition("[")[0].rpartition("::")[0]
    return f"{path}::{owner}" if owner else test


def share(definition: Definition, key: str, log_line: Callable[[str], None], *, may_start: bool = True) -> Shared:
    """Return the running service of a scope; start it for the first user, unless it must not wait.

    A ServiceError says that it cannot be started, or has ended in the meantime.
    """
    for shared in _shared:
        if shared.running.definition is definition and shared.key == key:
            if text := ended_before(shared):
                raise ServiceError(f"{text}\n{shared.running.tail()}")
            break
    else:
        if not may_start:
            raise ServiceError(f"Service {definition.name} is not running yet.")
        if (definition, key) in _failed:
            raise ServiceError(_failed[definition, key])
        try:
            shared = Shared(started(definition, log_line), key)
        except ServiceError as error:
            if definition.scope != "function":
                scope = f'The tests of its scope, "{definition.scope}", share it, so it is not started again.'
                _failed[definition, key] = f"{error}\n{scope}"
            raise
        _shared.append(shared)
    shared.users += 1
    return shared


def ended_before(shared: Shared) -> str:
    """Return the error text of a test that needs a service which has ended before it; "" if it runs."""
    if not (headline := shared.ended()):
        return ""
    return (
        f"{headline} before this test.\n"
        f'The tests of its scope, "{shared.running.definition.scope}", share it, so it is not started again.\n'
        "Fix what ended it, or give it a smaller scope."
    )


def ended_in(shared: Shared) -> str:
    """Return how a service has ended, once: for the test in which it did. "" if it runs, or this was told before."""
    if shared.is_told:
        return ""
    shared.running.settle()
    headline = shared.ended()
    shared.is_told = bool(headline)
    return headline


def end(shared: Shared) -> list[str]:
    """Stop a service, unless that has been done, and return what is wrong."""
    if shared not in _shared:
        return []
    _shared.remove(shared)
    headline = ended_in(shared)
    return [*([headline] if headline else []), *shared.running.stop()]


def shared_by(test: str) -> Iterator[Shared]:
    """Yield the running services in whose scopes a test is."""
    return (shared for shared in _shared if shared.is_for(test))


def end_after(test: str, next_test: str | None) -> list[str]:
    """Stop the services whose last test is over; return what is wrong with them. None if no test follows."""
    over = [shared for shared in shared_by(test) if next_test is None or not shared.is_for(next_test)]
    # A world that was started ahead of its turn keeps its own until it ends.
    return [text for shared in over if not shared.users for text in end(shared)]


def follow_unittest(test: str) -> None:
    """Stop the services that a test of plain unittest does not share. What was wrong is an error after its module."""
    # Add-ons do not learn of the end of a class.
    _wrong.extend(text for one in list(_shared) if not (one.users or one.is_for(test)) for text in end(one))
    unittest.addModuleCleanup(_end_module)


def _end_module() -> None:
    over = [one for one in _shared if one.running.definition.scope != "session"]
    problems = [*_wrong, *(text for one in over for text in end(one))]
    _wrong.clear()
    if problems:
        raise ServiceError(f"{'; '.join(problems)}.")


def end_all() -> list[str]:
    """Stop what is left, because the run has ended; return what is wrong."""
    _failed.clear()
    return [text for shared in list(_shared) for text in end(shared)]


@atexit.register
def _end_at_exit() -> None:
    # Of scope "session" under plain unittest, and of a run that was cut off.
    for text in [*_wrong, *end_all()]:
        print(f"dist_testing: {text}", file=sys.stderr, flush=True)
