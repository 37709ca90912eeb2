"""A key-value server for each world of ranks. In a test, `key_value.Client()` is a connection to the world's server."""

from key_value.client import Client, UnknownKeyError

__all__ = ["Client", "UnknownKeyError"]
