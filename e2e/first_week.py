"""The commands of docs/consumers.md, and what each must end with in the repository that the page makes."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.questions import run_command
from tests.support.nested_bazel import NestedBazel

# A line of a block that is a command; what follows "  #" is a comment.
_COMMAND = re.compile(r"^(bazel (?:test|run|coverage) .+?)(?: +# .*)?$", re.MULTILINE)
_BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Output that a complaint shows. Characters.
_SHOWN = 6000


def _damage_copy(workspace: Path) -> None:
    copy = workspace / "dist_testing.bazelrc"
    copy.write_text("# An old copy.\n" + copy.read_text(encoding="utf-8"), encoding="utf-8")


def _coverage_problem(workspace: Path) -> str:
    """Say what the report of the page's coverage command lacks; empty if it has the lines that ranks have executed."""
    report = (workspace / "bazel-testlogs" / "fast" / "reduce_gloo" / "coverage.dat").read_text(encoding="utf-8")
    source = (workspace / "shared" / "reductions.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(source, start=1) if "reduced = " in text)
    is_measured = re.search(
        rf"^SF:shared/reductions\.py$(?:\n(?!end_of_record).*)*\nDA:{line},[1-9]", report, re.MULTILINE
    )
    return "" if is_measured else f"line {line} of shared/reductions.py has no count:\n{report}"


@dataclass(frozen=True, slots=True)
class Expected:
    """A command of the page."""

    command: str  # the line
    parts: tuple[str, ...]  # regular expressions; each must match somewhere in its output
    status: int = 0  # its exit status
    before: Callable[[Path], None] | None = None  # called with the repository before it
    problem: Callable[[Path], str] | None = None  # called with the repository after it; returns a complaint, or ""


_INIT = "bazel run @dist_testing//tools/init --"

# In the page's order.
EXPECTED = (
    Expected(
        "bazel test --test_output=all //mytests:ring_gloo",
        (
            r"^dist_testing: //mytests:ring_gloo: gloo, world size 2, 4, fork$",
            r"^collected 2 items$",
            r"^mytests/test_ring\.py \.\. +\[100%\]$",
            r"^//mytests:ring_gloo +PASSED in ",
            r"^Executed 1 out of 1 test: 1 test passes\.$",
        ),
    ),
    Expected(
        f"{_INIT} --check",
        (r"^init: dist_testing.bazelrc differs from that of ", "^    -# An old copy.$", "tools/init -- --update"),
        status=1,
        before=_damage_copy,
    ),
    Expected(f"{_INIT} --update", (r"^init: replaced dist_testing\.bazelrc$", r"^init: left MODULE\.bazel: ")),
    Expected(f"{_INIT} --check", (r"fits dist_testing \d",)),
    Expected(
        "bazel run @dist_testing//tools/ci -- test //...",
        (
            r"^cases: 4 passed$",
            r"^targets: 3 passed, 0 did not pass, ",
            r"^page: .*/bazel-report\.html ",
            r"^ci: green: ",
        ),
    ),
    Expected("bazel run @dist_testing//tools/rbe -- up", (r"^rbe: ready after ", r"^grpc://127\.0\.0\.1:50051$")),
    Expected(
        "bazel test --config=rbe_local @dist_testing//tools/rbe/pool_check",
        (r"pool_check +PASSED in ", r"\d remote[,.]"),
    ),
    Expected("bazel run @dist_testing//tools/rbe -- down", (r"nothing of it is left$",)),
    Expected(
        "bazel coverage --instrumentation_filter=//shared //fast:reduce_gloo",
        (r"^//fast:reduce_gloo +PASSED in ",),
        problem=_coverage_problem,
    ),
    Expected(
        "bazel run @dist_testing//tools/ci -- flakes --runs=2 //mytests:ring_gloo",
        (r"^flakes: 2 runs, 2 cases, 0 failed at least once$",),
    ),
)


def commands(page: Path) -> list[str]:
    """Return the commands in the page's blocks of code, in order."""
    return [
        command for block in _BLOCK.findall(page.read_text(encoding="utf-8")) for command in _COMMAND.findall(block)
    ]


def command_problems(bazel: NestedBazel, page: Path) -> list[str]:
    """Run every command of docs/consumers.md in its repository, in order, and say what was not as expected."""
    shown, known = commands(page), [one.command for one in EXPECTED]
    if shown != known:
        return [f"mine: the commands of {page.name} are {shown}, and there are expectations for {known}"]
    found = []
    with tempfile.TemporaryDirectory(prefix="dist-e2e-") as folder:
        bazel.stand_in(Path(folder))
        # Programs that `bazel run` starts take this one.
        bazel.stand_in(bazel.workspace, "bazelw")
        for one in EXPECTED:
            if one.before is not None:
                one.before(bazel.workspace)
            start = time.monotonic()
            done = run_command(one.command, bazel.workspace, Path(folder))
            print(f"e2e.check: {time.monotonic() - start:.0f} s: {one.command}", flush=True)
            missing = [part for part in one.parts if re.search(part, done.output, re.MULTILINE) is None]
            if done.status != one.status or missing:
                said = f"exit status {done.status}, expected {one.status}; not in the output: {missing}"
                found.append(f"mine: {one.command}: {said}\n{done.output[-_SHOWN:]}")
            elif one.problem is not None and (complaint := one.problem(bazel.workspace)):
                found.append(f"mine: {one.command}: {complaint}")
    return found
