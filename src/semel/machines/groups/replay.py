"""Turns written records into memory, in the same way after a decision and after a restart.

A live classic group keeps more in memory than its records hold (parked joins and syncs, timers). Its replay applies
the change that was pending, and does not read the group anew.
"""

from __future__ import annotations

from typing import Any

from semel.machines.contract import StateRecord
from semel.machines.groups.classic.group import ClassicGroup
from semel.machines.groups.classic.rebalance import ClassicRebalance
from semel.machines.groups.classic.records import read_group
from semel.machines.groups.committed_offsets import CommittedOffset, CommittedOffsets
from semel.machines.groups.consumer import records as consumer_records
from semel.machines.groups.consumer.group import ConsumerGroup
from semel.machines.groups.records import read
from semel.machines.groups.registry import DecisionDraft, GroupRegistry
from semel.machines.values import ProducerIdentity
from semel.wire.messages.coordinator_records import (
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

NO_PRODUCER_ID = -1


class GroupReplay:
    """Replays records of `__consumer_offsets` into the registry and the offsets."""

    __slots__ = ("_classic", "_offsets", "_registry")

    def __init__(self, registry: GroupRegistry, offsets: CommittedOffsets, classic: ClassicRebalance) -> None:
        self._registry = registry
        self._offsets = offsets
        self._classic = classic

    def replay(self, record: StateRecord, now_ms: int, out: DecisionDraft) -> None:
        """Take in a record. Parked requests that it answers are answered through `out`."""
        found = read(record.key, record.value)
        if found is None:
            return
        key, value = found
        if isinstance(key, OffsetCommitKey):
            self._offset(record.partition, key, value, record.producer)
        elif isinstance(key, GroupMetadataKey):
            self._classic_group(record.partition, key.group, value, now_ms, out)
        else:
            self._consumer_group(key, value)

    def _offset(
        self, partition: int, key: OffsetCommitKey, value: OffsetCommitValue | None, producer: ProducerIdentity | None
    ) -> None:
        if value is None:
            self._offsets.replay_tombstone(partition, key.group, key.topic, key.partition)
            return
        group = self._registry.groups.get(key.group)
        if group is None:
            # A group without members that only stores offsets.
            group = ClassicGroup(key.group, value.commit_timestamp)
            self._registry.put(group)
        offset = CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            0,
        )
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        self._offsets.replay(partition, group.group_id, key.topic, key.partition, offset, producer_id)

    def _classic_group(
        self, partition: int, group_id: str, value: GroupMetadataValue | None, now_ms: int, out: DecisionDraft
    ) -> None:
        group = self._registry.groups.get(group_id)
        if value is None:
            if isinstance(group, ClassicGroup):
                self._registry.remove(group_id)
            return
        live = self._registry.is_loaded(partition)
        if live and self._classic.replay_pending(group_id, now_ms):
            return
        if not live or not isinstance(group, ClassicGroup):
            # Keep the first string object of the id: many groups are written often.
            known_id = group_id if group is None else group.group_id
            restored = read_group(known_id, value)
            self._registry.put(restored)
            if live:
                self._classic.begin_again(restored, now_ms, out)
        # A live group in memory is newer than a record that no pending change belongs to.

    def _consumer_group(self, key: Any, value: Any) -> None:
        group = self._registry.groups.get(key.group_id)
        if value is None and isinstance(key, ConsumerGroupMetadataKey):
            if isinstance(group, ConsumerGroup):
                self._registry.remove(key.group_id)
            return
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            # It replaces a group that only stores offsets.
            group = ConsumerGroup(key.group_id)
            self._registry.put(group)
        consumer_records.replay(group, key, value)
