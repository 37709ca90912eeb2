"""The exceptions of the cluster."""

from __future__ import annotations

from debian_prefix.errors import InstallError


class ClusterError(InstallError):
    """A failure of a cluster, of which the user reads the same three lines."""
