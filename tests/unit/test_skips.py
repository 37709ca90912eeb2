"""The skip table equals torch's, name by name."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from dist_testing.core.ground.skips import TEST_SKIPS, TestSkip, gpus_reason, is_about_hardware, skip_for_exit_code

TABLE = {
    "backend_unavailable": (72, "Skipped because distributed backend is not available."),
    "small_worldsize": (73, "Skipped due to small world size."),
    "no_cuda": (74, "CUDA is not available."),
    "multi-gpu-1": (75, "Need at least 1 CUDA device"),
    "nccl": (76, "c10d not compiled with NCCL support"),
    "multi-gpu-2": (77, "Need at least 2 CUDA devices"),
    "skipIfRocm": (78, "Test skipped for ROCm"),
    "no_peer_access": (79, "Test skipped because no GPU peer access"),
    "multi-gpu-3": (80, "Need at least 3 CUDA devices"),
    "multi-gpu-4": (81, "Need at least 4 CUDA devices"),
    "multi-gpu-5": (82, "Need at least 5 CUDA devices"),
    "multi-gpu-6": (83, "Need at least 6 CUDA devices"),
    "multi-gpu-7": (84, "Need at least 7 CUDA devices"),
    "multi-gpu-8": (85, "Need at least 8 CUDA devices"),
    "generic": (86, "Test skipped at subprocess level, look at subprocess log for skip reason"),
    "odd_worldsize": (87, "Skipped due to odd world size."),
    "importerror": (88, "Test skipped due to missing import"),
    "no_accelerator": (89, "accelerator is not available."),
}
NEED_HARDWARE = {name for name in TABLE if name.startswith("multi-gpu-")} | {
    "backend_unavailable",
    "nccl",
    "no_accelerator",
    "no_cuda",
    "no_peer_access",
}


def torchs_table() -> dict[str, tuple[int, str]]:
    """Read the table from the source of the installed torch; importing it needs packages for torch's tests.

    Returns:
        Name to exit code and message.
    """
    torch = find_spec("torch")
    assert torch is not None
    assert torch.submodule_search_locations
    path = Path(torch.submodule_search_locations[0], "testing/_internal/common_distributed.py")
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "TEST_SKIPS":
            assert isinstance(statement.value, ast.Dict)
            rows = {}
            for name, row in zip(statement.value.keys, statement.value.values, strict=True):
                assert name is not None
                assert isinstance(row, ast.Call)
                code, message = (ast.literal_eval(argument) for argument in row.args)
                rows[ast.literal_eval(name)] = (code, message)
            return rows
    raise AssertionError(f"{path} has no TEST_SKIPS")


def test_every_row_is_as_documented() -> None:
    """If this fails, tests that exit with these codes find nothing, or a promise of hardware breaks by another skip."""
    assert {name: tuple(row) for name, row in TEST_SKIPS.items()} == TABLE
    assert {name for name in TABLE if is_about_hardware(TABLE[name][1])} == NEED_HARDWARE
    for own in ("", "not on Tuesdays", "Need at least 4 files in the cache", "not now: Need at least 4 CUDA devices"):
        assert not is_about_hardware(own), "a promise of GPUs turns a test's own skip into a failure"
    assert getattr(TestSkip, "__test__", True) is False, "pytest warns in every file that imports the table"


def test_every_row_of_the_installed_torch_exists_here() -> None:
    """If this fails, a row that torch added or changed counts as a crash, or gives another reason."""
    theirs = torchs_table()
    assert len(theirs) >= 17
    assert {name: TABLE.get(name) or TEST_SKIPS[name] for name in theirs} == theirs


@pytest.mark.parametrize(("devices", "code"), [(1, 75), (2, 77), (8, 85), (9, 109)])
def test_rows_of_devices_are_those_of_gpus_with_another_text(devices: int, code: int) -> None:
    """If this fails, a test file of torch 2.15 ends in a KeyError where it should skip."""
    text = f"Need at least {devices} accelerator device{'s' if devices > 1 else ''}"
    assert TEST_SKIPS[f"multi-device-{devices}"] == (code, text)
    assert is_about_hardware(text)
    with pytest.raises(KeyError, match="multi-gpu-0"):
        TEST_SKIPS["multi-device-0"]


@pytest.mark.parametrize("code", [*range(60, 100), -9, 0, 1, 10, 108, 126, 137, 256 + 77])
def test_an_exit_code_stands_for_its_row_only(code: int) -> None:
    """If this fails, success, a failure, a signal or a code of the shell counts as a skip."""
    expected = next((TestSkip(*row) for row in TABLE.values() if row[0] == code), None)
    assert skip_for_exit_code(code) == expected


@pytest.mark.parametrize("gpus", [1, 2, 9, 16, 25, 64])
def test_any_number_of_gpus_has_a_row(gpus: int) -> None:
    """If this fails, more than eight GPUs end in torch's KeyError, or an exit code that shells use loses the reason."""
    row = TEST_SKIPS[f"multi-gpu-{gpus}"]
    assert row.message == gpus_reason(gpus) == f"Need at least {gpus} CUDA device{'s' * (gpus > 1)}"
    assert is_about_hardware(f"{gpus_reason(gpus)} (found 0)")
    if gpus == 64:
        assert row.exit_code == TEST_SKIPS["generic"].exit_code
    else:
        assert skip_for_exit_code(row.exit_code) == row
        assert (row.exit_code in {code for code, _ in TABLE.values()}) is (gpus <= 8)


@pytest.mark.parametrize("name", ["multi-gpu-0", "multi-gpu-09", "multi-gpu-", "multi-gpu-9x", "no_such_reason"])
def test_unknown_names_are_refused(name: str) -> None:
    """If this fails, a mistyped reason becomes a skip."""
    with pytest.raises(KeyError, match=name):
        TEST_SKIPS[name]
