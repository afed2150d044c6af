"""The admin client: topics, groups and transactions, each in a module of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from semel.client.admin_groups import GroupAdmin
from semel.client.admin_topics import TopicAdmin
from semel.client.admin_transactions import TransactionAdmin
from semel.client.argument_lists import as_values
from semel.client.cluster import Cluster
from semel.client.connection import Connection
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

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.cluster.close()

    #: What is left to do takes no time: see `semel.client.endings`.
    abandon_within_s = 0.0

    async def abandon(self) -> None:
        """End without having been closed."""
        await self.close()
