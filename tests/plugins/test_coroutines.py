"""Coroutines and properties as tests: their plug-ins run them on ranks of every isolation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Ended, run_pytest, write_file
from tests.support.starter import Starter

for _name in ("anyio", "hypothesis", "pytest_asyncio"):
    pytest.importorskip(_name, reason=f"{_name} (requirements_plugins.txt) is not installed")

_SUITE = """
    import asyncio
    import anyio
    import pytest
    import pytest_asyncio
    import torch
    import torch.distributed as dist
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    pytestmark = pytest.mark.distributed(world_size=2)

    async def total(number):
        tensor = torch.tensor(number)
        await asyncio.to_thread(dist.all_reduce, tensor)
        return tensor.item()

    @pytest_asyncio.fixture
    async def number(world):
        await asyncio.sleep(0)
        yield world.rank
        assert await total(1) == 2

    @pytest.mark.asyncio
    @pytest.mark.parametrize("more", [1, 2])
    async def test_asyncio(number, more):
        assert await total(number + more) == 1 + 2 * more

    @pytest.mark.asyncio
    async def test_fails(world):
        assert await total(1) == 2
        assert world.rank == 0

    class TestLoop:
        @pytest_asyncio.fixture(scope="class", loop_scope="class")
        async def loop(self):
            return asyncio.get_running_loop()

        @pytest.mark.asyncio(loop_scope="class")
        async def test_loop_of_class(self, loop):
            assert asyncio.get_running_loop() is loop

    @pytest.fixture
    async def doubled(anyio_backend, world):
        await anyio.sleep(0)
        yield 2 * world.rank
        await anyio.sleep(0)

    @pytest.mark.anyio
    async def test_anyio(doubled):
        assert await total(doubled) == 2

    @settings(
        derandomize=True,
        deadline=None,
        max_examples=5,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(number=st.integers(0, 9))
    def test_hypothesis(world, number):
        assert asyncio.run(total(number)) == 2 * number

    async def test_without_a_mark():
        assert await total(1) == 2
"""
_PASSED = ("asyncio[1]", "asyncio[2]", "loop_of_class", "hypothesis")
_PLUGINS = ("_hypothesis_pytestplugin", "anyio.pytest_plugin", "pytest_asyncio.plugin")


def _run(starter: Starter, folder: Path, *options: str) -> Ended:
    write_file(folder, "test_suite.py", _SUITE)
    named = [option for plugin in _PLUGINS for option in ("-p", plugin)]
    return run_pytest(starter, folder, "-rA", *named, *options, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})


@pytest.mark.parametrize("options", ["fork", "pool", "spawn", "thread --dist-backend=threaded"])
def test_the_plugin_runs_the_test_on_ranks(starter: Starter, tmp_path: Path, options: str) -> None:
    """If this fails, users of asyncio have to rewrite their tests, or a body does not run and its test passes."""
    ended = _run(starter, tmp_path, *f"--dist-isolation={options}".split())
    anyio = "FAILED" if "thread" in options else "PASSED"
    assert ended.outcomes() == {
        **{f"test_{name}": "PASSED" for name in _PASSED},
        "test_anyio[asyncio]": anyio,
        "test_fails": "FAILED",
        "test_without_a_mark": "FAILED",
    }, ended.log
    for said in (
        "rank 1 raised AssertionError: assert 1 == 0 in call",
        "Without one, make the test a plain function; asyncio.run() in it runs a coroutine.",
        *(["A rank that is a thread uses the fixture `anyio_backend`."] if anyio == "FAILED" else []),
    ):
        assert said in ended.log, f"{said}\n{ended.log}"


def test_mode_auto(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a suite whose configuration marks its coroutines has to mark them again."""
    ended = _run(starter, tmp_path, "--override-ini=asyncio_mode=auto", "-k", "without_a_mark")
    assert ended.outcomes() == {"test_without_a_mark": "PASSED"}, ended.log
