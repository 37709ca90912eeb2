"""Chooses tests by what they need: GPUs and ranks."""
