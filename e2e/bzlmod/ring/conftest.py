"""Makes the consumer's backend known to plain pytest; under Bazel the targets name it."""

from __future__ import annotations

from pathlib import Path


def pytest_dist_backends() -> list[Path]:
    """The file that BUILD files load, too."""
    return [Path(__file__).parent / "backend.bzl"]
