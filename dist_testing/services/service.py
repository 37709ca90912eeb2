"""The public class `Service`."""

from __future__ import annotations

import json
import os
from types import TracebackType
from typing import Any

from dist_testing.core.ground.errors import UsageError
from dist_testing.services.definition import Address, Definition, ServiceError
from dist_testing.services.running import Running, broken, started

# $DIST_TESTING_SERVICES (internal): port and pid of each service of the world of a rank, by its name, as JSON.
VARIABLE = "DIST_TESTING_SERVICES"


class Service(Definition):
    """A command or a function that runs as a long-lived process while tests use it.

        server = Service(["{python}", "-m", "http.server", "{port}"], healthy="/", scope="module")
        http = server.fixture()  # for ordinary tests


        def test_alone(http):
            urllib.request.urlopen(http.url)


        @pytest.mark.distributed(world_size=2, services=[server])
        def test_on_ranks(world):
            urllib.request.urlopen(server.url)

    As a context manager it runs for the block. `Definition` documents the arguments. All processes that it starts, in
    any session, end with it, also if the runner is killed.
    """

    # Those that run in this process, the innermost one last.
    _entered: list[Running]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_entered", [])

    def __enter__(self) -> Running:
        """Start it, and wait until it is healthy."""
        running = started(self)
        self._entered.append(running)
        return running

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop it. What is wrong is a ServiceError, or a note of the exception that leaves the block."""
        running = self._entered.pop()
        running.poll()
        headline = running.headline()
        problems = [*([headline] if headline else []), *running.stop()]
        if error is not None:
            error.add_note("\n".join([*problems, running.tail()]))
        elif problems:
            raise ServiceError(broken(problems, running))

    @property
    def url(self) -> str:
        """Its address for HTTP, on a rank whose test names it, in its block, or in a test with its fixture.

        Raises:
            UsageError: If it does not run here.
        """
        return self.address().url

    @property
    def port(self) -> int:
        """Its port; 0 for none. As `url`."""
        return self.address().port

    def address(self) -> Address:
        """Return where it is. As `url`."""
        told = json.loads(os.environ.get(VARIABLE, "{}"))
        if self.name in told:
            port, pid = told[self.name]
            return Address(port, pid)
        if not self._entered:
            raise UsageError(
                f"Service {self.name} does not run here.\n"
                "It runs for tests on ranks whose marker names it, for tests that use its fixture, and in its block.\n"
                "Write services=[server] in the marker of a test on ranks; else server = ....fixture(), or `with`."
            )
        return self._entered[-1]

    def fixture(self) -> Any:
        """Return a fixture of pytest for ordinary tests, of this scope. It gives the `Running` service."""
        # Late: programs use services without pytest.
        from dist_testing.services.pytest_plugin import fixture_of

        return fixture_of(self, self._entered, self.address)
