"""The expected answers of the commands of docs/selection.md in the workspace `queries`."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.nested_bazel import COMMAND_LIMIT_S, Done, NestedBazel
from tools.ci.build_events import read_events

# Command -> the lines of its answer. Repeated blanks count as one, and the order does not count.
ANSWERS: dict[str, tuple[str, ...]] = {
    """bazel query 'attr(tags, "gpus_ge_4", tests(//...))'""": (
        "//model:tensor_nccl",
        "//train:ddp_nccl",
        "//train:fsdp_nccl",
    ),
    r"""bazel query 'attr(tags, "backend:gloo\b", tests(//...))'""": (
        "//model:slow_gloo",
        "//model:tensor_gloo",
        "//train:ddp_gloo",
    ),
    r"""bazel query 'attr(tags, "world_size:4\b", tests(//...))'""": ("//model:slow_gloo", "//train:ddp_nccl"),
    r"""bazel query 'attr(tags, "[\[ ]dist[,\]]", tests(//...)) except attr(tags, "[\[ ]gpu[,\]]", tests(//...))'""": (
        "//model:slow_gloo",
        "//model:tensor_gloo",
        "//train:ddp_gloo",
    ),
    "bazel test //... --test_tag_filters=gpus_ge_4,-backend:gloo": (
        "//model:tensor_nccl",
        "//train:ddp_nccl",
        "//train:fsdp_nccl",
    ),
    "bazel test //... --test_tag_filters=backend:gloo,backend:nccl,-gpus_ge_8": (
        "//model:tensor_gloo",
        "//model:tensor_nccl",
        "//train:ddp_gloo",
        "//train:ddp_nccl",
    ),
    "bazel cquery --config=table 'kind(dist_test_spec, //...)' | sort | column -t": (
        "//model:slow_gloo gloo 4 0 1 fork",
        "//model:tensor_gloo gloo 2 0 1 fork",
        "//model:tensor_nccl nccl 2 4 1 fork",
        "//train:ddp_cuda_gloo cuda_gloo 2 2 1 fork",
        "//train:ddp_gloo gloo 2,40 0 1 fork",
        "//train:ddp_nccl nccl 4 4 1 fork",
        "//train:fsdp_nccl nccl 8 8 1 pool",
    ),
    "bazel cquery --config=table //train:ddp.spec | sort | column -t": (
        "//train:ddp_cuda_gloo cuda_gloo 2 2 1 fork",
        "//train:ddp_gloo gloo 2,40 0 1 fork",
        "//train:ddp_nccl nccl 4 4 1 fork",
    ),
    "bazel cquery --config=skipped --config=remote 'tests(//...)' | grep . | sort -u": (
        "//model:tensor_nccl",
        "//train:ddp_cuda_gloo",
        "//train:ddp_nccl",
        "//train:fsdp_nccl",
    ),
    "bazel cquery --config=skipped --@dist_testing//dist_testing/config:gpus=4 'tests(//...)' | grep . | sort -u": (
        "//train:fsdp_nccl",
    ),
}


def answers_problems(bazel: NestedBazel, page: Path) -> list[str]:
    """Run every query in the blocks of code of a page in the workspace `queries`, and return the wrong answers."""
    # `bazel run` starts a tool, which has tests of its own.
    commands = re.findall(r"^bazel (?!run ).+$", page.read_text(encoding="utf-8"), re.MULTILINE)
    untested = sorted(set(commands) - set(ANSWERS))
    gone = sorted(set(ANSWERS) - set(commands))
    found = [f"queries: {page.name} has a command without an expected answer: {command}" for command in untested]
    found += [f"queries: there is an expected answer, but {page.name} lacks the command: {command}" for command in gone]
    with tempfile.TemporaryDirectory(prefix="dist-e2e-") as folder:
        bazel.stand_in(Path(folder))
        for command in set(commands) & set(ANSWERS):
            status, answer, said = _ask(command, bazel.workspace, Path(folder))
            if status or answer != sorted(ANSWERS[command]):
                lines = "\n".join(answer)
                found.append(f"queries: {command}\nended with {status} and answered\n{lines}\n{said[-4000:]}")
    return found


def run_command(command: str, workspace: Path, folder: Path) -> Done:
    """Run a command of a page as a user types it, with the programs of `folder` before others."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=workspace,
        env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_LIMIT_S,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def _ask(command: str, workspace: Path, folder: Path) -> tuple[int, list[str], str]:
    """Run a command; return its status, the sorted lines of its answer, and its messages."""
    events = folder / "events.json"
    is_test = command.startswith("bazel test ")
    if is_test:
        # The selected tests are known after the analysis.
        build = f"bazel build --nobuild --build_tests_only --build_event_json_file={events} "
        command = build + command.removeprefix("bazel test ")
    done = run_command(command, workspace, folder)
    lines = _selected(read_events(events)) if is_test and done.status == 0 else done.stdout.splitlines()
    return done.status, sorted(" ".join(line.split()) for line in lines), done.stderr


def _selected(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the targets that a pattern selects, after the filters."""
    for event in events:
        if "pattern" in event["id"]:
            return [child["targetConfigured"]["label"] for child in event.get("children", ())]
    return []
