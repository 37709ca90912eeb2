"""Finds tags that mean nothing, and tests that run nowhere: `bazel run @dist_testing//tools/tags -- [options]`.

Every tag of a test has to be Bazel's, one that dist_py_test sets, or one that `--known` documents: a filter with a
misspelt tag selects nothing and says nothing. With `--lane`, given once for each configuration that CI runs, every test
has to be one that at least one of them would run; `manual` tests are left out. Nothing is built or run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_events import EventsError, is_whole, read_events
from tag_table import TagTable

# Of the action that runs a test. A property without it is one of the target's other actions, too.
_TEST_GROUP = "test."

# How Bazel ends `test --nobuild`: 1 because no test ran, also when an analysis failed (the events tell); 4 if there was
# none to run. Everything else is a command that was not understood or not begun.
_NOBUILD_CODES = (0, 1, 4)


class ToolError(Exception):
    """Bazel could not answer."""


@dataclass(frozen=True, slots=True)
class Target:
    """A test.

    Attributes:
        label: Its label.
        tags: Its tags.
        exec_properties: Names of its properties for remote executors.
    """

    label: str
    tags: tuple[str, ...]
    exec_properties: tuple[str, ...]


def read_targets(text: str) -> list[Target]:
    """Read what `bazel query --output=streamed_jsonproto` prints, sorted by label."""
    targets = []
    # Not splitlines(): to that, characters end a line which JSON has inside of strings.
    for line in filter(None, text.split("\n")):
        rule = json.loads(line)["rule"]
        attributes = {attribute["name"]: attribute for attribute in rule.get("attribute", ())}
        tags = attributes.get("tags", {}).get("stringListValue", ())
        properties = attributes.get("exec_properties", {}).get("stringDictValue", ())
        targets.append(Target(rule["name"], tuple(tags), tuple(entry["key"] for entry in properties)))
    return sorted(targets, key=lambda target: target.label)


def tag_problems(targets: Iterable[Target], table: TagTable) -> list[str]:
    """What is wrong with the tags and properties of tests; texts of three lines."""
    problems = []
    for target in targets:
        problems += [
            f"{target.label}: tag {tag!r} is not documented.{table.suggestion(tag)}\n"
            "A filter or a query for it may be meant for another, and finds nothing or too much.\n"
            f"Correct it, or document it with --known={tag}."
            for tag in target.tags
            if not table.knows(tag)
        ]
        problems += [
            f"{target.label}: exec_properties has {name!r}.\n"
            f'Without "{_TEST_GROUP}" it is one of every action of the target, and builds wait for GPU workers.\n'
            f'Write "{_TEST_GROUP}{name}".'
            for name in target.exec_properties
            if "dist" in target.tags and not name.startswith(_TEST_GROUP)
        ]
    return problems


def runnable(events: Iterable[Mapping[str, Any]]) -> tuple[set[str], list[str]]:
    """Read the build events of `bazel test --nobuild`.

    Returns:
        The tests that would have run, and the targets whose analysis failed.
    """
    would_run: set[str] = set()
    broken: list[str] = []
    for event in events:
        completed = event["id"].get("targetCompleted")
        reason = event.get("aborted", {}).get("reason")
        if completed is not None and reason == "NO_BUILD":
            would_run.add(completed["label"])
        elif reason in ("ANALYSIS_FAILURE", "LOADING_FAILURE"):
            broken.append((completed or {}).get("label") or json.dumps(event["id"]))
    return would_run, broken


def nowhere_problems(targets: Iterable[Target], lanes: Mapping[str, set[str]]) -> list[str]:
    """Which tests no lane would run; texts of three lines."""
    reached = set().union(*lanes.values())
    names = ", ".join(f"'{lane}'" for lane in lanes)
    return [
        f"{target.label}: runs nowhere: none of the lanes {names} would run it.\n"
        f"It is incompatible with them or filtered out; its tags: {', '.join(sorted(target.tags))}.\n"
        "Add a lane that can run it, give it what the lanes have, or tag it manual."
        for target in targets
        if "manual" not in target.tags and target.label not in reached
    ]


class Bazel:
    """The Bazel of the workspace that is looked at.

    Args:
        program: How it is started.
        workspace: Where.
    """

    def __init__(self, program: str, workspace: Path) -> None:
        self._program = program
        self._workspace = workspace

    def tests(self, pattern: str) -> list[Target]:
        """The tests of a pattern, `manual` ones with them."""
        done = self._run(
            "query",
            "--output=streamed_jsonproto",
            "--proto:output_rule_attrs=tags,exec_properties",
            f"tests({pattern})",
        )
        if done.returncode != 0:
            raise ToolError(f"bazel query 'tests({pattern})' failed:\n{done.stderr}")
        return read_targets(done.stdout)

    def lane(self, flags: str, pattern: str) -> set[str]:
        """The tests that `bazel test <flags> <pattern>` would run."""
        with tempfile.TemporaryDirectory(prefix="tags.") as folder:
            file = Path(folder, "events.json")
            done = self._run(
                "test",
                "--nobuild",
                "--keep_going",
                "--build_tests_only",
                *flags.split(),
                # Behind them: a lane may name a file of its own, and the last counts.
                f"--build_event_json_file={file}",
                "--",
                pattern,
            )
            if done.returncode not in _NOBUILD_CODES or not file.exists():
                raise ToolError(f"bazel test --nobuild {flags} failed:\n{done.stderr}")
            events = read_events(file)
        if not is_whole(events):
            raise ToolError(
                f"lane '{flags}': the build events break off, after Bazel ended with {done.returncode}.\n"
                "It was killed, or could not write them; the disk may be full.\n"
                "Look at what it said, and check again:\n"
                f"{done.stderr}"
            )
        would_run, broken = runnable(events)
        if broken:
            raise ToolError(f"lane '{flags}': {', '.join(broken)} cannot be analysed:\n{done.stderr}")
        return would_run

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._program, *arguments], cwd=self._workspace, capture_output=True, text=True, check=False
        )


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tags", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bazel", help="the program (default: ./bazelw of the workspace if it is there, else bazel)")
    parser.add_argument(
        "--known", action="append", default=[], metavar="TAG", help="a documented tag: nightly, team:<word>"
    )
    parser.add_argument(
        "--lane", action="append", default=[], metavar="FLAGS", help="flags of one configuration CI runs"
    )
    parser.add_argument("--pattern", default="//...", help="the tests that are looked at (default: //...)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check.

    Args:
        arguments: The command line's if None.

    Returns:
        0 if there is nothing to complain about.
    """
    options = _arguments(arguments)
    workspace = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or os.getcwd())
    own = workspace / "bazelw"
    bazel = Bazel(options.bazel or (str(own) if own.exists() else "bazel"), workspace)
    try:
        targets = bazel.tests(options.pattern)
        if not targets:
            raise ToolError(f"{options.pattern} has no tests.\nThen nothing would be looked at.\nCorrect --pattern.")
        problems = tag_problems(targets, TagTable(options.known))
        lanes = {flags: bazel.lane(flags, options.pattern) for flags in options.lane}
    except (OSError, EventsError, ToolError) as error:
        print(f"tags: {error}", file=sys.stderr)
        return 2
    if lanes:
        problems += nowhere_problems(targets, lanes)
    print("\n\n".join(problems) + "\n" if problems else "", end="")
    checked = f"{len(lanes)} lane(s)" if lanes else "no --lane given, so not where they run"
    print(f"tags: {len(targets)} tests, {checked}; {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
