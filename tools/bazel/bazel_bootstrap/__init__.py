"""The parts of bootstrap.py: release server, Debian prefix, cache, doctor."""
