"""Ports of the loopback interface: whether one is free, and who has it."""

from __future__ import annotations

import socket

import psutil

from dist_testing.core.ground.procfs import command_of

HOST = "127.0.0.1"


def is_free(port: int) -> bool:
    """Return whether no process listens at a port."""
    with socket.socket() as probe:
        # Else connections of the past would count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def listener_at(port: int) -> str:
    """Return a sentence, without a full stop, on the process that listens at a port."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
            return f"Process {connection.pid} listens there: {command_of(connection.pid)}"
    return "A process of another user, or of another container, listens there"
