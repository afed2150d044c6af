"""The blocking admin client: `AsyncAdmin` on a loop thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from semel.client.admin.admin import AsyncAdmin
from semel.client.admin.users import ITERATIONS
from semel.client.admin.values import (
    ClusterDescription,
    ConfigEntry,
    GroupDescription,
    GroupListing,
    NewTopic,
    ProducerDescription,
    ScramCredential,
    TransactionDescription,
    TransactionListing,
)
from semel.client.blocking.blocking_client import BlockingClient
from semel.client.cluster.metadata import TopicMetadata
from semel.client.offset_arguments import Offsets, PartitionLike
from semel.client.offset_requests import OffsetAndTimestamp
from semel.config import Values
from semel.machines.security.acl_bindings import AclBinding
from semel.machines.transactions.producer import OffsetAndMetadata
from semel.machines.values import ProducerIdentity, TopicPartition


class Admin(BlockingClient):
    """Creates, changes, describes and deletes topics, groups, transactions and users.

    >>> with Admin({"bootstrap.servers": broker}) as admin:
    ...     admin.create_topic("orders", partitions=3)
    ...     len(admin.describe_topics(["orders"])["orders"].partitions)
    ...     admin.set_scram_credentials("alice", "wonderland")
    ...     admin.describe_scram_credentials(["alice"])
    3
    {'alice': (ScramCredential(mechanism='SCRAM-SHA-512', iterations=8192),)}

    A call is retried until default.api.timeout.ms is over. An argument of the wrong type raises TypeError, everything
    else that goes wrong a `semel.errors.KafkaError`.
    """

    def __init__(self, config: Values | Mapping[str, object]) -> None:
        super().__init__("semel-admin")
        self._admin = self._make(lambda: AsyncAdmin(config))

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create topics. The first that cannot be created raises its error; the others are created all the same."""
        self._thread.run(self._admin.create_topics(topics, validate_only=validate_only))

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> None:
        """Create one topic. With `if_not_exists`, a topic that exists already is left as it is."""
        work = self._admin.create_topic(name, partitions, replication_factor, configs, if_not_exists=if_not_exists)
        self._thread.run(work)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics and all their records."""
        self._thread.run(self._admin.delete_topics(names))

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics; the broker's internal topics only with `internal`."""
        return self._thread.run(self._admin.list_topics(internal=internal))

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicMetadata]:
        """Partitions, leaders and replicas of these topics."""
        return self._thread.run(self._admin.describe_topics(names))

    def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Give topics more partitions. The number is the new total."""
        self._thread.run(self._admin.create_partitions(counts))

    def describe_configs(self, kind: str, name: str) -> dict[str, ConfigEntry]:
        """The settings of a "topic", a "broker" (by its id), a "group" or "client_metrics"."""
        return self._thread.run(self._admin.describe_configs(kind, name))

    def alter_configs(
        self, kind: str, name: str, changes: Mapping[str, object], *, validate_only: bool = False
    ) -> None:
        """Change settings of a "topic", "broker" or "group". The value None resets a setting to its default."""
        self._thread.run(self._admin.alter_configs(kind, name, changes, validate_only=validate_only))

    def delete_records(self, before: Mapping[PartitionLike, int]) -> dict[TopicPartition, int]:
        """Delete all records below an offset (-1: all records). Returns the new first offset of each partition."""
        return self._thread.run(self._admin.delete_records(before))

    def list_offsets(
        self, wanted: Mapping[PartitionLike, int], *, isolation_level: int = 0, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by timestamp: -1 for the end, -2 for the beginning, -3 for the newest timestamp.

        A partition that has no leader or cannot be read is asked again until `timeout_ms` is over (by default
        default.api.timeout.ms).
        """
        return self._thread.run(
            self._admin.list_offsets(wanted, isolation_level=isolation_level, timeout_ms=timeout_ms)
        )

    def describe_cluster(self) -> ClusterDescription:
        """The brokers, the controller, and the finalized features of the cluster."""
        return self._thread.run(self._admin.describe_cluster())

    def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """All groups of all brokers, or only those in these states ("Stable", "Empty") and of these types."""
        return self._thread.run(self._admin.list_groups(states=states, types=types))

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """State and members of these groups, of either group protocol."""
        return self._thread.run(self._admin.describe_groups(group_ids))

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups and their offsets. A group that has members is refused."""
        self._thread.run(self._admin.delete_groups(group_ids))

    def list_group_offsets(
        self, group_id: str, partitions: Iterable[PartitionLike] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """A group's committed offsets: all of them, or those of these partitions."""
        return self._thread.run(self._admin.list_group_offsets(group_id, partitions, require_stable=require_stable))

    def alter_group_offsets(self, group_id: str, offsets: Offsets) -> None:
        """Set the committed offsets of a group. A group that has members is refused."""
        self._thread.run(self._admin.alter_group_offsets(group_id, offsets))

    def delete_group_offsets(self, group_id: str, partitions: Iterable[PartitionLike]) -> None:
        """Delete the group's offsets for these partitions. No member may be subscribed to their topics."""
        self._thread.run(self._admin.delete_group_offsets(group_id, partitions))

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        transactional_id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all coordinators; with `duration_ms`, only those open for longer than that."""
        return self._thread.run(
            self._admin.list_transactions(
                states=states,
                producer_ids=producer_ids,
                duration_ms=duration_ms,
                transactional_id_pattern=transactional_id_pattern,
            )
        )

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """What the coordinators know of these transactional ids: state, identity, start time and partitions."""
        return self._thread.run(self._admin.describe_transactions(transactional_ids))

    def describe_producers(
        self, partitions: Iterable[PartitionLike]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The producers that each partition knows, from its leader."""
        return self._thread.run(self._admin.describe_producers(partitions))

    def abort_transaction(
        self, partition: PartitionLike, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write an abort marker into one partition, for a transaction that its coordinator does not know any more.

        If the coordinator still knows the transaction, use `fence_producers`.
        """
        self._thread.run(self._admin.abort_transaction(partition, producer_id, producer_epoch, coordinator_epoch))

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdentity]:
        """Fence the producers of these transactional ids: abort what they have open and refuse what they send."""
        return self._thread.run(self._admin.fence_producers(transactional_ids))

    def describe_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> dict[str, tuple[ScramCredential, ...]]:
        """The credentials of these users, or of all users: mechanism and iterations. Nobody can read the password."""
        return self._thread.run(self._admin.describe_scram_credentials(users))

    def set_scram_credentials(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-512", *, iterations: int = ITERATIONS
    ) -> None:
        """Let a user authenticate with this password. A credential that the user has for the mechanism is replaced."""
        self._thread.run(self._admin.set_scram_credentials(user, password, mechanism, iterations=iterations))

    def delete_scram_credentials(self, user: str, mechanism: str = "SCRAM-SHA-512") -> None:
        """Remove a user's credential for a mechanism. Connections that are open stay open until they end."""
        self._thread.run(self._admin.delete_scram_credentials(user, mechanism))

    def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Add access rules. One that is there already stays as it is.

        The first that is refused raises its error; the others are added all the same.

        >>> rule = semel.AclBinding("User:alice", "read", "topic", "payments")
        >>> security = semel.Security(users=["root"], super_users=["root"])
        >>> with semel.Broker(security=security) as guarded:
        ...     with Admin(guarded.client_settings("root")) as admin:
        ...         admin.create_acls([rule])
        ...         print(*admin.describe_acls(principal="User:alice"))
        ...         admin.delete_acls([rule]) == [rule]
        allow User:alice to READ on topic payments
        True
        """
        self._thread.run(self._admin.create_acls(acls))

    def describe_acls(
        self,
        *,
        principal: str | None = None,
        host: str | None = None,
        operation: str | None = None,
        resource_type: str | None = None,
        resource_name: str | None = None,
        pattern_type: str | None = None,
        permission: str | None = None,
    ) -> list[AclBinding]:
        """The access rules that match. What is not given matches everything.

        With `pattern_type="match"` and the name of a resource: all rules that can decide about this name, also those
        for a prefix of it and for `*`.
        """
        return self._thread.run(
            self._admin.describe_acls(
                principal=principal,
                host=host,
                operation=operation,
                resource_type=resource_type,
                resource_name=resource_name,
                pattern_type=pattern_type,
                permission=permission,
            )
        )

    def delete_acls(self, acls: Iterable[AclBinding]) -> list[AclBinding]:
        """Remove exactly these access rules. Returns those that were there."""
        return self._thread.run(self._admin.delete_acls(acls))

    def close(self) -> None:
        """Close the connections."""
        self._close(self._admin.close())
