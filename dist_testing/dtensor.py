"""Spares ranks an import of 500 modules when they compare tensors."""

from __future__ import annotations

import sys

from dist_testing.core.ground.case import CaseBody
from dist_testing.core.rank.hooks import RankService

_PACKAGE = "torch.distributed.tensor"
# Private names of torch 2.12 and later. Where they are missing, torch's comparison stays as it is.
_COMPARISON = "torch.testing._comparison"
_SWITCH = "_HAS_DTENSOR"


class _HasDTensor:
    """True as soon as this process has imported DTensor."""

    def __bool__(self) -> bool:
        return _PACKAGE in sys.modules


class SparedImport(RankService):
    """Lets torch's comparison look for values of type DTensor only if this process has imported that type.

    `torch.testing.assert_close`, and `assertEqual` of torch's `TestCase`, import `torch.distributed.tensor` to see
    whether a value is a DTensor: 0.5 s of CPU on each fresh rank. Without that import no value can be one.
    """

    def case_begin(self, body: CaseBody) -> None:
        """Look at torch's comparison: a test may have imported it."""
        comparison = sys.modules.get(_COMPARISON)
        if comparison is not None and getattr(comparison, _SWITCH, None) is True:
            setattr(comparison, _SWITCH, _HasDTensor())
