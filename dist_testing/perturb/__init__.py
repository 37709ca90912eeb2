"""Delays ranks before their calls, so that a test that depends on the order of its ranks fails on demand."""
