"""A remote-execution cluster on this machine."""
