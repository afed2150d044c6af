"""The blocking face of the admin client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from semel.client.admin.admin import AsyncAdmin
from semel.client.admin.values import (
    ClusterDescription,
    ConfigEntry,
    GroupDescription,
    GroupListing,
    NewTopic,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from semel.client.blocking.blocking_client import BlockingClient
from semel.client.cluster.metadata import TopicMetadata
from semel.client.offset_arguments import Offsets, PartitionLike
from semel.client.offset_requests import OffsetAndTimestamp
from semel.config import Values
from semel.machines.transactions.producer import OffsetAndMetadata
from semel.machines.values import ProducerIdentity, TopicPartition


class Admin(BlockingClient):
    """Makes, changes and looks into topics, groups and transactions.

    >>> with Admin({"bootstrap.servers": broker}) as admin:
    ...     admin.create_topic("orders", partitions=3)
    ...     len(admin.describe_topics(["orders"])["orders"].partitions)
    3

    A call goes on trying for default.api.timeout.ms. An argument of the wrong type raises TypeError; what else can go
    wrong is in `semel.errors`.
    """

    def __init__(self, config: Values | Mapping[str, object]) -> None:
        super().__init__("semel-admin")
        self._admin = self._make(lambda: AsyncAdmin(config))

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Make topics; the first that cannot be made is raised, the others are made all the same."""
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
        """Make one topic; with `if_not_exists` one that is there already is left as it is."""
        work = self._admin.create_topic(name, partitions, replication_factor, configs, if_not_exists=if_not_exists)
        self._thread.run(work)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with all their records."""
        self._thread.run(self._admin.delete_topics(names))

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, the broker's own left out unless asked for."""
        return self._thread.run(self._admin.list_topics(internal=internal))

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicMetadata]:
        """Partitions, leaders and replicas of these topics."""
        return self._thread.run(self._admin.describe_topics(names))

    def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Give topics more partitions: the number is how many there shall be in all."""
        self._thread.run(self._admin.create_partitions(counts))

    def describe_configs(self, kind: str, name: str) -> dict[str, ConfigEntry]:
        """The settings of a "topic", a "broker" (by its id), a "group" or "client_metrics"."""
        return self._thread.run(self._admin.describe_configs(kind, name))

    def alter_configs(
        self, kind: str, name: str, changes: Mapping[str, object], *, validate_only: bool = False
    ) -> None:
        """Set single settings of a "topic", "broker" or "group"; None takes a setting back to its default."""
        self._thread.run(self._admin.alter_configs(kind, name, changes, validate_only=validate_only))

    def delete_records(self, before: Mapping[PartitionLike, int]) -> dict[TopicPartition, int]:
        """Forget every record below an offset (-1: all there are); the answer is where each partition begins now."""
        return self._thread.run(self._admin.delete_records(before))

    def list_offsets(
        self, wanted: Mapping[PartitionLike, int], *, isolation_level: int = 0, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by timestamp: -1 for the end, -2 for the beginning, -3 for the newest timestamp."""
        return self._thread.run(
            self._admin.list_offsets(wanted, isolation_level=isolation_level, timeout_ms=timeout_ms)
        )

    def describe_cluster(self) -> ClusterDescription:
        """The brokers, the controller, and the features the cluster has finalized."""
        return self._thread.run(self._admin.describe_cluster())

    def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """All groups of all brokers, or those in these states and of these types."""
        return self._thread.run(self._admin.list_groups(states=states, types=types))

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """State and members of these groups, whichever protocol they speak."""
        return self._thread.run(self._admin.describe_groups(group_ids))

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members, with their offsets."""
        self._thread.run(self._admin.delete_groups(group_ids))

    def list_group_offsets(
        self, group_id: str, partitions: Iterable[PartitionLike] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """A group's committed offsets: all of them, or those of these partitions."""
        return self._thread.run(self._admin.list_group_offsets(group_id, partitions, require_stable=require_stable))

    def alter_group_offsets(self, group_id: str, offsets: Offsets) -> None:
        """Set the offsets of a group without members."""
        self._thread.run(self._admin.alter_group_offsets(group_id, offsets))

    def delete_group_offsets(self, group_id: str, partitions: Iterable[PartitionLike]) -> None:
        """Forget the group's offsets for these partitions, which it must not be reading."""
        self._thread.run(self._admin.delete_group_offsets(group_id, partitions))

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        transactional_id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all coordinators; `duration_ms` keeps those open for longer than that."""
        return self._thread.run(
            self._admin.list_transactions(
                states=states,
                producer_ids=producer_ids,
                duration_ms=duration_ms,
                transactional_id_pattern=transactional_id_pattern,
            )
        )

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """State, identity, age and partitions of these transactional ids, as their coordinators see them."""
        return self._thread.run(self._admin.describe_transactions(transactional_ids))

    def describe_producers(
        self, partitions: Iterable[PartitionLike]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The producers each partition knows, as its leader sees them."""
        return self._thread.run(self._admin.describe_producers(partitions))

    def abort_transaction(
        self, partition: PartitionLike, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write an abort marker into one partition: the end of a transaction that its coordinator has forgotten."""
        self._thread.run(self._admin.abort_transaction(partition, producer_id, producer_epoch, coordinator_epoch))

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdentity]:
        """Shut out whoever uses these transactional ids: what they have open is aborted, what they send refused."""
        return self._thread.run(self._admin.fence_producers(transactional_ids))

    def close(self) -> None:
        """Let go of the connections."""
        self._close(self._admin.close())
