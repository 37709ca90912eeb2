"""The skip table: every reason with a name, the exit code that stands for it, and its text.

Names, codes and texts are torch's (`torch.testing._internal.common_distributed.TEST_SKIPS`, 2.13), so that
`sys.exit(TEST_SKIPS["no_cuda"].exit_code)` in a test means the same here. torch stops at eight GPUs; for more, ours has
rows that are made when they are asked for.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["TEST_SKIPS", "TestSkip", "gpus_reason", "is_about_hardware", "skip_for_exit_code"]


class TestSkip(NamedTuple):
    """One row of the skip table."""

    exit_code: int
    message: str


# The class is named as in torch; without this pytest would try to collect it from files that import it.
TestSkip.__test__ = False  # type: ignore[attr-defined]

# torch gives codes to one to eight GPUs, in this order; 76 and 78 to 79 belong to other reasons.
_GPU_EXIT_CODES = (75, 77, 80, 81, 82, 83, 84, 85)


def gpus_reason(gpus: int) -> str:
    """The text for a missing number of GPUs; any number, not only the eight that have an exit code."""
    return f"Need at least {gpus} CUDA device{'s' if gpus > 1 else ''}"


class _SkipTable(dict[str, TestSkip]):
    """The rows of torch; beyond its eight GPUs, any number has a row as well."""

    def __missing__(self, name: str) -> TestSkip:
        if (row := _MANY_GPUS.fullmatch(name)) is None:
            raise KeyError(name)
        gpus = int(row[1])
        code = _MANY_GPUS_CODE + gpus
        # Few enough to have a code of their own; the others share the one that stands for no reason in particular.
        return TestSkip(code if code in _MANY_GPUS_CODES else self["generic"].exit_code, gpus_reason(gpus))


# More GPUs than torch has rows for.
_MANY_GPUS = re.compile(r"multi-gpu-(9|[1-9][0-9]{1,3})")
# What is added to a number of GPUs to make an exit code; up to 25, because 126 and above are a shell's.
_MANY_GPUS_CODE = 100
_MANY_GPUS_CODES = range(_MANY_GPUS_CODE + 9, 126)

TEST_SKIPS: dict[str, TestSkip] = _SkipTable(
    {
        "backend_unavailable": TestSkip(72, "Skipped because distributed backend is not available."),
        "small_worldsize": TestSkip(73, "Skipped due to small world size."),
        "odd_worldsize": TestSkip(87, "Skipped due to odd world size."),
        "no_cuda": TestSkip(74, "CUDA is not available."),
        "no_accelerator": TestSkip(89, "accelerator is not available."),
        **{
            f"multi-gpu-{gpus}": TestSkip(code, gpus_reason(gpus)) for gpus, code in enumerate(_GPU_EXIT_CODES, start=1)
        },
        "nccl": TestSkip(76, "c10d not compiled with NCCL support"),
        "skipIfRocm": TestSkip(78, "Test skipped for ROCm"),
        "no_peer_access": TestSkip(79, "Test skipped because no GPU peer access"),
        "generic": TestSkip(86, "Test skipped at subprocess level, look at subprocess log for skip reason"),
        "importerror": TestSkip(88, "Test skipped due to missing import"),
    }
)

_GPUS_REASON = re.compile(r"Need at least \d+ CUDA devices?\b")

# Reasons that a promise of hardware excludes: with the GPUs and the build of torch that were promised, they cannot
# arise.
_HARDWARE = ("backend_unavailable", "no_cuda", "no_accelerator", "nccl", "no_peer_access")
_HARDWARE_TEXTS = tuple(TEST_SKIPS[name].message for name in _HARDWARE)

_BY_EXIT_CODE = {skip.exit_code: skip for skip in TEST_SKIPS.values()}


def skip_for_exit_code(code: int) -> TestSkip | None:
    """The row that `code` stands for, or None.

    Only ask for a code that test code handed to `sys.exit`: a process that *died* with such a code (72 to 78 are
    also codes of sysexits.h) has crashed, not skipped.
    """
    if code in _MANY_GPUS_CODES:
        return TEST_SKIPS[f"multi-gpu-{code - _MANY_GPUS_CODE}"]
    return _BY_EXIT_CODE.get(code)


def is_about_hardware(reason: str) -> bool:
    """Whether a skip reason says that the machine lacks something, rather than that the test does not apply."""
    return reason.startswith(_HARDWARE_TEXTS) or _GPUS_REASON.match(reason) is not None
