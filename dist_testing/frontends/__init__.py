"""The front ends: pytest and unittest, and what a test file imports from them."""
