"""`bazel coverage`: the target's LCOV file contains the lines that the ranks executed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dist_testing
from tests.support.children import Bazel, Target
from tests.support.starter import Starter

# The number behind a line is its count.
_CASES = """
    import os
    import pytest

    def on_rank(rank):
        if rank == 0:
            return "first"  # 1
        return "second"  # 1

    def nowhere():
        return "never"  # 0

    @pytest.mark.distributed
    def test_on_ranks(world):
        assert on_rank(world.rank)  # 1

    @pytest.mark.distributed
    def test_in_another_world(world):
        assert "another"  # 1

    # A rank that dies loses its own counts only.
    @pytest.mark.distributed(expected_exits={1: 3}, isolation=DIES)
    def test_dies(world):
        if world.rank == 1:  # 1
            os._exit(3)  # 0
        assert "alive"  # 1

    def test_in_runner():
        assert "in runner"  # 1
"""
_EXPECTED = {
    number: int(match[1])
    for number, line in enumerate(_CASES.splitlines(), start=1)
    if (match := re.search(r"  # (\d)$", line))
}
_IN_RUNNER = max(_EXPECTED)


def _cases(isolation: str = "fork") -> str:
    # The ranks of a worker pool must not end.
    return _CASES.replace("DIES", repr("fork" if isolation == "pool" else isolation))


def _coverage_env(folder: Path, *sources: str) -> dict[str, str | None]:
    directory = folder / "coverage"
    directory.mkdir()
    manifest = folder / "manifest"
    manifest.write_text("".join(f"{source}\n" for source in sources), encoding="utf-8")
    return {"COVERAGE_DIR": str(directory), "COVERAGE_MANIFEST": str(manifest)}


def _counts(folder: Path) -> dict[int, int]:
    """Return line to count of the test file, the only source in the only report, for lines with an expected count."""
    (lcov,) = (folder / "coverage").iterdir()
    assert lcov.name == "dist_testing.dat", "one file; the files that it was made from are removed"
    text = lcov.read_text(encoding="utf-8")
    assert re.findall(r"^SF:(.*)$", text, re.MULTILINE) == ["pkg/test_cases.py"], "the path that Bazel uses, once"
    counts = {int(line): int(count) for line, count in re.findall(r"^DA:(\d+),(\d+)", text, re.MULTILINE)}
    return {line: counts[line] for line in _EXPECTED}


@pytest.mark.parametrize(
    ("isolation", "options"),
    [("fork", ()), ("pool", ()), ("spawn", ()), ("fork", ("--dist-jobs=2",))],
    ids=["fork", "pool", "spawn", "worlds side by side"],
)
def test_lines_that_only_a_rank_executes_are_counted(bazel: Bazel, isolation: str, options: tuple[str, ...]) -> None:
    """If this fails, all code that runs only on ranks is uncovered, because ranks end without exit handlers."""
    env = _coverage_env(bazel.folder, "pkg/test_cases.py", "pkg/gone.py", "pkg/data.txt")
    _, ended = bazel.run(_cases(isolation), *options, spec={"isolation": isolation}, env=env)
    assert _counts(bazel.folder) == _EXPECTED
    assert "WARNING" not in ended.log


def test_ranks_are_counted_where_the_toolchain_measures_the_runner(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a Python toolchain's own coverage tool, which occupies the only tracer, hides the ranks."""
    target = Target(tmp_path, {"test_cases.py": _cases()})
    env = {**target.env, **_coverage_env(tmp_path, "pkg/test_cases.py")}
    main = Path(dist_testing.__file__).parent / "main" / "dist_test_main.py"
    child = starter.start(["-m", "coverage", "run", "--branch", "--data-file=theirs", str(main)], tmp_path, env=env)
    assert child.wait() == 0, child.log
    assert _counts(tmp_path) == {**_EXPECTED, _IN_RUNNER: 0}, "the toolchain's own tool has the line of the runner"
    assert (tmp_path / "theirs").stat().st_size


def test_files_whose_path_looks_like_a_pattern_are_measured(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a checkout in a folder such as `a[b` has no coverage: the tool takes paths for patterns."""
    target = Target(tmp_path, {"test_cases.py": _cases()})
    link = target.package / "test_cases.py"
    real = tmp_path / "work [1] a[b" / "*" / link.name
    real.parent.mkdir(parents=True)
    link.rename(real)
    link.symlink_to(real)
    ended = target.run(starter, env=_coverage_env(tmp_path, "pkg/test_cases.py"))
    assert ended.code == 0, ended.log
    assert _counts(tmp_path) == _EXPECTED


@pytest.mark.parametrize("isolation", ["fork", "thread"])
def test_a_test_that_empties_the_folder_costs_the_coverage_only(bazel: Bazel, isolation: str) -> None:
    """If this fails, every later test fails with a rank that "exited with code 10"."""
    source = f"""
        import os
        import shutil
        from pathlib import Path
        import pytest

        @pytest.mark.distributed
        def test_before(world): ...

        def test_empties():
            for path in Path(os.environ["COVERAGE_DIR"]).iterdir():
                shutil.rmtree(path)

        @pytest.mark.distributed
        def test_rank_empties(world):
            if world.rank == 0:
                shutil.rmtree({str(bazel.folder / "coverage")!r}, ignore_errors=True)
            world.barrier()

        @pytest.mark.distributed
        def test_after(world): ...
    """
    backend, env = "threaded" if isolation == "thread" else "gloo", _coverage_env(bazel.folder, "pkg/test_cases.py")
    target, _ = bazel.run(source, backend=backend, spec={"isolation": isolation}, env=env)
    assert "the coverage cannot be written:" in target.warnings_file.read_text(encoding="utf-8")


def test_no_coverage_request_writes_no_report(bazel: Bazel) -> None:
    """If this fails, a target that `--instrumentation_filter` leaves out writes a report."""
    bazel.run(_cases(), env=_coverage_env(bazel.folder))
    assert list((bazel.folder / "coverage").iterdir()) == []


def test_coverage_that_cannot_be_measured_is_a_warning(bazel: Bazel) -> None:
    """If this fails, the user gets an empty coverage report without a reason, or a failed test."""
    gone = bazel.folder / "gone"
    env = {"COVERAGE_DIR": str(gone), "COVERAGE_MANIFEST": str(gone / "manifest")}
    target, ended = bazel.run(_cases(), env=env)
    assert "WARNING: coverage is not measured:" in ended.log
    assert "coverage is not measured:" in target.warnings_file.read_text(encoding="utf-8")
    assert "Traceback" not in ended.log
