"""What the tag linter makes of Bazel's answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import tags  # noqa: E402
from tag_table import TagTable  # noqa: E402


def _rule(name: str, tag_list: list[str], **properties: str) -> str:
    attributes: list[dict[str, object]] = [{"name": "tags", "type": "STRING_LIST", "stringListValue": tag_list}]
    if properties:
        value = [{"key": key.replace("__", "."), "value": text} for key, text in properties.items()]
        attributes.append({"name": "exec_properties", "type": "STRING_DICT", "stringDictValue": value})
    return json.dumps({"type": "RULE", "rule": {"name": name, "attribute": attributes}})


@pytest.mark.parametrize(
    ("tag", "is_known"),
    [
        ("manual", True),
        ("cpu:4", True),
        ("cpu:four", False),
        ("resources:gpu:2", True),
        ("gpus_ge_16", True),
        ("gpus_ge_", False),
        ("backend:cuda_gloo", True),
        ("requires-gpu-nvidia:2", True),
        ("requires-gpu-nvidia:2:3", False),
        ("mutli_gpu", False),
        ("team:infra", True),
        ("nightly", True),
        ("nightly2", False),
    ],
)
def test_known_tags_are_told_from_others(tag: str, is_known: bool) -> None:
    """A tag is known by its whole form: a misspelt one would pass for a right one."""
    assert TagTable(["nightly", "team:<word>"]).knows(tag) is is_known


def test_an_undocumented_tag_is_reported_with_the_nearest() -> None:
    """The author sees which target and what was probably meant."""
    targets = tags.read_targets([_rule("//a:b", ["manual", "mutli_gpu"])])
    (problem,) = tags.tag_problems(targets, TagTable())
    first, _, last = problem.split("\n")
    assert first == "//a:b: tag 'mutli_gpu' is not documented. Did you mean 'multi_gpu'?"
    assert last == "Correct it, or document it with --known=mutli_gpu."


def test_properties_of_every_action_are_reported() -> None:
    """A distributed test whose build would wait for a GPU worker is found, whoever set the property."""
    right = _rule("//a:right", ["dist"], test__Pool="gpu")
    wrong = _rule("//a:wrong", ["dist"], Pool="gpu")
    other = _rule("//a:other", [], Pool="gpu")
    (problem,) = tags.tag_problems(tags.read_targets([right, wrong, other]), TagTable())
    assert problem.startswith("//a:wrong: exec_properties has 'Pool'.\n")


def _completed(label: str, reason: str) -> str:
    return json.dumps({"id": {"targetCompleted": {"label": label}}, "aborted": {"reason": reason}})


def test_a_lane_runs_what_is_neither_skipped_nor_broken() -> None:
    """Only targets that Bazel would have built count as run."""
    events = [
        json.dumps({"id": {"started": {}}}),
        _completed("//a:runs", "NO_BUILD"),
        _completed("//a:skipped", "SKIPPED"),
        _completed("//a:broken", "ANALYSIS_FAILURE"),
    ]
    assert tags.runnable(events) == ({"//a:runs"}, ["//a:broken"])


def test_a_test_that_no_lane_runs_is_reported() -> None:
    """Two lanes together must reach every test but the manual ones."""
    rules = [_rule("//a:one", []), _rule("//a:two", []), _rule("//a:never", ["gpu"]), _rule("//a:asked", ["manual"])]
    problems = tags.nowhere_problems(
        tags.read_targets(rules), {"--config=ci": {"//a:one"}, "--config=gpu": {"//a:two"}}
    )
    assert [problem.partition("\n")[0] for problem in problems] == [
        "//a:never: runs nowhere: none of the lanes '--config=ci', '--config=gpu' would run it."
    ]


def test_bazel_that_cannot_be_started_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong --bazel ends with a text and its own status, not with a traceback or a green check."""
    assert tags.main(["--bazel=/nowhere/bazel"]) == 2
    assert capsys.readouterr().err.startswith("tags: [Errno 2]")
