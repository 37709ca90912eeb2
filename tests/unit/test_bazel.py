"""Reading Bazel's test protocol."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from dist_testing.core.bazel.protocol import Protocol, read_protocol
from dist_testing.core.ground.errors import UsageError


def test_the_protocol_is_empty_outside_bazel() -> None:
    """If this fails, a run without Bazel behaves as if Bazel had started it."""
    assert read_protocol({"HOME": "/h"}) == Protocol()


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


@pytest.mark.parametrize("name", ["XML_OUTPUT_FILE", "TEST_PREMATURE_EXIT_FILE", "TEST_WARNINGS_OUTPUT_FILE"])
def test_an_empty_path_means_no_path(name: str) -> None:
    """If this fails, an empty path means the current folder, as in pathlib."""
    assert read_protocol({name: ""}) == Protocol()


@pytest.mark.parametrize("value", ["0", "", "true", "yes"])
def test_only_the_value_1_switches_fail_fast_on(value: str) -> None:
    """If this fails, a value that Bazel's test encyclopedia does not define switches fail-fast on."""
    assert not read_protocol({"TESTBRIDGE_TEST_RUNNER_FAIL_FAST": value}).fail_fast


BAD_NUMBERS = ["", "abc", "-1", "1.5", " 5", "1_0", "\u0663", "\u00b2", "1e3", "9" * 5000]


@pytest.mark.parametrize("value", [*BAD_NUMBERS, "0"], ids=lambda value: repr(value)[:12])
def test_an_invalid_timeout_is_refused(value: str) -> None:
    """If this fails, the runner guesses a timeout, and Bazel kills it before its report is written."""
    assert_refused({"TEST_TIMEOUT": value}, f"TEST_TIMEOUT={value!r}")


@pytest.mark.parametrize("value", [*BAD_NUMBERS, "0"], ids=lambda value: repr(value)[:12])
def test_an_invalid_number_of_shards_is_refused(value: str) -> None:
    """If this fails, a wrong number of shards leaves cases out of a green target."""
    assert_refused({"TEST_TOTAL_SHARDS": value, "TEST_SHARD_INDEX": "0"}, f"TEST_TOTAL_SHARDS={value!r}")


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=lambda value: repr(value)[:12])
def test_an_invalid_shard_index_is_refused(value: str) -> None:
    """If this fails, a wrong shard index leaves cases out of a green target."""
    assert_refused({"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": value}, f"TEST_SHARD_INDEX={value!r}")


def assert_refused(env: dict[str, str], part: str) -> None:
    """Check the error: line 1 has the name and the value; the cause and the way out follow."""
    with pytest.raises(UsageError) as caught:
        read_protocol(env)
    text = str(caught.value)
    assert part in text.partition("\n")[0]
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize(("index", "total"), [(2, 2), (5, 2)])
def test_a_shard_beyond_the_last_is_refused(index: int, total: int) -> None:
    """If this fails, a shard beyond the last one runs nothing and is green."""
    with pytest.raises(UsageError, match=f"TEST_SHARD_INDEX={index} with TEST_TOTAL_SHARDS={total}"):
        read_protocol({"TEST_TOTAL_SHARDS": str(total), "TEST_SHARD_INDEX": str(index)})


def test_a_missing_index_is_refused() -> None:
    """If this fails, shard 0 of 2 runs twice, and half of the cases never run."""
    with pytest.raises(UsageError, match="TEST_SHARD_INDEX=''"):
        read_protocol({"TEST_TOTAL_SHARDS": "2"})


def test_bazel_learns_that_sharding_is_supported(tmp_path: Path) -> None:
    """If this fails, Bazel fails the target because it does not find the shard status file."""
    status = tmp_path / "status"
    read_protocol({"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "1", "TEST_SHARD_STATUS_FILE": str(status)})
    assert status.exists()


def test_the_status_file_exists_before_a_wrong_timeout_ends_the_run(tmp_path: Path) -> None:
    """If this fails, a wrong timeout appears in the log as a problem with sharding."""
    status = tmp_path / "status"
    env = {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "1", "TEST_SHARD_STATUS_FILE": str(status)}
    with pytest.raises(UsageError, match="TEST_TIMEOUT"):
        read_protocol({**env, "TEST_TIMEOUT": "x"})
    assert status.exists()


def test_the_status_file_is_not_written_without_shards(tmp_path: Path) -> None:
    """If this fails, the runner tells Bazel that it shards although Bazel did not ask."""
    status = tmp_path / "status"
    assert read_protocol({"TEST_SHARD_STATUS_FILE": str(status)}).shard == (0, 1)
    assert not status.exists()


def test_the_premature_exit_file_exists_while_the_test_runs(tmp_path: Path) -> None:
    """If this fails, `os._exit(0)` in the runner counts as a pass."""
    file = tmp_path / "exit"
    with Protocol(premature_exit_file=file).not_over_yet():
        assert file.exists()
    assert not file.exists()


def test_an_exception_is_not_a_premature_exit(tmp_path: Path) -> None:
    """If this fails, "the test has exited prematurely" hides the error that is in the log."""
    file = tmp_path / "exit"
    with pytest.raises(KeyboardInterrupt), Protocol(premature_exit_file=file).not_over_yet():
        raise KeyboardInterrupt
    assert not file.exists()


def test_a_removed_premature_exit_file_is_not_an_error(tmp_path: Path) -> None:
    """If this fails, a test that removes the file ends the run with an error. The run is over in both cases."""
    file = tmp_path / "exit"
    with Protocol(premature_exit_file=file).not_over_yet():
        file.unlink()


def test_without_a_premature_exit_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the runner writes a file that an older Bazel did not ask for."""
    monkeypatch.chdir(tmp_path)
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


@pytest.mark.parametrize("env", [{"COVERAGE_DIR": "/c"}, {"COVERAGE_MANIFEST": "/m"}])
def test_one_coverage_variable_alone_requests_nothing(env: dict[str, str]) -> None:
    """If this fails, a user who sets one of the variables for another tool gets a coverage run."""
    assert read_protocol(env).coverage is None


@pytest.mark.parametrize("name", ["TEST_SHARD_STATUS_FILE", "TEST_PREMATURE_EXIT_FILE"])
def test_a_file_that_cannot_be_created_is_refused(tmp_path: Path, name: str) -> None:
    """If this fails, a file that cannot be created ends the run with a traceback."""
    env = {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "0", name: str(tmp_path / "gone" / "file")}
    with pytest.raises(UsageError, match=f"{name}=") as caught, read_protocol(env).not_over_yet():
        pytest.fail("the body must not run")
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("protocol", "properties"),
    [
        (Protocol(), []),
        (Protocol(shard=(1, 3)), [("shard_index", 1), ("total_shards", 3)]),
        (Protocol(run_number=2, random_seed="2"), [("run_number", 2), ("random_seed", "2")]),
    ],
)
def test_runs_of_one_target_are_distinguishable(protocol: Protocol, properties: list[tuple[str, object]]) -> None:
    """If this fails, the XML files of shards and repeated runs look the same: they share one name."""
    assert protocol.properties == properties


@pytest.mark.parametrize(
    ("protocol", "is_whole"), [(Protocol(), True), (Protocol(shard=(0, 2)), False), (Protocol(test_filter="a"), False)]
)
def test_a_shard_or_a_selection_is_not_the_whole_target(protocol: Protocol, is_whole: bool) -> None:
    """If this fails, a part of a target is judged like the whole target. All cases of a part may skip."""
    assert protocol.is_whole_target is is_whole
