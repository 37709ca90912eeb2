"""Bazel's test protocol, as it is read."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from dist_testing.bazel.protocol import CoverageRequest, Protocol, read_protocol
from dist_testing.errors import UsageError


def test_outside_bazel_nothing_is_wanted() -> None:
    """No variable, no demand."""
    assert read_protocol({"HOME": "/h"}) == Protocol()


def test_every_variable_is_read() -> None:
    """Each of them changes what a run does."""
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
        coverage=CoverageRequest(Path("/c"), Path("/m")),
    )


@pytest.mark.parametrize("name", ["XML_OUTPUT_FILE", "TEST_PREMATURE_EXIT_FILE", "TEST_WARNINGS_OUTPUT_FILE"])
def test_an_empty_path_is_none(name: str) -> None:
    """An empty path is the current folder to pathlib."""
    assert read_protocol({name: ""}) == Protocol()


@pytest.mark.parametrize("value", ["0", "", "true", "yes"])
def test_fail_fast_is_on_for_one_only(value: str) -> None:
    """The encyclopedia knows no other value."""
    assert not read_protocol({"TESTBRIDGE_TEST_RUNNER_FAIL_FAST": value}).fail_fast


BAD_NUMBERS = ["", "abc", "-1", "1.5", " 5", "1_0", "\u0663", "\u00b2", "1e3", "9" * 5000]


@pytest.mark.parametrize("value", [*BAD_NUMBERS, "0"], ids=lambda value: repr(value)[:12])
def test_a_timeout_that_is_none_is_refused(value: str) -> None:
    """Guessing would end in a report that Bazel kills."""
    assert_refused({"TEST_TIMEOUT": value}, f"TEST_TIMEOUT={value!r}")


@pytest.mark.parametrize("value", [*BAD_NUMBERS, "0"], ids=lambda value: repr(value)[:12])
def test_a_number_of_shards_that_is_none_is_refused(value: str) -> None:
    """A wrong number would leave cases out, and the target would be green."""
    assert_refused({"TEST_TOTAL_SHARDS": value, "TEST_SHARD_INDEX": "0"}, f"TEST_TOTAL_SHARDS={value!r}")


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=lambda value: repr(value)[:12])
def test_an_index_of_a_shard_that_is_none_is_refused(value: str) -> None:
    """The same."""
    assert_refused({"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": value}, f"TEST_SHARD_INDEX={value!r}")


def assert_refused(env: dict[str, str], part: str) -> None:
    """Line 1 with name and value; then a cause and a way out."""
    with pytest.raises(UsageError) as caught:
        read_protocol(env)
    text = str(caught.value)
    assert part in text.partition("\n")[0]
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize(("index", "total"), [(2, 2), (5, 2)])
def test_a_shard_beyond_the_last_is_refused(index: int, total: int) -> None:
    """It would run nothing and be green."""
    with pytest.raises(UsageError, match=f"TEST_SHARD_INDEX={index} with TEST_TOTAL_SHARDS={total}"):
        read_protocol({"TEST_TOTAL_SHARDS": str(total), "TEST_SHARD_INDEX": str(index)})


def test_a_missing_index_is_refused() -> None:
    """Shard 0 of 2, twice, would leave half of the cases out."""
    with pytest.raises(UsageError, match="TEST_SHARD_INDEX=''"):
        read_protocol({"TEST_TOTAL_SHARDS": "2"})


def test_bazel_is_told_that_sharding_is_understood(tmp_path: Path) -> None:
    """Without the file Bazel fails the target."""
    status = tmp_path / "status"
    read_protocol({"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "1", "TEST_SHARD_STATUS_FILE": str(status)})
    assert status.exists()


def test_bazel_is_told_before_a_wrong_timeout_ends_the_run(tmp_path: Path) -> None:
    """Otherwise the log would speak of sharding instead of the timeout."""
    status = tmp_path / "status"
    env = {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "1", "TEST_SHARD_STATUS_FILE": str(status)}
    with pytest.raises(UsageError, match="TEST_TIMEOUT"):
        read_protocol({**env, "TEST_TIMEOUT": "x"})
    assert status.exists()


def test_without_shards_the_status_file_is_left_alone(tmp_path: Path) -> None:
    """Bazel would take it for an answer to a question it has not asked."""
    status = tmp_path / "status"
    assert read_protocol({"TEST_SHARD_STATUS_FILE": str(status)}).shard == (0, 1)
    assert not status.exists()


def test_the_premature_exit_file_is_there_while_the_test_is_not_over(tmp_path: Path) -> None:
    """`os._exit(0)` in the runner would be a pass without it."""
    file = tmp_path / "exit"
    with Protocol(premature_exit_file=file).not_over_yet():
        assert file.exists()
    assert not file.exists()


def test_an_exception_is_no_premature_exit(tmp_path: Path) -> None:
    """Its error is in the log; "the test has exited prematurely" would send people elsewhere."""
    file = tmp_path / "exit"
    with pytest.raises(KeyboardInterrupt), Protocol(premature_exit_file=file).not_over_yet():
        raise KeyboardInterrupt
    assert not file.exists()


def test_a_premature_exit_file_that_a_test_removed_is_no_error(tmp_path: Path) -> None:
    """The run is over either way."""
    file = tmp_path / "exit"
    with Protocol(premature_exit_file=file).not_over_yet():
        file.unlink()


def test_without_a_premature_exit_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of Bazel do not ask for one."""
    monkeypatch.chdir(tmp_path)
    with Protocol().not_over_yet():
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("age_s", "left_s"), [(30.0, 270.0), (-3600.0, 300.0), (3600.0, 150.0)])
def test_time_counts_from_the_start_of_the_process_if_the_clock_can_be_right(
    age_s: float, left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading torch takes seconds, and Bazel counts them; a clock that was set must not take all the time there is."""
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: now_s - age_s)
    assert Protocol(timeout_s=300.0).time_left_s() == pytest.approx(left_s)
    assert Protocol().time_left_s() is None


@pytest.mark.parametrize("env", [{"COVERAGE_DIR": "/c"}, {"COVERAGE_MANIFEST": "/m"}])
def test_half_of_a_wish_for_coverage_is_none(env: dict[str, str]) -> None:
    """People set one of them for tools of their own."""
    assert read_protocol(env).coverage is None


@pytest.mark.parametrize("name", ["TEST_SHARD_STATUS_FILE", "TEST_PREMATURE_EXIT_FILE"])
def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path, name: str) -> None:
    """Not with a traceback."""
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
def test_runs_of_one_target_can_be_told_apart(protocol: Protocol, properties: list[tuple[str, object]]) -> None:
    """Shards and repeated runs each write an XML under the same name."""
    assert protocol.properties == properties


@pytest.mark.parametrize(
    ("protocol", "is_whole"), [(Protocol(), True), (Protocol(shard=(0, 2)), False), (Protocol(test_filter="a"), False)]
)
def test_a_shard_or_a_selection_is_not_the_whole_target(protocol: Protocol, is_whole: bool) -> None:
    """Of a part, all cases may well be skipped."""
    assert protocol.is_whole_target is is_whole
