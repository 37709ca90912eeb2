"""Checks on DistributedDataParallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

__all__ = ["verify_ddp_error_logged"]

# Where C++ begins to tell its stack.
_CPP_STACK = "\nException raised from "


def verify_ddp_error_logged(model_DDP: DistributedDataParallel, err_substr: str) -> None:
    """Check that DDP has noted an error in what it logs.

    Args:
        model_DDP: The wrapped model.
        err_substr: Part of the error's text; of a C++ error, what stands before the stack.

    Raises:
        AssertionError: If it has noted none, or another one.
    """
    data = model_DDP._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    missing = [name for name in ("iteration", "has_error", "error") if name not in data]
    if missing:
        raise AssertionError(f"DDP has logged no error: its logging data have no {', '.join(missing)}")
    expected = err_substr.partition(_CPP_STACK)[0]
    if expected not in data["error"]:
        raise AssertionError(f"DDP has logged another error than {expected!r}: {data['error']}")
