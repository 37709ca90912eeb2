"""Environment variables under Bazel: the runner keeps its own to itself, and a wrong one still leaves results."""

from __future__ import annotations

import gc

import pytest

from tests.support.children import Bazel

_THREADS = """
    import os
    import pytest

    def threads():
        return [os.environ.get(f"{name}_NUM_THREADS") for name in ("OPENBLAS", "OMP")]

    AT_IMPORT = threads()

    def test_in_runner():
        assert ["at import", AT_IMPORT, "in a test", threads()] == IN_RUNNER

    @pytest.mark.distributed
    def test_on_rank(world):
        assert threads() == ON_RANK
"""


@pytest.mark.parametrize(
    ("given", "at_import", "on_rank"),
    [
        ({}, ["1", None], "[str(max(1, len(os.sched_getaffinity(0)) // 2))] * 2"),
        ({"OMP_NUM_THREADS": "3"}, ["1", "3"], [None, "3"]),
        ({"OPENBLAS_NUM_THREADS": "5", "OMP_NUM_THREADS": "3"}, ["5", "3"], ["5", "3"]),
    ],
    ids=["a share", "the user's for all", "the user's"],
)
def test_threads_are_limited_during_import_and_then_a_ranks_share(
    bazel: Bazel,
    given: dict[str, str],
    at_import: list[str | None],
    on_rank: object,
) -> None:
    """If this fails, programs that a rank starts, such as numpy, compute with one thread, whatever the user set."""
    none = dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"))
    in_test = [given.get("OPENBLAS_NUM_THREADS"), given.get("OMP_NUM_THREADS")]
    source = f"{_THREADS}\n    IN_RUNNER = {['at import', at_import, 'in a test', in_test]}\n    ON_RANK = {on_rank}\n"
    bazel.run(source, env={**none, **given})


def test_a_wrong_limit_of_torchs_names_affects_only_their_users(bazel: Bazel) -> None:
    """If this fails, a wrong variable on the machine ends every run at its first import, without results."""
    source = """
        import pytest
        import dist_testing

        @pytest.mark.distributed
        def test_on_rank(world): ...

        class UnittestTest(dist_testing.MultiProcessTestCase):
            def test_method(self): ...
    """
    target, _ = bazel.run(source, env={"DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "abc"}, fresh=True)
    assert set(target.xml()) == {"test_on_rank", "test_method"}


_COLLECTOR = """
    import gc
    import pytest

    AT_IMPORT = gc.get_threshold()
    CHANGES

    def usual():
        return gc.isenabled() and gc.get_threshold()

    def test_at_import():
        assert AT_IMPORT[0] == 0

    def test_in_runner():
        assert usual() == EXPECTED

    @pytest.mark.distributed
    def test_on_rank(world):
        assert usual() == EXPECTED
"""


@pytest.mark.parametrize(
    ("changes", "expected", "isolation"),
    [
        ("", gc.get_threshold(), "fork"),
        ("gc.set_threshold(300, 7, 9)", (300, 7, 9), "fork"),
        ("gc.disable()", False, "fork"),
        ("gc.disable()", False, "spawn"),
    ],
    ids=["as without us", "limits of the user", "switched off by the user", "switched off in a fresh interpreter"],
)
def test_garbage_collector_rests_while_modules_are_imported(
    bazel: Bazel, changes: str, expected: object, isolation: str
) -> None:
    """If this fails, tests leak memory that they would not leak elsewhere, or the import takes a tenth longer."""
    source = _COLLECTOR.replace("CHANGES", changes).replace("EXPECTED", repr(expected))
    if isolation == "spawn":
        # A fresh interpreter imports the tests as always.
        source = source.replace("assert AT_IMPORT[0] == 0", "pass")
    bazel.run(source, spec={"isolation": isolation})
