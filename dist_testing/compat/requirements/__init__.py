"""Decorators that state what a test needs: a missing need is a skip with a reason, before ranks start where possible.

`dist_testing` re-exports the names that belong to the public API.
"""
