"""Services under test: servers and other long-lived processes that tests use. `docs/services.md` shows how.

from dist_testing.services import Service

server = Service(["{python}", "-m", "http.server", "{port}", "--bind", "127.0.0.1"], healthy="/", scope="module")
"""

from dist_testing.services.definition import ServiceError as ServiceError
from dist_testing.services.running import Running as Running
from dist_testing.services.service import Service as Service

__all__ = ["Running", "Service", "ServiceError"]
