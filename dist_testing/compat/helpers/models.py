"""Models that keep their inputs, for tests of mixed precision."""

from __future__ import annotations

from torch import Tensor, nn


class SaveForwardInputsModule(nn.Module):
    """A linear layer, 100 to 100 features, that keeps its last input."""

    def __init__(self, forward_inputs: dict[nn.Module, Tensor], cast_forward_inputs: bool) -> None:
        """Make the layer.

        Args:
            forward_inputs: Receives the last input of each module, with the module as the key.
            cast_forward_inputs: Whether `forward` casts the input to the dtype of the weight.
        """
        super().__init__()
        self.l = nn.Linear(100, 100)
        self.forward_inputs = forward_inputs
        self.cast_forward_inputs = cast_forward_inputs

    def forward(self, x: Tensor) -> Tensor:
        """Keep `x`, of shape (*, 100), and return the layer's output, of the same shape."""
        self.forward_inputs[self] = x
        result: Tensor = self.l(x.to(self.l.weight.dtype) if self.cast_forward_inputs else x)
        return result


class SaveForwardInputsModel(nn.Module):
    """Two `SaveForwardInputsModule` layers in sequence; the model keeps its own last input, too."""

    def __init__(self, forward_inputs: dict[nn.Module, Tensor], cast_forward_inputs: bool) -> None:
        """Make the layers; the arguments are those of `SaveForwardInputsModule`."""
        super().__init__()
        self.c1 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.c2 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.forward_inputs = forward_inputs

    def forward(self, x: Tensor) -> Tensor:
        """Keep `x`, of shape (*, 100), and return the output of both layers, of the same shape."""
        self.forward_inputs[self] = x
        result: Tensor = self.c2(self.c1(x))
        return result
