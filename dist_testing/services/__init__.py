"""Services under test: servers and other long-lived processes that tests use. `docs/services.md` shows how.

from dist_testing.services import Service

server = Service(["{python}", "-m", "http.server", "{port}", "--bind", "127.0.0.1"], healthy="/", scope="module")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dist_testing.services.definition import ServiceError as ServiceError
    from dist_testing.services.running import Running as Running
    from dist_testing.services.service import Service as Service

__all__ = ["Running", "Service", "ServiceError"]

# Loaded at first use: the keeper of a service is in this package, and needs none of them.
_HOMES = {"Running": "running", "Service": "service", "ServiceError": "definition"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
