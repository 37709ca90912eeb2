"""Many configurations of a test on one world."""

from __future__ import annotations

import itertools
import sys
import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["run_subtests"]


def run_subtests(
    cls_inst: unittest.TestCase,
    subtest_config: Mapping[str, Sequence[Any]],
    test_fn: Callable[..., Any],
    *test_args: Any,
    **test_kwargs: Any,
) -> None:
    """Call `test_fn` once for each combination of `subtest_config`, each as a sub-test, on the ranks that are there.

    Between two of them the ranks meet at a barrier, if there is a default group, and the state of `torch.compile` is
    cleared, if it is in use.

    Args:
        cls_inst: The running test.
        subtest_config: Keyword of `test_fn` to its values.
        test_fn: The body.
        *test_args: For every call.
        **test_kwargs: For every call.
    """
    import torch.distributed as dist

    for values in itertools.product(*subtest_config.values()):
        chosen = dict(zip(subtest_config, values, strict=True))
        with cls_inst.subTest(**chosen):
            _reset_dynamo()
            test_fn(*test_args, **test_kwargs, **chosen)
            _reset_dynamo()
        if dist.is_initialized():
            dist.barrier()


def _reset_dynamo() -> None:
    # To import it takes a second, and what was never imported has no state.
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()
