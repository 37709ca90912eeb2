"""Reading Bazel's test protocol."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from dist_testing.core.bazel.protocol import Protocol, read_protocol
from dist_testing.core.ground.budget import MAX_TIMEOUT_S
from dist_testing.core.ground.errors import UsageError
from tests.support.results import refusal


@pytest.mark.parametrize(
    "env",
    [
        {"HOME": "/h"},
        # An empty path would be the current folder, as in pathlib.
        *({name: ""} for name in ("XML_OUTPUT_FILE", "TEST_PREMATURE_EXIT_FILE", "TEST_WARNINGS_OUTPUT_FILE")),
        # Bazel's test encyclopedia defines the value 1 alone.
        *({"TESTBRIDGE_TEST_RUNNER_FAIL_FAST": value} for value in ("0", "", "true", "yes")),
        # One of the variables of coverage is for another tool.
        {"COVERAGE_DIR": "/c"},
        {"COVERAGE_MANIFEST": "/m"},
    ],
)
def test_what_bazel_does_not_ask_for_is_not_done(env: dict[str, str]) -> None:
    """If this fails, a run without Bazel behaves as if Bazel had started it."""
    assert read_protocol(env) == Protocol()


def test_every_variable_is_read() -> None:
    """If this fails, the runner ignores a variable with which Bazel controls the run."""
    protocol = read_protocol(
        {
            "TEST_TIMEOUT": "300",
            "XML_OUTPUT_FILE": "/o/test.xml",
            "TEST_UNDECLARED_OUTPUTS_DIR": "/o/outputs",
            "TEST_PREMATURE_EXIT_FILE": "/o/exit",
            "TEST_WARNINGS_OUTPUT_FILE": "/o/warnings",
            "TESTBRIDGE_TEST_ONLY": "test_a or test_b",
            "TESTBRIDGE_TEST_RUNNER_FAIL_FAST": "1",
            "TEST_TOTAL_SHARDS": "4",
            "TEST_SHARD_INDEX": "3",
            "TEST_RUN_NUMBER": "7",
            "TEST_RANDOM_SEED": "7",
            "COVERAGE_DIR": "/c",
            "COVERAGE_MANIFEST": "/m",
        }
    )
    assert protocol == Protocol(
        timeout_s=300.0,
        xml_file=Path("/o/test.xml"),
        outputs=Path("/o/outputs"),
        premature_exit_file=Path("/o/exit"),
        warnings_file=Path("/o/warnings"),
        test_filter="test_a or test_b",
        fail_fast=True,
        shard=(3, 4),
        run_number=7,
        random_seed="7",
        coverage=(Path("/c"), Path("/m")),
    )
    # The largest number of --test_timeout.
    assert read_protocol({"TEST_TIMEOUT": "2147483647"}).timeout_s == MAX_TIMEOUT_S


BAD_NUMBERS = ["", "abc", "-1", "1.5", " 5", "1_0", "\u0663", "\u00b2", "1e3", "9" * 5000]


@pytest.mark.parametrize(
    ("name", "value", "others"),
    [
        # A guessed timeout: Bazel kills the run before its report is written.
        *(("TEST_TIMEOUT", value, {}) for value in [*BAD_NUMBERS, "0"]),
        # Cases of a green target would not run, or run twice.
        *(("TEST_TOTAL_SHARDS", value, {"TEST_SHARD_INDEX": "0"}) for value in [*BAD_NUMBERS, "0"]),
        *(("TEST_SHARD_INDEX", value, {"TEST_TOTAL_SHARDS": "2"}) for value in [*BAD_NUMBERS, "2", "5"]),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_an_invalid_number_is_refused(name: str, value: str, others: dict[str, str]) -> None:
    """If this fails, the runner guesses, and cases do not run or their report is lost."""
    first = refusal(lambda: read_protocol({**others, name: value})).partition("\n")[0]
    if value in ("2", "5"):
        assert f"TEST_SHARD_INDEX={value} with TEST_TOTAL_SHARDS=2" in first
    else:
        assert f"{name}={value!r}" in first


def test_bazel_learns_that_sharding_is_supported(tmp_path: Path) -> None:
    """If this fails, Bazel fails the target, or the log tells a wrong timeout as a problem with sharding."""
    status = tmp_path / "status"
    assert read_protocol({"TEST_SHARD_STATUS_FILE": str(status)}).shard == (0, 1)
    assert not status.exists(), "Bazel did not ask"
    env = {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "1", "TEST_SHARD_STATUS_FILE": str(status)}
    assert "TEST_TIMEOUT" in refusal(lambda: read_protocol({**env, "TEST_TIMEOUT": "x"}))
    assert status.exists()
    status.unlink()
    read_protocol(env)
    assert status.exists()
    assert "TEST_SHARD_INDEX=''" in refusal(lambda: read_protocol({"TEST_TOTAL_SHARDS": "2"}))


def test_the_premature_exit_file_exists_while_the_test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, `os._exit(0)` in the runner counts as a pass, or an error in the log as a premature exit."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "exit"
    with Protocol(premature_exit_file=file).not_over_yet():
        assert file.exists()
    assert not file.exists()
    with pytest.raises(KeyboardInterrupt), Protocol(premature_exit_file=file).not_over_yet():
        raise KeyboardInterrupt
    assert not file.exists()
    # A test that removes it does not matter: the run is over in both cases.
    with Protocol(premature_exit_file=file).not_over_yet():
        file.unlink()
    # An older Bazel does not ask for it.
    with Protocol().not_over_yet():
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("age_s", "left_s"), [(30.0, 270.0), (-3600.0, 300.0), (3600.0, 150.0)])
def test_time_counts_from_process_start_unless_the_clock_is_implausible(
    age_s: float, left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, seconds of loading torch are not counted, or a changed clock uses up the whole timeout."""
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: now_s - age_s)
    assert Protocol(timeout_s=300.0).time_left_s() == pytest.approx(left_s)
    assert Protocol().time_left_s() is None


@pytest.mark.parametrize("name", ["TEST_SHARD_STATUS_FILE", "TEST_PREMATURE_EXIT_FILE"])
def test_a_file_that_cannot_be_created_is_refused(tmp_path: Path, name: str) -> None:
    """If this fails, a file that cannot be created ends the run with a traceback."""
    env = {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "0", name: str(tmp_path / "gone" / "file")}
    with pytest.raises(UsageError, match=f"{name}=") as caught, read_protocol(env).not_over_yet():
        pytest.fail("the body must not run")
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("protocol", "properties", "is_whole"),
    [
        (Protocol(), [], True),
        (Protocol(shard=(1, 3)), [("shard_index", 1), ("total_shards", 3)], False),
        (Protocol(run_number=2, random_seed="2"), [("run_number", 2), ("random_seed", "2")], True),
        (Protocol(test_filter="a"), [], False),
    ],
)
def test_runs_of_one_target_are_distinguishable(
    protocol: Protocol, properties: list[tuple[str, object]], is_whole: bool
) -> None:
    """If this fails, XML files of shards and repeated runs look the same, or a part is judged like the whole target."""
    assert protocol.properties == properties
    assert protocol.is_whole_target is is_whole
