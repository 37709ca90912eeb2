"""The skip table: each skip reason has a name, an exit code and a text.

Names, codes and texts are those of torch (`torch.testing._internal.common_distributed.TEST_SKIPS`, 2.13), so that
`sys.exit(TEST_SKIPS["no_cuda"].exit_code)` in a test means the same here. torch's table ends at eight GPUs; this one
computes rows for more GPUs when they are looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# Part of a test function's __dict__, which functools.wraps copies: its requirements, the outermost decorator's first.
REQUIREMENTS = "__dist_requirements__"
# Attribute of a test function or a class: what its requirements ask for. It has pairs of a function from the world size
# to a number of GPUs, and the name of a backend, "" for any. The name has no new word, because `-k` matches it.
REQUIRED = "__dist_requirement__"
# From the ranks' environment to the reason why the test cannot run; None if it can run, or if that is unknown.
Decide = Callable[[Mapping[str, str]], str | None]


class TestSkip(NamedTuple):
    """One row of the skip table.

    Attributes:
        exit_code: The exit code that stands for the reason.
        message: The text of the reason.
    """

    exit_code: int
    message: str


# The class is named as in torch; without this, pytest would collect it from files that import it.
TestSkip.__test__ = False  # type: ignore[attr-defined]

# torch gives codes to one to eight GPUs, in this order; 76 and 78 to 79 belong to other reasons.
_GPU_EXIT_CODES = (75, 77, 80, 81, 82, 83, 84, 85)


def gpus_reason(gpus: int) -> str:
    """Return the skip text for missing GPUs: any number from 1, not only those with an exit code."""
    return f"Need at least {gpus} CUDA device{'s' if gpus > 1 else ''}"


class _SkipTable(dict[str, TestSkip]):
    """torch's rows, and a computed row for each number of GPUs from 9 to 9999, and of devices from 1."""

    def __missing__(self, name: str) -> TestSkip:
        if name.startswith(_DEVICES):
            # torch 2.15 has these rows in the place of the rows of GPUs, with their codes.
            code, message = self[name.replace(_DEVICES, _GPUS, 1)]
            return TestSkip(code, message.replace("CUDA", "accelerator"))
        if (row := _MANY_GPUS.fullmatch(name)) is None:
            raise KeyError(name)
        gpus = int(row[1])
        code = _MANY_GPUS_CODE + gpus
        # Numbers up to 25 have their own exit code; larger ones share the code of "generic".
        return TestSkip(code if code in _MANY_GPUS_CODES else self["generic"].exit_code, gpus_reason(gpus))


_GPUS, _DEVICES = "multi-gpu-", "multi-device-"
# More GPUs than torch has rows for.
_MANY_GPUS = re.compile(r"multi-gpu-(9|[1-9][0-9]{1,3})")
# Exit code minus number of GPUs. Applies to 9 to 25 GPUs, because shells use the codes from 126.
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

_GPUS_REASON = re.compile(r"Need at least \d+ (CUDA|accelerator) devices?\b")

# Reasons that promised hardware excludes: they cannot occur on a machine with the promised GPUs and build of torch.
_HARDWARE = ("backend_unavailable", "no_cuda", "no_accelerator", "nccl", "no_peer_access")
_HARDWARE_TEXTS = tuple(TEST_SKIPS[name].message for name in _HARDWARE)

_BY_EXIT_CODE = {skip.exit_code: skip for skip in TEST_SKIPS.values()}


def skip_for_exit_code(code: int) -> TestSkip | None:
    """Return the row for an exit code that test code passed to `sys.exit`, or None if it stands for no skip.

    Do not pass the exit code of a process that ended otherwise: sysexits.h also uses 72 to 78, so such a process has
    crashed, not skipped.
    """
    if code in _MANY_GPUS_CODES:
        return TEST_SKIPS[f"multi-gpu-{code - _MANY_GPUS_CODE}"]
    return _BY_EXIT_CODE.get(code)


def is_about_hardware(reason: str) -> bool:
    """Return whether the text of a skip reason says that the machine lacks hardware or a backend."""
    return reason.startswith(_HARDWARE_TEXTS) or _GPUS_REASON.match(reason) is not None


def unmet_requirement(function: Callable[..., Any], environment: Mapping[str, str]) -> str | None:
    """Return why a test would skip on ranks with this environment; None if nothing is known to be missing."""
    if getattr(function, "__unittest_skip__", False):
        return str(getattr(function, "__unittest_skip_why__", ""))
    decisions: tuple[Decide, ...] = getattr(function, REQUIREMENTS, ())
    return next((reason for decide in decisions if (reason := decide(environment)) is not None), None)
