"""Backward passes of ranks that are threads, on a device for which torch's autograd has a thread of its own.

Autograd runs the nodes of CPU tensors on the calling thread. The nodes of a GPU run on a thread per GPU, which belongs
to no rank. A device that is written in Python has such a thread on any machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils import backend_registration

from tests.support.children import run_cases
from tests.support.starter import Starter

_SOURCE = """
    import threading
    import pytest
    import torch
    import torch.distributed as dist
    from torch.utils import _pytree, backend_registration

    backend_registration._setup_privateuseone_for_python_backend("written_in_python")
    DEVICE = torch.device("written_in_python:0")

    class OnDevice(torch.Tensor):
        @staticmethod
        def __new__(cls, data):
            return torch.Tensor._make_wrapper_subclass(cls, data.size(), dtype=data.dtype, device=DEVICE)

        def __init__(self, data):
            self.data_on_cpu = data

        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            kwargs = {name: value for name, value in (kwargs or {}).items() if name != "device"}
            args, kwargs = _pytree.tree_map_only(cls, lambda tensor: tensor.data_on_cpu, (args, kwargs))
            return _pytree.tree_map_only(torch.Tensor, cls, func(*args, **kwargs))

    def backward(rank):
        where = []

        def hook(gradient):
            where.append((threading.current_thread(), dist.get_rank() if dist.is_initialized() else -1))
            return gradient

        weight = OnDevice(torch.ones(2)).requires_grad_()
        weight.register_hook(hook)
        (weight * (rank + 1)).sum().backward()
        assert weight.grad.data_on_cpu.tolist() == [rank + 1.0] * 2
        return where

    @pytest.mark.distributed(world_size=3, isolation="thread")
    def test_backward_sees_the_group(world):
        assert backward(world.rank) == [(threading.current_thread(), world.rank)]

    def test_of_no_rank():
        ((thread, _),) = backward(0)
        assert thread is not threading.current_thread()
"""


def test_a_backward_pass_runs_on_the_ranks_own_thread_and_sees_its_group(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a hook that communicates fails on GPUs, because a thread of autograd has no default group."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no devices that are written in Python")
    ended = run_cases(starter, tmp_path, _SOURCE, "--dist-backend=threaded")
    assert ended.outcomes() == {
        "test_backward_sees_the_group": "PASSED",
        # The device can show the difference: otherwise the first test could not fail.
        "test_of_no_rank": "PASSED",
    }, ended.log
