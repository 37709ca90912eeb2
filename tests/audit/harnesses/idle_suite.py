"""A suite without ranks."""


def test_idle() -> None:
    """Pass."""
