import pytest
import torch
from shared.base import ShapesTest


class TestShapes(ShapesTest):
    @pytest.mark.distributed
    def test_matrix(self, world):
        assert torch.equal(self.sum_of_ones((2, 3)), torch.full((2, 3), float(world.size)))
