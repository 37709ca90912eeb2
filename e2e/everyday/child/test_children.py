import subprocess
import sys

import pytest


@pytest.mark.distributed
def test_child_of_a_rank_imports_torch(world):
    command = [sys.executable, "-c", "import torch.distributed; print(torch.distributed.is_available())"]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout == "True\n"


def test_launcher_of_torch_starts():
    command = [sys.executable, "-m", "torch.distributed.run", "--help"]
    assert "nproc" in subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
