"""torch's `MultiProcContinuousTest`: ranks and group are made once for a class."""

from __future__ import annotations

from torch.testing._internal.common_distributed import MultiProcContinuousTest

from contestants.torch_suite import add_cases, run_suite
from contestants.trivial import run_trivial
from contestants.turns import order


def _run(test: MultiProcContinuousTest, case: str) -> None:
    run_trivial(case, test.rank)


@add_cases(_run)
class ContinuousTest(MultiProcContinuousTest):
    """Used as in torch's own test files."""

    world_size = order().world_size

    @classmethod
    def backend_str(cls) -> str:
        """The backend of the group that the class makes."""
        return "gloo"

    @classmethod
    def device_type(cls) -> str:
        """The device of the tensors."""
        return "cpu"


if __name__ == "__main__":
    run_suite(ContinuousTest)
