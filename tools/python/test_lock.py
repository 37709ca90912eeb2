"""The lock files, and the hashes that lock.py adds to the resolver's result."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DIGEST_A, DIGEST_B, DIGEST_C = "a" * 64, "b" * 64, "c" * 64


# A program outside any package.
lock = SimpleNamespace(**runpy.run_path(str(HERE / "lock.py")))


def test_digests_are_added_to_the_pin_they_belong_to() -> None:
    """Otherwise pip refuses torch on every Python except the one that made the lock file."""
    before = (
        "# A comment.\n"
        f"torch==2.0 ; sys_platform == 'darwin' \\\n    --hash=sha256:{DIGEST_A}\n    # via -r x.in\n"
        f"torch==2.0+cpu ; sys_platform == 'linux' \\\n    --hash=sha256:{DIGEST_B}\n    # via -r x.in\n"
        f"zzz==1.0 \\\n    --hash=sha256:{DIGEST_A} \\\n    --hash=sha256:{DIGEST_C}\n"
    )
    digests = f"{DIGEST_B}  torch-2.0+cpu-cp311-x.whl\n{DIGEST_A}  torch-2.0+cpu-cp312-x.whl\n"
    after = before.replace(
        f"'linux' \\\n    --hash=sha256:{DIGEST_B}\n",
        f"'linux' \\\n    --hash=sha256:{DIGEST_A} \\\n    --hash=sha256:{DIGEST_B}\n",
    )
    assert after == lock.add_digests(before, digests)


def test_digests_of_another_version_are_refused() -> None:
    """An upgrade of torch without new digests would lock one Python only."""
    pinned = f"torch==2.1+cpu \\\n    --hash=sha256:{DIGEST_A}\n"
    with pytest.raises(lock.LockError, match=r"lists wheels of torch==2\.0\+cpu, which no requirement pins"):
        lock.add_digests(pinned, f"{DIGEST_A}  torch-2.0+cpu-cp311-x.whl\n")


@pytest.mark.parametrize("name", lock.LOCKS)
def test_every_pin_has_a_hash_and_no_address(name: str) -> None:
    """A pin without a hash cannot be installed, and an address would fail in every other network."""
    text = (ROOT / f"{name}.txt").read_text(encoding="utf-8")
    pins = re.findall(r"^[a-z0-9].*", text, re.MULTILINE)
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9._-]+==\S+( ; .*)? \\", pin)] == []
    assert len(pins) == len(list(lock._BLOCK.finditer(text)))
    assert "://" not in text
    assert re.findall(r"^--.*", text, re.MULTILINE) == []


def test_the_cpu_lock_has_torch_without_cuda() -> None:
    """With the CUDA build, a newcomer's first command would download several gigabytes."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    assert "torch==2.13.0+cpu ; sys_platform == 'linux'" in text
    assert "nvidia" not in text
    listed = (HERE / "torch_cpu.sha256").read_text(encoding="utf-8").split()[::2]
    assert [digest for digest in listed if digest not in text] == []


def test_the_cuda_lock_has_torch_with_cuda_on_every_python() -> None:
    """If a resolver is offered the CPU build, it takes it for some Pythons, and a GPU job would test no GPU."""
    text = (ROOT / "requirements_cuda.txt").read_text(encoding="utf-8")
    assert re.findall(r"^(torch==\S+.*) \\$", text, re.MULTILINE) == ["torch==2.15.0"]
    assert "\nnvidia-nccl-cu13==" in text
