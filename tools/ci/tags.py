"""Find unknown tags, and tests that no CI job runs: `ci tags [OPTION...]`.

Every tag of a test must be one of Bazel's, one that dist_py_test sets, or one that `--known` documents: a filter with a
misspelt tag silently selects nothing. Give `--job` once for each CI job, with its flags, and its targets if it tests
only some; then at least one of these jobs must run every test, except `manual` ones. Nothing is built or run.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bazel_process import bazel_and_workspace, command_parser, names_targets, split_targets
from build_events import is_whole, read_events

from dist_testing.core.ground.errors import ReportError

# Bazel's own (bazel.build/reference/be/common-definitions#common.tags). `<n>` stands for a number, `<word>` for any
# text without a colon.
BAZEL = (
    "block-network",
    "cpu:<n>",
    "exclusive",
    "exclusive-if-local",
    "external",
    "local",
    "manual",
    "no-cache",
    "no-remote",
    "no-remote-cache",
    "no-remote-cache-upload",
    "no-remote-exec",
    "no-sandbox",
    "requires-fakeroot",
    "requires-network",
    "resources:<word>:<n>",
    "resources:<word>:<n>.<n>",
    # Set by rules_python on every target: the rule was loaded, and is not the built-in one.
    "__PYTHON_RULES_MIGRATION_DO_NOT_USE_WILL_BREAK__",
)

# Set by dist_py_test; docs/selection.md explains them.
OURS = (
    "backend:<word>",
    "dist",
    "gpu",
    "gpu_arch:<word>",
    "gpus:<n>",
    "gpus_ge_<n>",
    "multi_gpu",
    "nodes:<n>",
    "requires-gpu-<word>",
    "requires-gpu-<word>:<n>",
    "requires-netns",
    "world_size:<n>",
)

_PLACEHOLDERS = {"<n>": "[0-9]+", "<word>": "[^:]+"}

# Prefix of the properties of the action that runs a test. A property without it also applies to the other actions.
_TEST_GROUP = "test."

# Exit statuses of a good `test --nobuild`: 1 because no test ran, also when an analysis failed (the events tell); 4 if
# there was no test to run. Any other status means that Bazel did not understand or start the command.
_NOBUILD_CODES = (0, 1, 4)


@dataclass(frozen=True, slots=True)
class Target:
    """A test."""

    label: str  # its label
    tags: tuple[str, ...]  # its tags
    exec_properties: tuple[str, ...]  # names of its properties for remote executors


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


def is_known(tag: str, documented: Iterable[str] = ()) -> bool:
    """Return whether the tag as a whole has the form of Bazel's, of ours, or of one that a repository documents."""

    def pattern(form: str) -> str:
        return "".join(_PLACEHOLDERS.get(part, re.escape(part)) for part in re.split("(<n>|<word>)", form))

    return any(re.fullmatch(pattern(form), tag) for form in (*BAZEL, *OURS, *documented))


def tag_problems(targets: Iterable[Target], documented: Sequence[str] = ()) -> list[str]:
    """Return the problems of tags and properties; each text has three lines."""

    def suggestion(tag: str) -> str:
        near = difflib.get_close_matches(tag, (*BAZEL, *OURS, *documented), n=1, cutoff=0.7)
        return f" Did you mean {near[0]!r}?" if near else ""

    problems = []
    for target in targets:
        problems += [
            f"{target.label}: tag {tag!r} is not documented.{suggestion(tag)}\n"
            "It may be a misspelt one; then a filter or a query finds nothing, or too much.\n"
            f"Correct it, or document it with --known={tag}."
            for tag in target.tags
            if not is_known(tag, documented)
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
    """Return the tests that `bazel test --nobuild` would run, and the targets that it cannot analyse, by its events."""
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


# Runs a command of the Bazel of the workspace that is checked.
Bazel = Callable[..., "subprocess.CompletedProcess[str]"]


def tests(bazel: Bazel, pattern: str) -> list[Target]:
    """Return the tests of a pattern, including `manual` ones."""
    query = f"tests({pattern})"
    done = bazel("query", "--output=streamed_jsonproto", "--proto:output_rule_attrs=tags,exec_properties", query)
    if done.returncode != 0:
        raise ReportError(f"bazel query '{query}' failed:\n{done.stderr}")
    return read_targets(done.stdout)


def tests_of_job(bazel: Bazel, flags: str, pattern: str) -> set[str]:
    """Return the tests that `bazel test <flags>` would run, on the pattern if the flags name no targets.

    Raises:
        ReportError: If Bazel cannot tell, or its build events cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="tags.") as folder:
        file = Path(folder, "events.json")
        words = shlex.split(flags)
        before, targets = split_targets(words)
        # Behind the flags: they may name such a file, too, and Bazel takes the last one.
        ours = ("--nobuild", "--keep_going", "--build_tests_only", f"--build_event_json_file={file}")
        done = bazel("test", *before, *ours, *(targets if names_targets(words) else ("--", pattern)))
        if done.returncode not in _NOBUILD_CODES or not file.exists():
            raise ReportError(f"bazel test --nobuild {flags} failed:\n{done.stderr}")
        events = read_events(file)
    if not is_whole(events):
        raise ReportError(
            f"CI job '{flags}': the build events are incomplete; Bazel ended with {done.returncode}.\n"
            "Bazel was killed, or could not write them; the disk may be full.\n"
            "Read its messages, and check again:\n"
            f"{done.stderr}"
        )
    would_run, broken = runnable(events)
    if broken:
        raise ReportError(f"CI job '{flags}': {', '.join(broken)} cannot be analysed:\n{done.stderr}")
    return would_run


def main(arguments: Sequence[str]) -> int:
    """Print the problems of tags; return 0 if there are none, 1 if there are, 2 if Bazel could not answer."""
    parser = command_parser("tags", __doc__)
    parser.add_argument("--bazel", help="the program (default: ./bazelw of the workspace if it exists, else bazel)")
    parser.add_argument(
        "--known", action="append", default=[], metavar="TAG", help="a documented tag: nightly, team:<word>"
    )
    parser.add_argument("--job", action="append", default=[], metavar="FLAGS", help="flags and targets of one CI job")
    parser.add_argument("--pattern", default="//...", help="the tests to check (default: //...)")
    options = parser.parse_args(arguments)
    program, workspace = bazel_and_workspace(options.bazel)

    def bazel(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *words], cwd=workspace, capture_output=True, text=True, check=False)

    try:
        targets = tests(bazel, options.pattern)
        if not targets:
            raise ReportError(f"{options.pattern} has no tests.\nSo there is nothing to check.\nCorrect --pattern.")
        problems = tag_problems(targets, options.known)
        jobs = {flags: tests_of_job(bazel, flags, options.pattern) for flags in options.job}
    except (OSError, ReportError, ValueError) as error:
        print(f"tags: {error}", file=sys.stderr)
        return 2
    if jobs:
        problems += unreached_problems(targets, jobs)
    print("\n\n".join(problems) + "\n" if problems else "", end="")
    checked = f"{len(jobs)} CI job(s)" if jobs else "no --job given, so it is unknown where they run"
    print(f"tags: {len(targets)} tests, {checked}; {len(problems)} problem(s)")
    return 1 if problems else 0
