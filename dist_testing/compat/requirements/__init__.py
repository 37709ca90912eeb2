"""Decorators that state what a test needs: a missing need is a skip with a reason, before ranks start where possible."""
