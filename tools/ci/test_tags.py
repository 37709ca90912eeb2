"""How the tag linter reads Bazel's answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tags


def _rule(name: str, tag_list: list[str], **properties: str) -> str:
    attributes: list[dict[str, object]] = [{"name": "tags", "type": "STRING_LIST", "stringListValue": tag_list}]
    if properties:
        value = [{"key": key.replace("__", "."), "value": text} for key, text in properties.items()]
        attributes.append({"name": "exec_properties", "type": "STRING_DICT", "stringDictValue": value})
    return json.dumps({"type": "RULE", "rule": {"name": name, "attribute": attributes}})


_KNOWN = """
manual cpu:4 resources:gpu:2 gpu_arch:sm_90 gpus_ge_16 backend:cuda_gloo requires-gpu-nvidia:2 nodes:2 requires-netns
resources:memory:0.5 team:infra nightly
"""
_UNKNOWN = "cpu:four gpus_ge_ requires-gpu-nvidia:2:3 mutli_gpu nightly2"


@pytest.mark.parametrize("tag", _KNOWN.split() + _UNKNOWN.split())
def test_known_tags_are_told_from_others(tag: str) -> None:
    """A tag must match a known form as a whole: otherwise a misspelt tag would pass."""
    assert tags.is_known(tag, ["nightly", "team:<word>"]) is (tag in _KNOWN.split())


def test_properties_of_every_action_are_reported() -> None:
    """A build of a distributed test that would wait for a GPU worker is found, also if its author set the property."""
    right = _rule("//a:right", ["dist"], test__Pool="gpu")
    wrong = _rule("//a:wrong", ["dist"], Pool="gpu")
    other = _rule("//a:other", [], Pool="gpu")
    manual = _rule("//a:manual", ["dist", "manual"], Pool="gpu")
    (problem,) = tags.tag_problems(tags.read_targets(f"{right}\n{wrong}\n{other}\n{manual}\n"))
    assert problem.startswith("//a:wrong: exec_properties has 'Pool'.\n")


def _completed(label: str, reason: str) -> dict[str, object]:
    return {"id": {"targetCompleted": {"label": label}}, "aborted": {"reason": reason}}


def test_a_job_runs_the_targets_that_bazel_would_build() -> None:
    """Only targets that Bazel would have built count as run."""
    events: list[dict[str, object]] = [
        {"id": {"started": {}}},
        _completed("//a:runs", "NO_BUILD"),
        _completed("//a:skipped", "SKIPPED"),
        _completed("//a:broken", "ANALYSIS_FAILURE"),
    ]
    assert tags.runnable(events) == ({"//a:runs"}, ["//a:broken"])


def test_bazel_that_cannot_be_started_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong --bazel ends with a text and its own status, not with a traceback or a green check."""
    assert tags.main(["--bazel=/nowhere/bazel"]) == 2
    assert capsys.readouterr().err.startswith("tags: [Errno 2]")


# A stand-in for Bazel: answers a query, and writes the build events of a test to the given file.
_BAZEL = """\
import pathlib, sys
here = pathlib.Path(__file__).parent
if sys.argv[1] == "query":
    sys.stdout.buffer.write((here / "rules").read_bytes())
(here / "call").write_text(chr(10).join(sys.argv[1:]))
for argument in sys.argv:
    if argument.startswith("--build_event_json_file="):
        pathlib.Path(argument.partition("=")[2]).write_bytes((here / "events").read_bytes())
"""
# JSON keeps this character as it is, and for Python it ends a line.
_ODD = "//a:caf\N{NEXT LINE}e"
_LAST: dict[str, object] = {"id": {"progress": {}}, "lastMessage": True}


def _ask_about_odd(folder: Path, events: str, job: str = "--config=ci") -> int:
    program = folder / "bazel"
    program.write_text(f"#!{sys.executable}\n{_BAZEL}", encoding="utf-8")
    program.chmod(0o755)
    rule = json.dumps(json.loads(_rule(_ODD, [])), ensure_ascii=False)
    (folder / "rules").write_text(f"{rule}\n", encoding="utf-8")
    (folder / "events").write_text(events, encoding="utf-8")
    return tags.main([f"--bazel={program}", f"--job={job}"])


def _lines(*events: dict[str, object]) -> str:
    return "".join(f"{json.dumps(event, ensure_ascii=False)}\n" for event in events)


def test_only_a_line_feed_ends_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One odd label would end the check of all others in a traceback."""
    assert _ask_about_odd(tmp_path, _lines(_completed(_ODD, "NO_BUILD"), _LAST)) == 0
    assert capsys.readouterr().out == "tags: 1 tests, 1 CI job(s); 0 problem(s)\n"


@pytest.mark.parametrize(
    ("job", "flags", "targets"),
    [
        ("-k --test_tag_filters='gpu,-slow'", ["-k", "--test_tag_filters=gpu,-slow"], ["--", "//..."]),
        ("-k //a/... -- -//a:b", ["-k", "//a/..."], ["--", "-//a:b"]),
        ("--target_pattern_file=x", ["--target_pattern_file=x"], []),
    ],
)
def test_a_job_is_asked_about_as_it_runs(tmp_path: Path, job: str, flags: list[str], targets: list[str]) -> None:
    """A job of some targets would count as one of all, or a quoted flag would select nothing."""
    assert _ask_about_odd(tmp_path, _lines(_completed(_ODD, "NO_BUILD"), _LAST), job) == 0
    call = (tmp_path / "call").read_text(encoding="utf-8").splitlines()
    assert (call[: len(flags) + 1], call[len(flags) + 5 :]) == (["test", *flags], targets)


def test_a_quote_that_does_not_end_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error would be a traceback."""
    assert _ask_about_odd(tmp_path, "", "--test_arg='a") == 2
    assert capsys.readouterr().err == "tags: No closing quotation\n"


@pytest.mark.parametrize("cut", [10, len(_lines(_LAST)), len(_lines(_LAST)) + 10])
def test_a_job_with_incomplete_events_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], cut: int) -> None:
    """Half an answer would be a traceback, or tests that the job runs would count as never run."""
    events = _lines(_completed("//a:other", "NO_BUILD"), _completed(_ODD, "NO_BUILD"), _LAST)
    assert _ask_about_odd(tmp_path, events[:-cut]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("tags: CI job '--config=ci': the build events are incomplete")
    assert captured.out == ""
