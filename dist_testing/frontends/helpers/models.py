"""Models that keep what they were given, for tests of mixed precision."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["SaveForwardInputsModel", "SaveForwardInputsModule"]


class SaveForwardInputsModule(nn.Module):
    """A linear layer of 100 by 100 that keeps its last input."""

    def __init__(self, forward_inputs: dict[nn.Module, Tensor], cast_forward_inputs: bool) -> None:
        """Make the layer.

        Args:
            forward_inputs: Where the input goes, under this module.
            cast_forward_inputs: Whether the input is cast to the type of the weight first.
        """
        super().__init__()
        self.l = nn.Linear(100, 100)
        self.forward_inputs = forward_inputs
        self.cast_forward_inputs = cast_forward_inputs

    def forward(self, x: Tensor) -> Tensor:
        """Keep `x`, and put it through the layer."""
        self.forward_inputs[self] = x
        result: Tensor = self.l(x.to(self.l.weight.dtype) if self.cast_forward_inputs else x)
        return result


class SaveForwardInputsModel(nn.Module):
    """Two of those layers, one after the other, that together keep their input, too."""

    def __init__(self, forward_inputs: dict[nn.Module, Tensor], cast_forward_inputs: bool) -> None:
        """Make the layers; the arguments are theirs."""
        super().__init__()
        self.c1 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.c2 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.forward_inputs = forward_inputs

    def forward(self, x: Tensor) -> Tensor:
        """Keep `x`, and put it through both layers."""
        self.forward_inputs[self] = x
        result: Tensor = self.c2(self.c1(x))
        return result
