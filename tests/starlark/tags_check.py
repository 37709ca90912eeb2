"""Check the tag linter against a fixture package: `python3 -m tests.starlark.tags_check`.

The linter asks Bazel, so this check runs one: a workspace whose tests have right and wrong tags, and two CI jobs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.starlark.consumer import FLAG, write_stubs, write_workspace
from tests.support.nested_bazel import ROOT, nested_bazel, scratch_folder

_PACKAGES = {
    "right": """\
dist_py_test(name = "case", srcs = ["a.py"], backends = ["gloo", "nccl"], world_size = 2, tags = ["nightly"])
dist_py_test(name = "asked", srcs = ["a.py"], backends = ["nccl"], world_size = 16, tags = ["manual"])
""",
    "wrong": """\
dist_py_test(name = "typo", srcs = ["a.py"], backends = ["gloo"], world_size = 2, tags = ["nigthly"])
dist_py_test(name = "large", srcs = ["a.py"], backends = ["nccl"], world_size = 8)
""",
}
_CPU_JOB = "--job=--config=ci"
_GPU_JOB = f"--job={FLAG}gpus=4 --test_tag_filters=gpu"

# Arguments of the linter, its exit status, and parts of its output.
_CASES: tuple[tuple[tuple[str, ...], int, tuple[str, ...]], ...] = (
    (("--known=nightly", _CPU_JOB, _GPU_JOB, "--pattern=//right/..."), 0, ("3 tests, 2 CI job(s); 0 problem(s)",)),
    (
        ("--known=nightly", _CPU_JOB, "--pattern=//right/..."),
        1,
        ("//right:case_nccl: never runs: none of the CI jobs '--config=ci' would run it.", "1 problem(s)"),
    ),
    (
        ("--known=nightly", _CPU_JOB, _GPU_JOB),
        1,
        (
            "//wrong:typo_gloo: tag 'nigthly' is not documented. Did you mean 'nightly'?",
            "//wrong:large_nccl: never runs",
            "5 tests, 2 CI job(s); 2 problem(s)",
        ),
    ),
    (("--pattern=//nothing/...",), 2, ("tags: bazel query 'tests(//nothing/...)' failed:",)),
    (("--job=--no_such_flag",), 2, ("tags: bazel test --nobuild --no_such_flag failed:", "no_such_flag")),
)


def main() -> int:
    """Run all cases, and report on stderr."""
    complaints: list[str] = []
    with scratch_folder("tags_check") as scratch:
        workspace = scratch / "consumer"
        workspace.mkdir()
        write_workspace(workspace, _PACKAGES)
        write_stubs(workspace)
        # A machine without GPUs, also if this one has some.
        (scratch / "machine").mkdir()
        with nested_bazel(workspace, scratch / "output") as bazel:
            with (workspace / ".bazelrc").open("a", encoding="utf-8") as flags:
                flags.write(f"common --lockfile_mode=off --repo_env=DIST_TESTING_HOST_ROOT={scratch / 'machine'}\n")
            program = bazel.stand_in(scratch)
            for arguments, status, parts in _CASES:
                complaints += _complaints(program, workspace, arguments, status, parts)
    for complaint in complaints:
        sys.stderr.write(f"tags_check.py: {complaint}\n")
    sys.stderr.write(f"tags_check.py: {len(_CASES)} cases, {len(complaints)} complaints\n")
    return 1 if complaints else 0


def _complaints(
    program: Path, workspace: Path, arguments: tuple[str, ...], status: int, parts: tuple[str, ...]
) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "ci" / "ci.py"), "tags", f"--bazel={program}", *arguments],
        env={**os.environ, "BUILD_WORKSPACE_DIRECTORY": str(workspace)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    found = [f"{arguments}: exit status {done.returncode}, expected {status}"] if done.returncode != status else []
    found += [f"{arguments}: the text lacks {part!r}" for part in parts if part not in done.stdout]
    if found:
        sys.stderr.write(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
