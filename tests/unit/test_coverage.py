"""The files whose coverage Bazel wants."""

from __future__ import annotations

from pathlib import Path

from dist_testing.coverage.bazel import sources_wanted


def test_files_are_found_in_the_runfiles_and_keep_bazels_names(tmp_path: Path) -> None:
    """If this fails, the coverage of a line has a file name that Bazel does not know, and Bazel drops it."""
    real = tmp_path / "source" / "a.py"
    for path in (real, tmp_path / "_main" / "pkg" / "made.py", tmp_path / "other~" / "b.py"):
        path.parent.mkdir(parents=True)
        path.touch()
    (tmp_path / "_main" / "a.py").symlink_to(real)
    manifest = "\n".join(
        [
            "a.py",
            "bazel-out/k8-fastbuild/bin/pkg/made.py",
            "external/other~/b.py",
            "pkg/only_a_tool_needs_it.py",
            "lib/c.cc",
            "",
        ]
    )
    assert sources_wanted(manifest, lambda path: str(tmp_path / path), "_main") == {
        str(real): "a.py",
        str(tmp_path / "_main" / "pkg" / "made.py"): "bazel-out/k8-fastbuild/bin/pkg/made.py",
        str(tmp_path / "other~" / "b.py"): "external/other~/b.py",
    }
    assert sources_wanted("a.py\n", lambda _: None, "_main") == {}, "the runfiles do not contain it"
