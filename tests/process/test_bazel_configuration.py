"""pytest's configuration and the environment under Bazel: what a target declares, and nothing else.

Outside a sandbox the execution root, and with it files of the workspace, lies above the runfiles. A result that depends
on them is stored under a cache key that does not.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.support.children import Bazel, Target, write_file
from tests.support.starter import Starter

_CASES = """
    import os
    import pytest

    @pytest.mark.distributed
    def test_on_ranks(world):
        assert os.environ.get("DECLARED") == EXPECTED

    def test_in_the_runner(request):
        assert os.environ.get("DECLARED") == EXPECTED
        assert request.config.getini("junit_suite_name") == SUITE
"""


def _cases(declared: str | None, suite: str = "pytest") -> str:
    return _CASES.replace("EXPECTED", repr(declared)).replace("SUITE", repr(suite))


# Files that lie above the runfiles in the execution root, as a workspace may well have them.
_HOSTILE = {
    "conftest.py": "raise RuntimeError('an undeclared conftest.py was imported')",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--no-such-option'\n",
    "pytest.ini": "[pytest]\naddopts = --no-such-option\n",
    "setup.cfg": "[tool:pytest]\naddopts = --no-such-option\n",
    "tox.ini": "[pytest]\naddopts = --no-such-option\n",
    ".coveragerc": "[run]\nplugins = no_such_plugin\n",
}


# Fresh interpreters collect the tests again: with other files they would run other tests.
@pytest.mark.parametrize(("above", "isolation"), [(".", "fork"), ("runfiles", "fork"), (".", "spawn")])
def test_files_around_the_runfiles_change_nothing(starter: Starter, tmp_path: Path, above: str, isolation: str) -> None:
    """A broken conftest.py in the workspace would be `(cached) PASSED` for one user and a failure for the next."""
    target = Target(tmp_path, {"test_cases.py": _cases(None)}, world_size=2, spec={"isolation": isolation})
    for name, content in _HOSTILE.items():
        write_file(tmp_path / above, name, content)
    ended = target.run(starter)
    assert ended.code == 0, ended.log
    target.check(passed="test_on_ranks test_in_the_runner")


@pytest.mark.parametrize("folder", ["pkg", "."])
def test_declared_files_count(starter: Starter, tmp_path: Path, folder: str) -> None:
    """A target lists its conftest.py and its configuration in `data` or `deps`; then they are in the runfiles."""
    target = Target(tmp_path, {"test_cases.py": _cases("yes", "declared")}, world_size=2)
    runfiles = tmp_path / "runfiles" / "_main"
    write_file(runfiles / folder, "conftest.py", "import os\n\nos.environ['DECLARED'] = 'yes'\n")
    write_file(runfiles / folder, "pytest.ini", "[pytest]\njunit_suite_name = declared\n")
    for name, content in _HOSTILE.items():
        write_file(tmp_path, name, content)
    ended = target.run(starter)
    assert ended.code == 0, ended.log


def test_the_nearest_declared_configuration_counts(starter: Starter, tmp_path: Path) -> None:
    """A package overrides the settings of its repository, as without Bazel; a file without settings does not."""
    target = Target(tmp_path, {"test_cases.py": _cases(None, "of the repository")}, world_size=2)
    runfiles = tmp_path / "runfiles" / "_main"
    write_file(runfiles, "pyproject.toml", '[tool.pytest.ini_options]\njunit_suite_name = "of the repository"\n')
    write_file(runfiles / "pkg", "pyproject.toml", "[tool.other]\nkey = 1\n")
    assert target.run(starter).code == 0, target.package


def test_a_declared_configuration_that_cannot_be_read_is_refused(starter: Starter, tmp_path: Path) -> None:
    """To go on without the settings would test something else than the target asks for."""
    target = Target(tmp_path, {"test_cases.py": _cases(None)}, world_size=2)
    write_file(target.package, "pytest.ini", "no section\n")
    ended = target.run(starter)
    assert ended.code != 0
    assert "pytest.ini" in ended.log
    assert "Traceback" not in ended.log, ended.log


@pytest.mark.parametrize("plugin", ["capture", "terminal"])
def test_a_target_may_switch_a_plugin_of_pytest_off(bazel: Bazel, plugin: str) -> None:
    """If this fails, `args` with `-p no:capture` end in a traceback, or name an option that the library adds."""
    target, _ = bazel.run("def test_plain(): ...", "-p", f"no:{plugin}")
    target.check(passed="test_plain")


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
