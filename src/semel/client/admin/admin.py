"""The admin client: topics, groups and transactions, each in a module of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from semel.client.admin.groups import GroupAdmin
from semel.client.admin.topics import TopicAdmin
from semel.client.admin.transactions import TransactionAdmin
from semel.client.argument_lists import as_values
from semel.client.cluster.cluster import Cluster
from semel.client.cluster.connection import Connection
from semel.client.finalizers import drop
from semel.config import ADMIN, Values


class AsyncAdmin(TopicAdmin, GroupAdmin, TransactionAdmin):
    """An administrator for asyncio. `semel.Admin` is the same for blocking code."""

    def __init__(
        self,
        config: Values | Mapping[str, object],
        *,
        connect: Callable[[str, int], Awaitable[Connection]] = Connection.open,
    ) -> None:
        self.config = as_values(config, ADMIN)
        self.cluster = Cluster(self.config, connect=connect)
        self._loop = asyncio.get_running_loop()
        self._closed = False

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True
        await self.cluster.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self.cluster.origin.lost:
            drop(self, "an admin", self._loop)

    #: What is left to do takes no time: see `semel.client.finalizers`.
    abandon_within_s = 0.0

    async def abandon(self) -> None:
        """End without having been closed."""
        await self.close()
