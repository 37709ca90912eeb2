"""The flags of a program."""

from __future__ import annotations

from collections.abc import Sequence

_KNOWN = (
    "jax_cuda_visible_devices",
    "multiprocess_test_controller_address",
    "multiprocess_test_worker_id",
    "num_processes",
    "seed",
)


class _Flags:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def __call__(self, argv: Sequence[str]) -> None:
        for argument in argv[1:]:
            name, _, value = argument.removeprefix("--").partition("=")
            if name not in _KNOWN:
                raise ValueError(f"Unknown command line flag {name!r}")
            self.values[name] = value


FLAGS = _Flags()
