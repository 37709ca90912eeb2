"""What a process knows about itself and about others."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dist_testing.process.lifetime import current_umask


@pytest.fixture
def umask() -> Iterator[int]:
    """An unusual mask, which no test gets by chance."""
    before = os.umask(0o153)
    yield 0o153
    os.umask(before)


def test_the_umask_is_read(umask: int) -> None:
    """If this fails, the files of a rank have another mode than without ranks."""
    assert current_umask() == umask


def test_the_umask_is_read_without_a_change(umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a file that another thread creates at that moment is open to every user."""

    def never(mask: int) -> int:
        raise AssertionError(f"the mask was set to {mask:o}")

    monkeypatch.setattr(os, "umask", never)
    assert current_umask() == umask
