"""Finds unknown tags, and tests that no CI job runs: `bazel run @dist_testing//tools/tags -- [options]`.

Every tag of a test must be one of Bazel's, one that dist_py_test sets, or one that `--known` documents: a filter with a
misspelt tag silently selects nothing. Give `--job` once for each CI job, with its flags; then at least one of these
jobs must run every test, except `manual` ones. Nothing is built or run.
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

try:
    from build_events import EventsError, is_whole, read_events
    from tag_table import TagTable
except ModuleNotFoundError as missing:
    sys.exit(f"tags: {missing}. Run it by Bazel: bazel run @dist_testing//tools/tags")

# Prefix of the properties of the action that runs a test. A property without it also applies to the other actions.
_TEST_GROUP = "test."

# Exit statuses of a good `test --nobuild`: 1 because no test ran, also when an analysis failed (the events tell); 4 if
# there was no test to run. Any other status means that Bazel did not understand or start the command.
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
    """Read the output of `bazel query --output=streamed_jsonproto`; return the tests, sorted by label."""
    targets = []
    # Not splitlines(): it also splits at characters that JSON allows inside strings.
    for line in filter(None, text.split("\n")):
        rule = json.loads(line)["rule"]
        attributes = {attribute["name"]: attribute for attribute in rule.get("attribute", ())}
        tags = attributes.get("tags", {}).get("stringListValue", ())
        properties = attributes.get("exec_properties", {}).get("stringDictValue", ())
        targets.append(Target(rule["name"], tuple(tags), tuple(entry["key"] for entry in properties)))
    return sorted(targets, key=lambda target: target.label)


def tag_problems(targets: Iterable[Target], table: TagTable) -> list[str]:
    """Return the problems of tags and properties; each text has three lines."""
    problems = []
    for target in targets:
        problems += [
            f"{target.label}: tag {tag!r} is not documented.{table.suggestion(tag)}\n"
            "It may be a misspelt one; then a filter or a query finds nothing, or too much.\n"
            f"Correct it, or document it with --known={tag}."
            for tag in target.tags
            if not table.knows(tag)
        ]
        problems += [
            f"{target.label}: exec_properties has {name!r}.\n"
            f'Without "{_TEST_GROUP}" it applies to every action of the target, and builds wait for GPU workers.\n'
            f'Write "{_TEST_GROUP}{name}".'
            for name in target.exec_properties
            # No CI job builds a manual test.
            if "dist" in target.tags and "manual" not in target.tags and not name.startswith(_TEST_GROUP)
        ]
    return problems


def runnable(events: Iterable[Mapping[str, Any]]) -> tuple[set[str], list[str]]:
    """Read the build events of `bazel test --nobuild`.

    Returns:
        The tests that Bazel would run, and the targets whose analysis failed.
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


def unreached_problems(targets: Iterable[Target], jobs: Mapping[str, set[str]]) -> list[str]:
    """Return the tests that no CI job would run; each text has three lines."""
    reached = set().union(*jobs.values())
    names = ", ".join(f"'{job}'" for job in jobs)
    return [
        f"{target.label}: never runs: none of the CI jobs {names} would run it.\n"
        f"It is incompatible with them, or they filter it out; its tags: {', '.join(sorted(target.tags))}.\n"
        "Add a CI job that can run it, change its needs to fit a job, or tag it manual."
        for target in targets
        if "manual" not in target.tags and target.label not in reached
    ]


class Bazel:
    """The Bazel of the workspace that is checked.

    Args:
        program: The program to start.
        workspace: The folder to start it in.
    """

    def __init__(self, program: str, workspace: Path) -> None:
        self._program = program
        self._workspace = workspace

    def tests(self, pattern: str) -> list[Target]:
        """Return the tests of a pattern, including `manual` ones."""
        done = self._run(
            "query",
            "--output=streamed_jsonproto",
            "--proto:output_rule_attrs=tags,exec_properties",
            f"tests({pattern})",
        )
        if done.returncode != 0:
            raise ToolError(f"bazel query 'tests({pattern})' failed:\n{done.stderr}")
        return read_targets(done.stdout)

    def job(self, flags: str, pattern: str) -> set[str]:
        """Return the tests that `bazel test <flags> <pattern>` would run."""
        with tempfile.TemporaryDirectory(prefix="tags.") as folder:
            file = Path(folder, "events.json")
            done = self._run(
                "test",
                "--nobuild",
                "--keep_going",
                "--build_tests_only",
                *flags.split(),
                # Behind the flags: they may name such a file, too, and Bazel takes the last one.
                f"--build_event_json_file={file}",
                "--",
                pattern,
            )
            if done.returncode not in _NOBUILD_CODES or not file.exists():
                raise ToolError(f"bazel test --nobuild {flags} failed:\n{done.stderr}")
            events = read_events(file)
        if not is_whole(events):
            raise ToolError(
                f"CI job '{flags}': the build events are incomplete; Bazel ended with {done.returncode}.\n"
                "Bazel was killed, or could not write them; the disk may be full.\n"
                "Read its messages, and check again:\n"
                f"{done.stderr}"
            )
        would_run, broken = runnable(events)
        if broken:
            raise ToolError(f"CI job '{flags}': {', '.join(broken)} cannot be analysed:\n{done.stderr}")
        return would_run

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._program, *arguments], cwd=self._workspace, capture_output=True, text=True, check=False
        )


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tags", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bazel", help="the program (default: ./bazelw of the workspace if it exists, else bazel)")
    parser.add_argument(
        "--known", action="append", default=[], metavar="TAG", help="a documented tag: nightly, team:<word>"
    )
    parser.add_argument("--job", action="append", default=[], metavar="FLAGS", help="the flags of one CI job")
    parser.add_argument("--pattern", default="//...", help="the tests to check (default: //...)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the tags, and print the problems.

    Args:
        arguments: The arguments; None: those of the command line.

    Returns:
        0 if there are no problems, 1 if there are, 2 if Bazel could not answer.
    """
    options = _arguments(arguments)
    workspace = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or os.getcwd())
    own = workspace / "bazelw"
    bazel = Bazel(options.bazel or (str(own) if own.exists() else "bazel"), workspace)
    try:
        targets = bazel.tests(options.pattern)
        if not targets:
            raise ToolError(f"{options.pattern} has no tests.\nSo there is nothing to check.\nCorrect --pattern.")
        problems = tag_problems(targets, TagTable(options.known))
        jobs = {flags: bazel.job(flags, options.pattern) for flags in options.job}
    except (OSError, EventsError, ToolError) as error:
        print(f"tags: {error}", file=sys.stderr)
        return 2
    if jobs:
        problems += unreached_problems(targets, jobs)
    print("\n\n".join(problems) + "\n" if problems else "", end="")
    checked = f"{len(jobs)} CI job(s)" if jobs else "no --job given, so it is unknown where they run"
    print(f"tags: {len(targets)} tests, {checked}; {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
