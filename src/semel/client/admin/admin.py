"""The admin client: puts its parts for topics, settings, groups, transactions, users and access rules together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from semel.client.admin.acls import AclAdmin
from semel.client.admin.configs import ConfigAdmin
from semel.client.admin.groups import GroupAdmin
from semel.client.admin.requests import AdminRequests
from semel.client.admin.topics import TopicAdmin
from semel.client.admin.transactions import TransactionAdmin
from semel.client.admin.users import UserAdmin
from semel.client.argument_lists import as_values
from semel.client.cluster.cluster import Cluster
from semel.client.delegation import method_of
from semel.client.finalizers import drop
from semel.client.forking import OfOneProcess
from semel.config import ADMIN, Values
from semel.environment import MACHINE, Environment
from semel.net.connection import Connection


class AsyncAdmin(OfOneProcess):
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
        environment: Environment = MACHINE,
    ) -> None:
        self.config = as_values(config, ADMIN)
        self.cluster = Cluster(self.config, connect=connect, environment=environment)
        requests = AdminRequests(self.cluster, self.config)
        self._topics, self._configs = TopicAdmin(requests), ConfigAdmin(requests)
        self._groups, self._transactions = GroupAdmin(requests), TransactionAdmin(requests)
        self._users, self._acls = UserAdmin(requests), AclAdmin(requests)
        self._loop = asyncio.get_running_loop()
        self._closed = False

    create_topics = method_of("_topics", TopicAdmin.create_topics)
    create_topic = method_of("_topics", TopicAdmin.create_topic)
    delete_topics = method_of("_topics", TopicAdmin.delete_topics)
    list_topics = method_of("_topics", TopicAdmin.list_topics)
    describe_topics = method_of("_topics", TopicAdmin.describe_topics)
    create_partitions = method_of("_topics", TopicAdmin.create_partitions)
    delete_records = method_of("_topics", TopicAdmin.delete_records)
    list_offsets = method_of("_topics", TopicAdmin.list_offsets)

    describe_cluster = method_of("_configs", ConfigAdmin.describe_cluster)
    describe_configs = method_of("_configs", ConfigAdmin.describe_configs)
    alter_configs = method_of("_configs", ConfigAdmin.alter_configs)

    list_groups = method_of("_groups", GroupAdmin.list_groups)
    describe_groups = method_of("_groups", GroupAdmin.describe_groups)
    delete_groups = method_of("_groups", GroupAdmin.delete_groups)
    list_group_offsets = method_of("_groups", GroupAdmin.list_group_offsets)
    alter_group_offsets = method_of("_groups", GroupAdmin.alter_group_offsets)
    delete_group_offsets = method_of("_groups", GroupAdmin.delete_group_offsets)

    list_transactions = method_of("_transactions", TransactionAdmin.list_transactions)
    describe_transactions = method_of("_transactions", TransactionAdmin.describe_transactions)
    describe_producers = method_of("_transactions", TransactionAdmin.describe_producers)
    abort_transaction = method_of("_transactions", TransactionAdmin.abort_transaction)
    fence_producers = method_of("_transactions", TransactionAdmin.fence_producers)

    describe_scram_credentials = method_of("_users", UserAdmin.describe_scram_credentials)
    set_scram_credentials = method_of("_users", UserAdmin.set_scram_credentials)
    delete_scram_credentials = method_of("_users", UserAdmin.delete_scram_credentials)

    create_acls = method_of("_acls", AclAdmin.create_acls)
    describe_acls = method_of("_acls", AclAdmin.describe_acls)
    delete_acls = method_of("_acls", AclAdmin.delete_acls)

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
