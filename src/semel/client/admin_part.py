"""What the parts of the admin client share: a cluster, a deadline, and asking until there is a final answer."""

from __future__ import annotations

from typing import Any

from semel.client.cluster import Cluster, Target
from semel.config import Values


class AdminPart:
    """One part of the admin client. Whoever puts the parts together sets `cluster` and `config`."""

    cluster: Cluster
    config: Values

    @property
    def _timeout_ms(self) -> int:
        return int(self.config["default.api.timeout.ms"])

    async def _ask(self, request: Any, to: Target = None) -> Any:
        """Send until the answer is final, for up to default.api.timeout.ms."""
        return await self.cluster.request_retrying(request, to=to, timeout_ms=self._timeout_ms)
