"""Whether a service can be used: one look, which returns why not."""

from __future__ import annotations

import http.client
import re
import socket

from dist_testing.core.ground.error_text import name_of, summarise
from dist_testing.services.definition import TCP, Address, Definition

# Limit of one look. Seconds.
_LOOK_S = 2.0
_FIRST_GOOD, _FIRST_BAD = 200, 400


def unhealthy_reason(definition: Definition, running: Address, output: str) -> str:
    """Return why a service cannot be used yet, such as "GET /health: 503 Service Unavailable"; "" if it can.

    `output` is what it has printed.
    """
    healthy = definition.healthy
    if definition.announces and not running.port:
        return f"its output does not announce a port by {definition.announces!r}"
    if isinstance(healthy, re.Pattern):
        return "" if healthy.search(output) else f"its output does not contain {healthy.pattern!r}"
    try:
        if callable(healthy):
            return "" if healthy(running) else f"{name_of(healthy)} returned nothing true"
        if healthy is None and not running.port:
            return ""
        if healthy not in (None, TCP):
            return _get(running, str(healthy))
        socket.create_connection((running.host, running.port), _LOOK_S).close()
        return ""
    except (OSError, http.client.HTTPException) as error:
        return summarise(error)


def _get(running: Address, path: str) -> str:
    # Not urllib, which may send the request to a proxy.
    connection = http.client.HTTPConnection(running.host, running.port, timeout=_LOOK_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
    finally:
        connection.close()
    return "" if _FIRST_GOOD <= answer.status < _FIRST_BAD else f"GET {path}: {answer.status} {answer.reason}"
