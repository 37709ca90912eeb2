"""Decorators that state what a test needs: a missing need is a skip, before ranks start where possible."""
