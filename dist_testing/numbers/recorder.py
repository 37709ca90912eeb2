"""`world.record`: a rank gives the runner a number."""

from __future__ import annotations

import functools
import platform

import torch

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import Layout
from dist_testing.core.ground.world import AsksRunner, World
from dist_testing.numbers.number import BETTER, MAX_HARDWARE_CHARS, NAME, NUMBERS, Better, Number


class Recorder:
    """Records numbers of one rank; a test gets it as `world.record`."""

    def __init__(self, world: World, runner: AsksRunner, layout: Layout) -> None:
        self._world = world
        self._runner = runner

    def __call__(
        self, name: str, value: float, unit: str = "", *, better: Better = "higher", within: float | None = None
    ) -> None:
        """Record a number of this rank in the record of the case.

        With `within`, the case fails if the number is worse than the base in the file of `--dist-numbers` by more than
        that. The number is judged at the end of the case, so all numbers are in its record. Several ranks can record
        a number of one name; each of them is compared.

        Args:
            name: What was measured, such as "busbw". A rank records each name once in a case.
            value: A finite number; `tensor.item()` of a tensor.
            unit: Such as "GB/s". The base has the same.
            better: Which numbers are good: "higher" ones, "lower" ones, or the "same" as the base.
            within: The part of the base by which the number may be worse: 0.1 for 10 %. None does not compare it.

        Raises:
            UsageError: If the number is not finite, an argument is wrong, or there is no base to compare with.
        """
        subject = f"world.record({name!r}, {value!r}) on rank {self._world.rank}"
        try:
            if type(value) not in (int, float) or type(within) not in (int, float, type(None)):
                raise ValueError("value and within are numbers, of the types int and float")
            if better not in BETTER or type(name) is not str or type(unit) is not str:
                raise ValueError(f"better is one of {', '.join(BETTER)}; name and unit are texts")
            number = Number(name, value, unit, better, within, hardware_of(self._world.device))
        except ValueError as error:
            raise UsageError(
                f"{subject}: {error}.\n"
                "The measurement has failed, or an argument is wrong.\n"
                'Write world.record("busbw", 12.5, unit="GB/s", better="higher", within=0.1), for example.'
            ) from None
        if refusal := self._runner.ask(NAME, NUMBERS.to_wire(number).decode(), subject):
            raise UsageError(f"{subject}: {refusal}")


@functools.cache
def hardware_of(device: torch.device) -> str:
    """Return the model of a device: of the GPU, or of the machine's CPU."""
    if device.type != "cpu":
        return str(torch.get_device_module(device).get_device_name(device))[:MAX_HARDWARE_CHARS]
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        # Some kernels name no model, such as those of arm64.
        models = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
        return next(models, "")[:MAX_HARDWARE_CHARS] or f"{platform.machine()} CPU"
