"""Functions that a distributed test calls. No module but `models` imports torch before a function needs it."""
