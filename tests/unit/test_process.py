"""What a process knows of itself and of others."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dist_testing.process.lifetime import current_umask


@pytest.fixture
def umask() -> Iterator[int]:
    """One that nobody has by chance."""
    before = os.umask(0o153)
    yield 0o153
    os.umask(before)


def test_the_mask_is_known(umask: int) -> None:
    """Files of a rank have the mode that they would have without ranks."""
    assert current_umask() == umask


def test_the_mask_is_read_without_being_changed(umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another thread writes at that moment would be open to everybody."""

    def never(mask: int) -> int:
        raise AssertionError(f"the mask was set to {mask:o}")

    monkeypatch.setattr(os, "umask", never)
    assert current_umask() == umask
