"""The admin client: puts its parts for topics, settings, groups and transactions together."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from semel.client.admin.configs import ConfigAdmin
from semel.client.admin.groups import GroupAdmin
from semel.client.admin.requests import AdminRequests
from semel.client.admin.topics import TopicAdmin
from semel.client.admin.transactions import TransactionAdmin
from semel.client.argument_lists import as_values
from semel.client.cluster.cluster import Cluster
from semel.client.cluster.connection import Connection
from semel.client.finalizers import drop
from semel.config import ADMIN, Values

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")


def _method_of(
    kind: type[Part], method: Callable[Concatenate[Part, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]]:
    """A method of `AsyncAdmin` that calls this method of the part of that kind. It has the same docstring."""

    @functools.wraps(method)
    async def call(self: AsyncAdmin, /, *arguments: P.args, **named: P.kwargs) -> T:
        part: Part = self._parts[kind]
        return await method(part, *arguments, **named)

    return call


class AsyncAdmin:
    """An admin client for asyncio. `semel.Admin` is the same for blocking code.

    >>> import asyncio
    >>> async def partition_count():
    ...     async with AsyncAdmin({"bootstrap.servers": broker}) as admin:
    ...         await admin.create_topic("invoices", partitions=3)
    ...         return len((await admin.describe_topics(["invoices"]))["invoices"].partitions)
    >>> asyncio.run(partition_count())
    3

    A call is retried until default.api.timeout.ms is over. An argument of the wrong type raises TypeError, everything
    else that goes wrong a `semel.errors.KafkaError`.
    """

    def __init__(
        self,
        config: Values | Mapping[str, object],
        *,
        connect: Callable[[str, int], Awaitable[Connection]] | None = None,
    ) -> None:
        self.config = as_values(config, ADMIN)
        self.cluster = Cluster(self.config, connect=connect)
        requests = AdminRequests(self.cluster, self.config)
        self._parts: dict[type, Any] = {
            kind: kind(requests) for kind in (TopicAdmin, ConfigAdmin, GroupAdmin, TransactionAdmin)
        }
        self._loop = asyncio.get_running_loop()
        self._closed = False

    create_topics = _method_of(TopicAdmin, TopicAdmin.create_topics)
    create_topic = _method_of(TopicAdmin, TopicAdmin.create_topic)
    delete_topics = _method_of(TopicAdmin, TopicAdmin.delete_topics)
    list_topics = _method_of(TopicAdmin, TopicAdmin.list_topics)
    describe_topics = _method_of(TopicAdmin, TopicAdmin.describe_topics)
    create_partitions = _method_of(TopicAdmin, TopicAdmin.create_partitions)
    delete_records = _method_of(TopicAdmin, TopicAdmin.delete_records)
    list_offsets = _method_of(TopicAdmin, TopicAdmin.list_offsets)

    describe_cluster = _method_of(ConfigAdmin, ConfigAdmin.describe_cluster)
    describe_configs = _method_of(ConfigAdmin, ConfigAdmin.describe_configs)
    alter_configs = _method_of(ConfigAdmin, ConfigAdmin.alter_configs)

    list_groups = _method_of(GroupAdmin, GroupAdmin.list_groups)
    describe_groups = _method_of(GroupAdmin, GroupAdmin.describe_groups)
    delete_groups = _method_of(GroupAdmin, GroupAdmin.delete_groups)
    list_group_offsets = _method_of(GroupAdmin, GroupAdmin.list_group_offsets)
    alter_group_offsets = _method_of(GroupAdmin, GroupAdmin.alter_group_offsets)
    delete_group_offsets = _method_of(GroupAdmin, GroupAdmin.delete_group_offsets)

    list_transactions = _method_of(TransactionAdmin, TransactionAdmin.list_transactions)
    describe_transactions = _method_of(TransactionAdmin, TransactionAdmin.describe_transactions)
    describe_producers = _method_of(TransactionAdmin, TransactionAdmin.describe_producers)
    abort_transaction = _method_of(TransactionAdmin, TransactionAdmin.abort_transaction)
    fence_producers = _method_of(TransactionAdmin, TransactionAdmin.fence_producers)

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        await self.cluster.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self.cluster.origin.lost:
            drop(self, "an admin", self._loop)

    #: Closing an admin takes no time: see `semel.client.finalizers`.
    abandon_within_s = 0.0

    async def abandon(self) -> None:
        """End without having been closed."""
        await self.close()
