"""Services in a session of pytest: the fixture, the end of scopes, and what a report says of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from dist_testing.core.ground.add_ons import add_on_named
from dist_testing.core.ground.errors import DistTestingError
from dist_testing.core.pytest.options import register_plugin
from dist_testing.core.pytest.pytest_rank import current_world
from dist_testing.services import scopes
from dist_testing.services.definition import Address, Definition
from dist_testing.services.running import Running
from dist_testing.services.scopes import Shared, end_after, end_all, ended_before, ended_in, share, shared_by


def plugin_of(config: pytest.Config) -> _Plugin:
    """Return the plugin for a session."""
    return _Plugin()


def fixture_of(definition: Definition, entered: list[Running], address: Callable[[], Address]) -> Any:
    """Return the fixture of a service.

    `entered` has those of its `Running` that this process uses now. On a rank, `address` returns where it is.
    """

    @pytest.fixture(scope=definition.scope)
    def service(request: pytest.FixtureRequest) -> Iterator[Address]:
        if current_world() is not None:
            yield address()
            return
        # Of a session in which no marked test has a service.
        register_plugin(request.config, add_on_named("services", "a fixture of a service"))
        try:
            shared = share(definition, request.node.nodeid, lambda line: None)
        except DistTestingError as error:
            # Its text is enough, also in a session without tests on ranks.
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        shared.fixtures.add(str(request.fixturename))
        entered.append(shared.running)
        yield shared.running
        entered.remove(shared.running)
        shared.users -= 1

    return service


class _Plugin:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Note the test. Fail one whose service has ended before it."""
        scopes.running_item = item.nodeid
        for shared in _used_by(item):
            if text := ended_before(shared):
                pytest.fail(f"{item.nodeid}: {text}", pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Fail a test in which a service has ended. Stop the services whose last test is over."""
        problems = [text for shared in _used_by(item) if (text := ended_in(shared))]
        try:
            return (yield)
        finally:
            problems += end_after(item.nodeid, nextitem.nodeid if nextitem is not None else None)
            if problems:
                pytest.fail(f"{item.nodeid}: {'; '.join(problems)}.", pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add what the services of a failed test have printed, and that one has ended."""
        report = yield
        if report.failed:
            for shared in _used_by(item):
                headline = shared.ended()
                text = f"{headline[:1].upper()}{headline[1:]}.\n" if headline else ""
                report.sections.append((f"service {shared.running.definition.name}", text + shared.running.tail()))
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Stop what is left, such as after -x."""
        for text in end_all():
            session.config.get_terminal_writer().line(f"dist_testing: {text}")


def _used_by(item: pytest.Item) -> Iterator[Shared]:
    names = set(getattr(item, "fixturenames", ()))
    return (shared for shared in shared_by(item.nodeid) if shared.fixtures & names)
