"""`bazel coverage`: the target's LCOV file contains the lines that the ranks executed."""

from __future__ import annotations

from pathlib import Path

import pytest

import dist_testing
from tests.support.children import Target
from tests.support.starter import Starter

_CASES = """
    import pytest

    def on_rank(rank):
        if rank == 0:
            return "first"
        return "second"

    def nowhere():
        return "never"

    @pytest.mark.distributed
    def test_on_ranks(world):
        assert on_rank(world.rank)

    def test_in_runner():
        assert "in runner"
"""


def _coverage_env(target: Target, *sources: str) -> dict[str, str | None]:
    directory = target.folder / "coverage"
    directory.mkdir()
    manifest = target.folder / "manifest"
    manifest.write_text("".join(f"{source}\n" for source in sources), encoding="utf-8")
    return {"COVERAGE_DIR": str(directory), "COVERAGE_MANIFEST": str(manifest)}


def _hits(lcov: Path) -> dict[str, dict[int, int]]:
    """Return source to line to count."""
    result: dict[str, dict[int, int]] = {}
    lines: dict[int, int] = {}
    for record in lcov.read_text(encoding="utf-8").splitlines():
        kind, _, value = record.partition(":")
        if kind == "SF":
            assert value not in result, "one section for each source"
            lines = result.setdefault(value, {})
        elif kind == "DA":
            number, count, *_ = value.split(",")
            lines[int(number)] = int(count)
    return result


def _count(hits: dict[int, int], source: str, code: str) -> int:
    (line,) = [number for number, line in enumerate(source.splitlines(), start=1) if code in line]
    return hits[line]


@pytest.mark.parametrize("isolation", ["fork", "pool", "spawn"])
def test_lines_that_only_a_rank_executes_are_counted(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, all code that runs only on ranks is uncovered, because ranks end without exit handlers."""
    target = Target(tmp_path, {"test_cases.py": _CASES}, spec={"isolation": isolation})
    env = _coverage_env(target, "pkg/test_cases.py", "pkg/gone.py", "pkg/data.txt")
    ended = target.run(starter, env=env)
    assert ended.code == 0, ended.log
    (lcov,) = (tmp_path / "coverage").iterdir()
    assert lcov.name == "dist_testing.dat", "one file; the files that it was made from are removed"
    hits = _hits(lcov)
    assert set(hits) == {"pkg/test_cases.py"}, "the path that Bazel uses"
    counts = {
        code: _count(hits["pkg/test_cases.py"], _CASES, code)
        for code in ('return "first"', 'return "second"', 'return "never"', "on_rank(world.rank)", '"in runner"')
    }
    assert list(counts.values()) == [1, 1, 0, 1, 1], counts
    assert "WARNING" not in ended.log


def test_ranks_of_a_failed_case_are_counted_until_their_end(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a rank that dies, and loses its own counts, also costs the counts of the others."""
    source = """
        import os
        import pytest

        @pytest.mark.distributed(expected_exits={1: 3})
        def test_dies(world):
            if world.rank == 1:
                os._exit(3)
            assert "alive"
    """
    target = Target(tmp_path, {"test_cases.py": source})
    ended = target.run(starter, env=_coverage_env(target, "pkg/test_cases.py"))
    assert ended.code == 0, ended.log
    hits = _hits(tmp_path / "coverage" / "dist_testing.dat")["pkg/test_cases.py"]
    counts = [_count(hits, source, code) for code in ("if world.rank", "os._exit", '"alive"')]
    assert counts == [1, 0, 1]


def test_ranks_are_counted_where_the_toolchain_measures_the_runner(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a Python toolchain's own coverage tool, which occupies the only tracer, hides the ranks."""
    target = Target(tmp_path, {"test_cases.py": _CASES})
    env = {**target.env, **_coverage_env(target, "pkg/test_cases.py")}
    main = Path(dist_testing.__file__).parent / "main" / "dist_test_main.py"
    child = starter.start(["-m", "coverage", "run", "--branch", "--data-file=theirs", str(main)], tmp_path, env=env)
    assert child.wait() == 0, child.log
    hits = _hits(tmp_path / "coverage" / "dist_testing.dat")["pkg/test_cases.py"]
    assert [_count(hits, _CASES, code) for code in ('return "first"', 'return "second"')] == [1, 1]
    assert _count(hits, _CASES, '"in runner"') == 0, "the toolchain's own tool has this line"
    assert (tmp_path / "theirs").stat().st_size


def test_files_whose_path_looks_like_a_pattern_are_measured(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a checkout in a folder such as `a[b` has no coverage: the tool takes paths for patterns."""
    target = Target(tmp_path, {"test_cases.py": _CASES})
    link = target.package / "test_cases.py"
    real = tmp_path / "work [1] a[b" / "*" / link.name
    real.parent.mkdir(parents=True)
    link.rename(real)
    link.symlink_to(real)
    ended = target.run(starter, env=_coverage_env(target, "pkg/test_cases.py"))
    assert ended.code == 0, ended.log
    hits = _hits(tmp_path / "coverage" / "dist_testing.dat")["pkg/test_cases.py"]
    counts = [_count(hits, _CASES, code) for code in ('return "first"', 'return "never"', '"in runner"')]
    assert counts == [1, 0, 1]


@pytest.mark.parametrize("isolation", ["fork", "thread"])
def test_a_test_that_empties_the_folder_costs_the_coverage_only(
    starter: Starter, tmp_path: Path, isolation: str
) -> None:
    """If this fails, every later test fails with a rank that "exited with code 10"."""
    source = """
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
                shutil.rmtree(FOLDER, ignore_errors=True)
            world.barrier()

        @pytest.mark.distributed
        def test_after(world): ...
    """
    backend = "threaded" if isolation == "thread" else "gloo"
    source += f"\n        FOLDER = {str(tmp_path / 'coverage')!r}\n"
    target = Target(tmp_path, {"test_cases.py": source}, backend=backend, spec={"isolation": isolation})
    ended = target.run(starter, env=_coverage_env(target, "pkg/test_cases.py"))
    assert ended.code == 0, ended.log
    assert "the coverage cannot be written:" in target.warnings_file.read_text(encoding="utf-8")


def test_no_coverage_request_writes_no_report(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a target that `--instrumentation_filter` leaves out writes a report."""
    target = Target(tmp_path, {"test_cases.py": _CASES})
    ended = target.run(starter, env=_coverage_env(target))
    assert ended.code == 0, ended.log
    assert list((tmp_path / "coverage").iterdir()) == []


def test_coverage_that_cannot_be_measured_is_a_warning(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the user gets an empty coverage report without a reason, or a failed test."""
    target = Target(tmp_path, {"test_cases.py": _CASES})
    env = {"COVERAGE_DIR": str(tmp_path / "gone"), "COVERAGE_MANIFEST": str(tmp_path / "gone" / "manifest")}
    ended = target.run(starter, env=env)
    assert ended.code == 0, ended.log
    assert "WARNING: coverage is not measured:" in ended.log
    assert "coverage is not measured:" in target.warnings_file.read_text(encoding="utf-8")
    assert "Traceback" not in ended.log


def test_worlds_side_by_side_are_counted(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the ranks of a world that was started ahead are uncovered."""
    source = """
        import pytest

        @pytest.mark.distributed(world_size=1)
        def test_one(world):
            assert "one"

        @pytest.mark.distributed(world_size=1)
        def test_two(world):
            assert "two"

        def test_in_runner():
            assert "in runner"
    """
    target = Target(tmp_path, {"test_cases.py": source})
    ended = target.run(starter, "--dist-jobs=2", env=_coverage_env(target, "pkg/test_cases.py"))
    assert ended.code == 0, ended.log
    hits = _hits(tmp_path / "coverage" / "dist_testing.dat")["pkg/test_cases.py"]
    counts = {code: _count(hits, source, f'"{code}"') for code in ("one", "two", "in runner")}
    assert all(counts.values()), counts
    assert "WARNING" not in ended.log
